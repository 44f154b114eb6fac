"""Credentials of a cloud login, such as a profile or single sign-on, for the object-store client.

The client itself reads environment variables, the roles of machines and containers, and Google's and Azure's own login
files. Profiles of AWS need boto3. This file needs the standard library alone, since its text is also sent to machines
on which zooid is not installed.
"""

from __future__ import annotations

import os
from typing import Any

_OTHER_WAYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
"""Variables with which the client finds credentials itself."""
_FILES = ("~/.aws/credentials", "~/.aws/config")


def aws_login() -> dict[str, Any]:
    """Return the client's options for an AWS profile; empty if there is none, or the environment has credentials.

    Raises LookupError, with what to do, if a profile is asked for and cannot be used.
    """
    profile = os.environ.get("AWS_PROFILE")
    has_files = any(os.path.exists(os.path.expanduser(file)) for file in _FILES)
    if any(map(os.environ.get, _OTHER_WAYS)) or not (profile or has_files):
        return {}
    try:
        import boto3  # type: ignore[import-untyped,unused-ignore]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        if profile:
            raise LookupError(
                f"AWS_PROFILE is {profile!r}, which needs the package boto3; install zooid[aws], or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        return {}
    try:
        session = boto3.Session()
        if session.get_credentials() is None:
            return {}
        options: dict[str, Any] = {"credential_provider": Boto3CredentialProvider(session)}
    except Exception as error:
        raise LookupError(f"the AWS profile {profile or 'default'!r} cannot be used: {error}; log in again") from error
    if session.region_name and not os.environ.get("AWS_REGION"):
        options["region"] = session.region_name
    return options

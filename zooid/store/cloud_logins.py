"""Credentials of a cloud login, such as a profile or single sign-on, for the object-store client.

The client itself reads environment variables, the roles of machines and containers, and Google's and Azure's own login
files. Keys in the files of AWS are read here. Any other profile of AWS needs boto3, whose import takes longer than all
else that a member's first program does. This file needs the standard library alone, since its text is also sent to
machines on which zooid is not installed.
"""

from __future__ import annotations

import configparser
import os
from typing import Any

_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
"""Names of keys in the file of credentials, and among the client's options."""
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
    keys = _stored_keys(profile or "default")
    if keys:
        return keys
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


def _stored_keys(profile: str) -> dict[str, Any]:
    """Return the client's options for a profile whose keys are in the file of credentials; empty if they are not."""
    files = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        files.read([os.path.expanduser(file) for file in _FILES], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):  # boto3 says what is wrong with it
        return {}
    stored: dict[str, str] = {}
    for section in (f"profile {profile}", profile):
        stored |= dict(files[section]) if section in files else {}
    options = {option: stored[name] for name, option in _KEYS.items() if stored.get(name)}
    has_keys = {"access_key_id", "secret_access_key"} <= options.keys()
    if not has_keys or any(name == "role_arn" or name.startswith("sso_") for name in stored):
        return {}
    if stored.get("region") and not os.environ.get("AWS_REGION"):
        options["region"] = stored["region"]
    return options

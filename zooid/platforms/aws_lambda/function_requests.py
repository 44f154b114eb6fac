"""Requests to Lambda and to CloudWatch Logs: their clients, and their errors in zooid's words."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from zooid.core.errors import InputError, ZooidError

_NEEDS_SDK = "members in functions need the package boto3; install it with: pip install 'zooid[aws]'"
_CONNECT_S, _READ_S = 5, 30
_MAX_ATTEMPTS = 5
_MAX_CONNECTIONS = 32
"""Members are started by several threads at the same time."""
_REGION = re.compile("[a-z]{2}(-[a-z]+)+-[0-9]")
_PERMISSIONS = "docs/aws-lambda-policy.json has the permissions that zooid needs"
_ADVICE = {
    "AccessDeniedException": _PERMISSIONS,
    "AccessDenied": _PERMISSIONS,
    "UnrecognizedClientException": "check the credentials of AWS on this machine",
    "ExpiredTokenException": "log in again, for example with aws sso login",
    "TooManyRequestsException": "ask AWS for a higher quota of concurrent executions, or use fewer members",
}


class FunctionClients(NamedTuple):
    """Clients of one region. Threads may share them."""

    functions: Any
    logs: Any


def function_clients(region: str, endpoint: str | None) -> FunctionClients:
    """Return clients with the user's own credentials; `endpoint` replaces those of AWS."""
    if _REGION.fullmatch(region) is None:  # it may come from a handle, which others may have written
        raise InputError(f"{region!r} is no region of AWS; one is named us-east-1, for example")
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise InputError(_NEEDS_SDK) from error
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"mode": "standard", "max_attempts": _MAX_ATTEMPTS},
        max_pool_connections=_MAX_CONNECTIONS,
    )
    try:
        session = boto3.Session(region_name=region)
        return FunctionClients(
            *(session.client(name, endpoint_url=endpoint, config=config) for name in ("lambda", "logs"))
        )
    except (BotoCoreError, ValueError) as error:
        raise InputError(f"functions in {region} cannot be used: {error}") from error


class Refused(ZooidError):
    """The service has refused a request; `code` is its own name for the reason."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def asking(what: str, advice_by_code: Mapping[str, str] = _ADVICE) -> Iterator[None]:
    """Raise a refusal or a failure of a request as an error that begins with `what` and ends with advice."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except NoCredentialsError as error:
        advice = "log in, for example with aws sso login"
        raise InputError(f"{what}: this machine has no credentials for AWS; {advice}") from error
    except ClientError as error:
        told = error.response.get("Error", {})
        code = str(told.get("Code", ""))
        advice = f"; {advice_by_code[code]}" if code in advice_by_code else ""
        raise Refused(f"{what}: {code}: {told.get('Message') or 'no reason is given'}{advice}", code) from error
    except BotoCoreError as error:
        raise ZooidError(f"{what}: {error}") from error

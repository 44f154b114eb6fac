"""Requests to the service of MicroVMs: its client, and its errors in zooid's words."""

from contextlib import AbstractContextManager
from typing import Any

from zooid.core.errors import InputError
from zooid.platforms.aws_lambda.function_requests import asking

_SERVICE = "lambda-microvms"
_NEEDS_SDK = "members in MicroVMs need the package boto3; install it with: pip install 'zooid[aws]'"
_TIMEOUT_S = 20
_MAX_ATTEMPTS = 5
_ADVICE = {
    "AccessDeniedException": "docs/renting.md lists the permissions that zooid needs; MicroVMs are in few regions",
    "ServiceQuotaExceededException": "ask AWS for a higher quota of MicroVMs, or use fewer members",
    "InsufficientCapacityException": "try later, or another size",
}


def microvm_client(region: str, endpoint: str | None) -> Any:
    """Return a client with the user's own credentials; `endpoint` replaces that of AWS."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, UnknownServiceError
    except ImportError as error:
        raise InputError(_NEEDS_SDK) from error
    config = Config(
        connect_timeout=_TIMEOUT_S,
        read_timeout=_TIMEOUT_S,
        retries={"mode": "standard", "max_attempts": _MAX_ATTEMPTS},
    )
    try:
        return boto3.client(_SERVICE, region_name=region, endpoint_url=endpoint, config=config)
    except UnknownServiceError as error:
        raise InputError(f"{_NEEDS_SDK} --upgrade, because the installed one does not know {_SERVICE}") from error
    except (BotoCoreError, ValueError) as error:
        raise InputError(f"the service of MicroVMs in {region} cannot be used: {error}") from error


def translated(what: str) -> AbstractContextManager[None]:
    """Raise a refusal of the service as an error that begins with `what`."""
    return asking(what, _ADVICE)

"""How Azure's resource manager is reached: login, connections, and its refusals in words."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from azure.core.credentials import AccessToken, TokenCredential
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DeserializationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.core.polling import LROPoller

from zooid.core.errors import InputError, ZooidError
from zooid.core.text import quoted
from zooid.platforms.azure_container.azure_account import AzurePlace

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_NUM_THREADS = 8
"""Requests at a time. The client keeps ten connections, and drops what is beyond them."""
_CONNECT_S, _READ_S = 10.0, 60.0
_NUM_RETRIES = 4
"""Retries of a request, with growing pauses or as long as Azure asks for; by default, they take minutes."""
_POLL_S = 1.0
"""Seconds between two looks at an operation for which Azure names no pause."""
_OPERATION_S = 180.0
"""The time after which an operation that should take seconds counts as failed."""
_TOKEN_S = 3600.0


@dataclass(frozen=True)
class ArmConnection:
    """Options of a client of the resource manager."""

    credential: TokenCredential
    options: dict[str, Any]

    def close(self) -> None:
        close = getattr(self.credential, "close", None)
        if close is not None:
            close()


def connect(place: AzurePlace) -> ArmConnection:
    """Choose the login, and return what every client needs.

    An endpoint without TLS belongs to a laboratory: it gets no token of Azure, which others could read on the way.
    """
    options: dict[str, Any] = {
        "connection_timeout": _CONNECT_S,
        "read_timeout": _READ_S,
        "retry_total": _NUM_RETRIES,
        "polling_interval": _POLL_S,
    }
    if place.endpoint:
        options |= {"base_url": place.endpoint, "credential_scopes": [f"{place.endpoint}/.default"]}
    if place.endpoint.startswith("http://"):
        return ArmConnection(_NoLogin(), {**options, "per_call_policies": [_WithoutTls()]})
    from azure.identity import DefaultAzureCredential  # its import takes a second

    return ArmConnection(DefaultAzureCredential(), options)


class _NoLogin:
    """A credential that asks nobody."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("none", int(time.time() + _TOKEN_S))


class _WithoutTls(SansIOHTTPPolicy[Any, Any]):
    """Lets requests go to an endpoint without TLS, which the policy of tokens otherwise forbids."""

    def on_request(self, request: PipelineRequest[Any]) -> None:
        request.context.options["enforce_https"] = False


@contextmanager
def asking(place: AzurePlace, what: str) -> Iterator[None]:
    """Raise errors of Azure as those of zooid; `what` says what was not done. Missing resources stay as they are."""
    try:
        yield
    except ResourceNotFoundError:
        raise
    except ClientAuthenticationError as error:
        raise InputError(
            f"{what}: Azure does not accept the login: {_reason(error)}; log in with `az login`, or set the variables "
            "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
        ) from error
    except HttpResponseError as error:
        if error.status_code == 403:
            raise InputError(
                f"{what}: {_reason(error)}; give the login the role in docs/azure-role.json on the subscription "
                f"{place.subscription}"
            ) from error
        raise ZooidError(f"{what}: {_reason(error)}") from error
    except ServiceRequestError as error:
        raise ZooidError(f"{what}: Azure cannot be reached: {_reason(error)}") from error
    except AzureError as error:
        raise ZooidError(f"{what}: {_reason(error)}") from error
    except (DeserializationError, AttributeError, KeyError, TypeError) as error:
        # Azure's packages take the form of answers for granted, and stumble over any other
        raise ZooidError(f"{what}: Azure gives no answer that can be used: {quoted(str(error))}; try again") from error


@contextmanager
def in_group(place: AzurePlace) -> Iterator[None]:
    """Say what to do if something is not found because its resource group does not exist."""
    try:
        yield
    except ResourceNotFoundError as error:
        raise InputError(
            f"Azure has no resource group {place.resource_group!r} in the subscription {place.subscription}; make it "
            f"with: az group create --name {place.resource_group} --location {place.region}"
        ) from error


def _reason(error: AzureError) -> str:
    """Return the first line of what Azure says, with its code."""
    body = getattr(error, "error", None)
    code, message = getattr(body, "code", None), getattr(body, "message", None)
    lines = (message or error.message or type(error).__name__).strip().splitlines()
    return quoted(f"{lines[0].rstrip('.')} ({code})" if code else lines[0].rstrip("."))


def finish(poller: LROPoller[Answer]) -> Answer:
    """Wait for the end of an operation, and return its answer."""
    poller.wait(_OPERATION_S)
    if not poller.done():
        raise AzureError(f"the operation is still under way after {_OPERATION_S:g} s")
    return poller.result()


def each(items: Collection[Item], ask: Callable[[Item], Answer]) -> dict[Item, Answer]:
    """Ask about several items side by side, and return the answers by item."""
    if not items:
        return {}
    with ThreadPoolExecutor(min(len(items), _NUM_THREADS)) as threads:
        return dict(zip(items, threads.map(ask, items), strict=True))


@dataclass(frozen=True)
class Quota:
    """How much of something a subscription may use in a region."""

    name: str
    limit: float
    used: float

    @property
    def free(self) -> float:
        return max(0.0, self.limit - self.used)


def require_quota(
    place: AzurePlace, quotas: Mapping[str, Quota], needed: Mapping[str, float], num_members: int
) -> None:
    """Raise InputError if members need more than a quota has left. A quota that Azure does not name is no limit."""
    for name, amount in needed.items():
        quota = quotas.get(name)
        if quota is not None and amount > quota.free:
            raise InputError(
                f"{num_members} members need {amount:g} more of the quota {quota.name!r} in {place.region}, of which "
                f"{quota.used:g} of {quota.limit:g} are used; take fewer members or a smaller offer, or ask Azure for "
                "a larger quota"
            )


def num_within(quotas: Mapping[str, Quota], needed: Mapping[str, float]) -> int | None:
    """Return how many members fit into what quotas have left, if each needs so much; None if no quota is known."""
    fitting = [int(quotas[name].free // amount) for name, amount in needed.items() if name in quotas and amount > 0]
    return min(fitting, default=None)

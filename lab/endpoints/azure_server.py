"""What all services behind Azure's resource manager have in common: routes, errors, and long-running operations.

A request names the version of the service's interface, and carries a token. What takes longer is answered at once, with
a header that names where to ask about it.
"""

import json
import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.endpoints.json_server import JsonAnswer, JsonRequest, json_server

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
RESOURCE_GROUP = "laboratory"
GROUP_PATH = "/subscriptions/{subscription}/resourceGroups/{group}/providers/"
LOCATION_PATH = "/subscriptions/{subscription}/providers/"
ROLE = Path(__file__).parents[2] / "docs" / "azure-role.json"
_ASSIGN = "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"
_VERBS = {"GET": "read", "PUT": "write", "DELETE": "delete"}
_WITH_BODY = ("PUT", "POST", "PATCH")
_PLACEHOLDER = re.compile(r"{(\w+)}")


class ArmRefusal(Exception):
    """A request that the service refuses, with status and code as the resource manager words them."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


@dataclass
class ArmAnswer:
    """The answer to one request."""

    status: int
    body: Any = None
    is_done: Callable[[], bool] | None = None
    """Whether the operation has ended that the request has begun; None if the answer is all."""
    header: str = "Location"
    """The header that names where to ask about the operation: this one, or Azure-AsyncOperation."""


@dataclass
class ArmFaults:
    """Refusals that are asked for, and how many have been given."""

    waiting: list[tuple[str, str, ArmRefusal]] = field(default_factory=list)
    """Method, part of the path, and the refusal, in the order in which they are used up."""
    num_given: int = 0

    def add(self, method: str, part: str, refusal: ArmRefusal, times: int = 1) -> None:
        """Refuse the next requests of this kind."""
        self.waiting += [(method, part, refusal)] * times

    def take(self, method: str, path: str) -> None:
        """Raise a refusal that waits for such a request."""
        for number, (wanted, part, refusal) in enumerate(self.waiting):
            if method == wanted and part in path:
                del self.waiting[number]
                self.num_given += 1
                raise refusal


Handler = Callable[..., ArmAnswer]
"""Gets the placeholders of its path by name, and the body as `body` if requests of its method may have one."""


@dataclass
class ArmServer:
    """The resource manager, with the services whose routes it is given."""

    api_version: str
    operation_actions: Mapping[str, Sequence[str]]
    """What it takes to ask about operations, by the header that names where: see `ArmAnswer`."""
    actions: Collection[str] = field(default_factory=lambda: role_actions())
    """What the role of whoever sends requests permits."""
    used: set[str] = field(default_factory=set)
    """What was needed, in small letters, as Azure does not distinguish them."""
    faults: ArmFaults = field(default_factory=ArmFaults)
    num_requests: int = 0

    def __post_init__(self) -> None:
        self._routes: list[tuple[str, re.Pattern[str], Sequence[str], Handler]] = []
        self._operations: dict[str, Callable[[], bool]] = {}
        self._lock = threading.Lock()
        self.url = ""

    def route(self, method: str, path: str, handler: Handler, *actions: str) -> None:
        """Let a handler answer requests to a path, in which placeholders stand in braces.

        `actions` are what that takes beside what method and path say.
        """
        types = [part for part in path.partition("/providers/")[2].split("/") if not part.startswith("{")]
        needed = [f"{'/'.join(types)}/{_VERBS[method]}", *actions] if method in _VERBS else actions
        pattern = _PLACEHOLDER.sub(lambda found: f"(?P<{found[1]}>[^/]+)", path)
        self._routes.append((method, re.compile(pattern, re.IGNORECASE), needed, handler))

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answer requests on this machine; yields the URL."""
        with json_server(self._serve_one) as self.url:
            yield self.url

    def _serve_one(self, request: JsonRequest) -> JsonAnswer:
        with self._lock:
            self.num_requests += 1
        try:
            answer = self._answer(request)
        except ArmRefusal as refusal:
            return JsonAnswer(
                {"error": {"code": refusal.code, "message": str(refusal)}}, refusal.status, refusal.headers
            )
        headers = {} if answer.is_done is None else {answer.header: self._begun(answer)}
        return JsonAnswer(answer.body, answer.status, headers)

    def _answer(self, request: JsonRequest) -> ArmAnswer:
        if not request.headers.get("authorization", "").startswith("Bearer "):
            raise ArmRefusal(401, "AuthenticationFailed", "The 'Authorization' header is missing.")
        if request.path.startswith("/operations/"):
            return self._operation(request.path)
        with self._lock:
            self.faults.take(request.method, request.path)
        version = request.query.get("api-version")
        if version != self.api_version:
            raise ArmRefusal(400, "InvalidApiVersionParameter", f"The api-version '{version}' is invalid.")
        for method, pattern, needed, handler in self._routes:
            found = pattern.fullmatch(request.path)
            if found is not None and method == request.method:
                has_identity = method == "PUT" and "userAssignedIdentities" in (request.body.get("identity") or {})
                self._authorize([*needed, *([_ASSIGN] if has_identity else [])], request.path)
                body = {"body": request.body} if method in _WITH_BODY else {}
                return handler(**self._known(found.groupdict()), **body)
        raise ArmRefusal(404, "InvalidResourceType", f"There is no {request.method} of {request.path} in this version.")

    def _authorize(self, needed: Sequence[str], path: str) -> None:
        permitted = {action.lower() for action in self.actions}
        for action in needed:
            self.used.add(action.lower())
            if action.lower() not in permitted:
                message = f"The client does not have authorization to perform action '{action}' over scope '{path}'."
                raise ArmRefusal(403, "AuthorizationFailed", message)

    @staticmethod
    def _known(names: dict[str, str]) -> dict[str, str]:
        """Check the subscription and the resource group, and return the other placeholders."""
        if names.pop("subscription") != SUBSCRIPTION:
            raise ArmRefusal(404, "SubscriptionNotFound", "The subscription could not be found.")
        if (group := names.pop("group", RESOURCE_GROUP)) != RESOURCE_GROUP:
            raise ArmRefusal(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
        return names

    def _begun(self, answer: ArmAnswer) -> str:
        """Remember an operation, and return the URL at which to ask about it."""
        assert answer.is_done is not None
        with self._lock:
            kind = "status" if answer.header == "Azure-AsyncOperation" else "result"
            path = f"/operations/{kind}/{uuid.uuid4()}"
            self._operations[path] = answer.is_done
        return f"{self.url}{path}?api-version={self.api_version}"

    def _operation(self, path: str) -> ArmAnswer:
        with self._lock:
            is_done = self._operations.get(path)
        is_status = path.startswith("/operations/status/")
        self._authorize(self.operation_actions["Azure-AsyncOperation" if is_status else "Location"], path)
        if is_done is None:
            raise ArmRefusal(404, "NotFound", "There is no such operation.")
        if is_status:
            return ArmAnswer(200, {"status": "Succeeded" if is_done() else "InProgress"})
        return ArmAnswer(204) if is_done() else ArmAnswer(202, is_done=is_done)


def role_actions(file: Path = ROLE) -> list[str]:
    """Read what the role in a file for Azure's command permits."""
    return list(json.loads(file.read_text())["Actions"])


def refuse_problems(problems: Sequence[str]) -> None:
    """Refuse a request in which something is wrong."""
    if problems:
        raise ArmRefusal(400, "InvalidRequestContent", f"The request content was invalid: {'; '.join(problems)}.")


def check_answer(problems: Sequence[str]) -> None:
    """Check that an answer is one that the service could give."""
    assert not problems, f"the service would never answer that: {'; '.join(problems)}"

"""A Lambda service and its logs, like those of AWS: the real clients talk to it, and functions run in sandboxes.

It has the queue of asynchronous invocations, which may deliver an event twice, execution environments that are used
again, limits on time, memory and concurrency, the lines around each invocation in the log, and a record of its own of
what it bills.
"""

import json
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import botocore.session

from lab.endpoints.aws_permissions import Need, Permissions, needs_of_functions, needs_of_logs
from lab.endpoints.aws_shapes import Refused, Request, RestJsonModel, check
from lab.endpoints.function_environments import (
    Environment,
    Environments,
    Image,
    Invocation,
    Outcome,
)
from lab.endpoints.function_logs import FunctionLogs
from lab.sandboxes.sandbox import SandboxHost

ACCOUNT, REGION = "123456789012", "us-east-1"
MAX_MEMORY_MIB, MAX_TIMEOUT_S, MAX_NAME, MAX_PAYLOAD_BYTES = 10_240, 900, 64, 2**20
USD_PER_GIB_S, USD_PER_REQUEST = 0.0000166667, 0.0000002
"""The price list of us-east-1, for x86."""
_RETRY_S = 60.0
"""Time before an event is tried again whose function has failed."""
_THROTTLED_S = 1.0
_POLL_S = 0.02


@dataclass
class Quotas:
    """What an account may have. New accounts have less than older ones."""

    concurrency: int = 1000
    memory_mib: int = MAX_MEMORY_MIB


@dataclass
class Faults:
    """What goes wrong, and how often it has."""

    num_doubled: int = 0
    """How many of the next events arrive twice."""
    doubled: list[str] = field(default_factory=list)
    """Members whose events have arrived twice."""
    num_retried: int = 0
    """Events that were tried again after a failure of their function."""


@dataclass(frozen=True)
class Charge:
    """What is billed for one invocation."""

    run: str
    title: str
    memory_mib: int
    init_ms: float
    duration_ms: float
    billed_ms: int
    status: str

    @property
    def usd(self) -> float:
        return self.billed_ms / 1000 * self.memory_mib / 1024 * USD_PER_GIB_S + USD_PER_REQUEST


@dataclass(eq=False)
class _Function:
    """A function that was made."""

    request: Mapping[str, Any]
    created_s: float
    max_retries: int = 2
    max_age_s: float = 21_600
    idle: list[Environment] = field(default_factory=list)
    is_deleted: bool = False

    @property
    def name(self) -> str:
        return str(self.request["FunctionName"])

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.name}"

    @property
    def run(self) -> str:
        return str(self.request.get("Tags", {}).get("zooid-run", ""))


class LambdaService:
    """The state of the service, and what it does."""

    def __init__(
        self,
        host: SandboxHost,
        image: Image,
        image_uri: str,
        role: str,
        permissions: Permissions,
        pending_s: float = 0.3,
    ) -> None:
        """`image_uri` is the only image in the registry, and `role` the only one that Lambda may assume.

        `permissions` are those of the user.
        """
        self.quotas = Quotas()
        self.faults = Faults()
        self.permissions = permissions
        self.calls: Counter[str] = Counter()
        """Requests by the names of the permissions that they need."""
        self.charges: list[Charge] = []
        self.logs = FunctionLogs()
        self._environments = Environments(host, image)
        self._image_uri = image_uri
        self._role = role
        self._pending_s = pending_s
        self._functions: dict[str, _Function] = {}
        self._in_flight: dict[str, tuple[Invocation, Environment | None]] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def authorize(self, needs: Iterator[Need]) -> None:
        """Refuse a request without the permissions that it needs."""
        for need in needs:
            self.permissions.check(need)
            self.calls[need.action] += 1

    def do(self, request: Request) -> dict[str, Any]:
        """Answer a request of the control API."""
        by_operation: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateFunction": self._create,
            "GetFunctionConfiguration": self._configuration,
            "DeleteFunction": self._delete,
            "PutFunctionEventInvokeConfig": self._configure_events,
            "GetAccountSettings": self._account,
            "Invoke": self._invoke,
        }
        if request.operation not in by_operation:
            raise Refused("ServiceException", 500, f"the laboratory has no {request.operation}")
        with self._lock:
            return by_operation[request.operation](request.parameters)

    def _account(self, _: dict[str, Any]) -> dict[str, Any]:
        limit = self.quotas.concurrency
        return {
            "AccountLimit": {"ConcurrentExecutions": limit, "UnreservedConcurrentExecutions": limit},
            "AccountUsage": {"FunctionCount": len(self._functions)},
        }

    def _create(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["FunctionName"]
        wrong = "InvalidParameterValueException"
        if name in self._functions:
            raise Refused("ResourceConflictException", 409, f"Function already exist: {name}")
        if len(name) > MAX_NAME:
            raise Refused(wrong, 400, f"Value at 'functionName' must have length less than or equal to {MAX_NAME}")
        for field_name, value, limit in (
            ("MemorySize", given.get("MemorySize", 128), self.quotas.memory_mib),
            ("Timeout", given.get("Timeout", 3), MAX_TIMEOUT_S),
        ):
            if value > limit:
                raise Refused(
                    wrong,
                    400,
                    f"'{field_name}' value failed to satisfy constraint: Member must have value "
                    f"less than or equal to {limit}",
                )
        if given.get("PackageType") != "Image" or given["Code"].get("ImageUri") != self._image_uri:
            raise Refused(
                wrong,
                400,
                f"Source image {given['Code'].get('ImageUri')} does not exist. Provide a valid source image.",
            )
        if given["Role"] != self._role:
            raise Refused(wrong, 400, "The role defined for the function cannot be assumed by Lambda.")
        self._functions[name] = _Function(given, time.monotonic())
        return self._told(self._functions[name])

    def _told(self, function: _Function) -> dict[str, Any]:
        is_active = time.monotonic() - function.created_s >= self._pending_s
        shown = {name: function.request[name] for name in ("FunctionName", "Role", "MemorySize", "Timeout")}
        return {**shown, "FunctionArn": function.arn, "State": "Active" if is_active else "Pending"}

    def _configuration(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._told(self._named(given["FunctionName"]))

    def _named(self, name: str) -> _Function:
        if name not in self._functions:
            arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"
            raise Refused("ResourceNotFoundException", 404, f"Function not found: {arn}")
        return self._functions[name]

    def _delete(self, given: dict[str, Any]) -> dict[str, Any]:
        function = self._named(given["FunctionName"])
        del self._functions[function.name]
        function.is_deleted = True  # invocations go on; events in the queue are lost
        for environment in function.idle:
            self._environments.stop(environment)
        return {}

    def _configure_events(self, given: dict[str, Any]) -> dict[str, Any]:
        function = self._named(given["FunctionName"])
        function.max_retries = given.get("MaximumRetryAttempts", 2)
        function.max_age_s = given.get("MaximumEventAgeInSeconds", 21_600)
        return {"FunctionArn": function.arn, "MaximumRetryAttempts": function.max_retries}

    def _invoke(self, given: dict[str, Any]) -> dict[str, Any]:
        function = self._named(given["FunctionName"])
        if self._told(function)["State"] != "Active":
            raise Refused("ResourceConflictException", 409, "The function is currently in the following state: Pending")
        if given.get("InvocationType") != "Event":
            raise Refused("InvalidParameterValueException", 400, "the laboratory has asynchronous invocations only")
        if len(given["Payload"]) > MAX_PAYLOAD_BYTES:
            raise Refused("RequestTooLargeException", 413, f"more than {MAX_PAYLOAD_BYTES} bytes")
        request_id = _new_id()
        json.loads(given["Payload"])
        self._queue(function, request_id, given["Payload"])
        if self.faults.num_doubled > 0:
            self.faults.num_doubled -= 1
            self.faults.doubled.append(json.loads(given["Payload"])["title"])
            self._queue(function, request_id, given["Payload"])
        return {"StatusCode": 202, "RequestId": request_id}

    def _queue(self, function: _Function, request_id: str, payload: bytes) -> None:
        thread = threading.Thread(target=self._deliver, args=(function, request_id, payload), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _deliver(self, function: _Function, request_id: str, payload: bytes) -> None:
        """Take an event from the queue when there is room, and try it again as often as the function says."""
        queued_s, num_tries = time.monotonic(), 0
        while not self._closing.is_set() and not function.is_deleted:
            if time.monotonic() - queued_s > function.max_age_s:
                return
            invocation = Invocation(request_id, payload, function.name, function.arn, int(function.request["Timeout"]))
            key = secrets.token_hex(8)
            with self._lock:
                has_room = len(self._in_flight) < self.quotas.concurrency
                if has_room:
                    self._in_flight[key] = (invocation, None)
            if not has_room:
                self._closing.wait(_THROTTLED_S)
                continue
            try:
                outcome = self._run(function, invocation, key)
            finally:
                with self._lock:
                    del self._in_flight[key]
            if outcome.status == "success" or num_tries >= function.max_retries:
                return
            num_tries += 1
            self.faults.num_retried += 1
            self._closing.wait(_RETRY_S)

    def _run(self, function: _Function, invocation: Invocation, key: str) -> Outcome:
        with self._lock:
            environment = function.idle.pop() if function.idle else None
        log = self.logs.writer(function.name)
        init_s, outcome = 0.0, Outcome("success")
        is_cold = environment is None
        if environment is None:
            stream = f"{time.strftime('%Y/%m/%d')}/[$LATEST]{secrets.token_hex(16)}"
            environment = Environment(function.name, int(function.request["MemorySize"]), stream)
            begun_s = time.monotonic()
            outcome = self._environments.start(environment, log)
            init_s = time.monotonic() - begun_s
            if outcome.status != "success":
                kind = f"\tError Type: {outcome.error_type}" if outcome.error_type else ""
                log(
                    environment.stream,
                    f"INIT_REPORT Init Duration: {init_s * 1000:.2f} ms\tPhase: init\tStatus: {outcome.status}{kind}\n",
                )
                init_s = 0.0  # the second try belongs to the invocation
        else:
            assert environment.sandbox is not None
            environment.sandbox.thaw()
        with self._lock:
            self._in_flight[key] = (invocation, environment)
        begun_s = time.monotonic()
        log(environment.stream, f"START RequestId: {invocation.request_id} Version: $LATEST\n")
        if outcome.status != "success":
            outcome = self._environments.start(environment, log, invocation.timeout_s)
        if outcome.status == "success":
            left_s = invocation.timeout_s - (time.monotonic() - begun_s)
            outcome = self._environments.run(environment, invocation, left_s)
        duration_s = time.monotonic() - begun_s
        if outcome.status == "timeout":
            duration_s = float(invocation.timeout_s)
            log(
                environment.stream,
                f"{time.strftime('%Y-%m-%dT%H:%M:%S.000Z')} {invocation.request_id} Task timed out "
                f"after {duration_s:.2f} seconds\n\n",
            )
        elif outcome.status == "error":
            log(
                environment.stream,
                f"RequestId: {invocation.request_id} Error: {outcome.message}\n{outcome.error_type}\n",
            )
        self._report(function, environment, invocation, outcome, init_s if is_cold else 0.0, duration_s)
        if self._environments.rest(environment):
            with self._lock:
                if not function.is_deleted:
                    function.idle.append(environment)
                    return outcome
        self._environments.stop(environment)
        return outcome

    def _report(
        self,
        function: _Function,
        environment: Environment,
        invocation: Invocation,
        outcome: Outcome,
        init_s: float,
        duration_s: float,
    ) -> None:
        """Bill an invocation, its initialisation included, and write the last lines of its log."""
        billed_ms = math.ceil(round((init_s + duration_s) * 1000, 2))
        parts = [
            f"REPORT RequestId: {invocation.request_id}",
            f"Duration: {duration_s * 1000:.2f} ms",
            f"Billed Duration: {billed_ms} ms",
            f"Memory Size: {environment.memory_mib} MB",
            f"Max Memory Used: {environment.peak_mib()} MB",
            *([f"Init Duration: {init_s * 1000:.2f} ms"] if init_s else []),
            *([f"Status: {outcome.status}"] if outcome.status != "success" else []),
            *([f"Error Type: {outcome.error_type}"] if outcome.error_type else []),
        ]
        charge = Charge(
            function.run,
            invocation.title,
            environment.memory_mib,
            init_s * 1000,
            duration_s * 1000,
            billed_ms,
            outcome.error_type or outcome.status,
        )
        with self._lock:
            self.charges.append(charge)
        log = self.logs.writer(function.name)
        log(environment.stream, f"END RequestId: {invocation.request_id}\n")
        log(environment.stream, "\t".join((*parts, "\n")))

    def lose(self, title: str) -> None:
        """Let the environment vanish that runs this member."""
        with self._lock:
            [environment] = [
                environment
                for invocation, environment in self._in_flight.values()
                if invocation.title == title and environment is not None
            ]
        assert environment.sandbox is not None
        environment.sandbox.kill()

    def running(self, run: str) -> list[str]:
        """List the members of a run whose invocations have not ended."""
        with self._lock:
            own = [invocation for invocation, _ in self._in_flight.values() if f"-{run}-" in invocation.function]
            return [invocation.title for invocation in own]

    def remains(self, run: str = "") -> list[str]:
        """List the functions and logs of a run, or of all runs."""
        with self._lock:
            functions = [function for name, function in self._functions.items() if f"-{run}" in name]
            found = [f"function {function.name}" for function in functions]
        found += [f"log group {group}" for group in self.logs.groups() if f"-{run}" in group]
        return found

    def left_files(self, run: str) -> list[str]:
        """List the folders of a run in environments that wait for their next invocation."""
        with self._lock:
            idle = [each for function in self._functions.values() for each in function.idle]
        listed = [path for each in idle if each.sandbox is not None for path in each.sandbox.files()]
        return [path for path in listed if f"/{run}" in path]

    def billed_usd(self, run: str) -> float:
        """Return what the invocations of a run cost, or those of all runs, such as the one that measures a job."""
        with self._lock:
            return math.fsum(charge.usd for charge in self.charges if run in ("", charge.run))

    def charges_of(self, run: str) -> list[Charge]:
        with self._lock:
            return [charge for charge in self.charges if charge.run == run]

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            environments = [environment for _, environment in self._in_flight.values() if environment is not None]
            environments += [environment for function in self._functions.values() for environment in function.idle]
        for environment in environments:
            self._environments.stop(environment)
        for thread in self._threads:
            thread.join(30.0)
        self._environments.close()


@contextmanager
def lambda_endpoint(service: LambdaService, access_key: str) -> Iterator[str]:
    """Serve the APIs of Lambda and of its logs, and yield their URL. Requests need to be signed with this key."""
    model = RestJsonModel("lambda")
    log_model = botocore.session.get_session().get_service_model("logs")
    target_prefix = f"{log_model.metadata['targetPrefix']}."

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            target = self.headers.get("X-Amz-Target", "")
            name = "logs" if target.startswith(target_prefix) else "lambda"
            try:
                self._check_signature(name)
                if name == "logs":
                    operation = target.removeprefix(target_prefix)
                    given = json.loads(body)
                    check(log_model.operation_model(operation).input_shape, given, operation)
                    service.authorize(needs_of_logs(operation, given, f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:"))
                    self._send(200, service.logs.do(operation, given))
                else:
                    request = model.understand(self.command, self.path, body, dict(self.headers.items()))
                    arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:"
                    service.authorize(needs_of_functions(request.operation, request.parameters, arn))
                    answer = service.do(request)
                    request_id = answer.pop("RequestId", None)
                    status = answer.pop("StatusCode", None)
                    if status is None:
                        model.check_answer(request.operation, answer)
                    self._send(status or 200, answer, request_id=request_id)
            except Refused as refused:
                self._send(refused.status, {"message": str(refused), "__type": refused.code}, refused.code)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def _check_signature(self, name: str) -> None:
            credential = self.headers.get("Authorization", "").partition("Credential=")[2].partition(",")[0]
            key, _, scope = credential.partition("/")
            if key != access_key:
                raise Refused(
                    "UnrecognizedClientException", 403, "The security token included in the request is invalid."
                )
            if not scope.endswith(f"/{REGION}/{name}/aws4_request"):
                raise Refused("SignatureDoesNotMatch", 403, f"Credential should be scoped to {name} in {REGION}")

        def _send(self, status: int, answer: dict[str, Any], error: str = "", request_id: str | None = None) -> None:
            content = b"" if status == 202 else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("x-amzn-RequestId", request_id or _new_id())
            if error:
                self.send_header("x-amzn-ErrorType", error)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        service.close()


def _new_id() -> str:
    text = secrets.token_hex(16)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

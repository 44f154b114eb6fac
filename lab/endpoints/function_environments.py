"""Execution environments of the Lambda endpoint: sandboxes in which the real runtime client runs a handler.

An environment serves one invocation after the other, and stands still between them. Its runtime asks the endpoint's
Runtime API for the next invocation, and tells it the result there.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from lab.endpoints.image_recipes import Recipe
from lab.sandboxes.confines import Confines
from lab.sandboxes.sandbox import Sandbox, SandboxHost

MIB = 2**20
MIB_PER_VCPU = 1769
_INIT_S = 10.0
"""The longest time that an initialisation may take."""
_TMP_BYTES = 512 * MIB
_USER = 993
_PATH = "/2018-06-01/runtime/"


class Outcome(NamedTuple):
    """How an invocation ended."""

    status: str
    """`success`, `error` or `timeout`."""
    error_type: str = ""
    message: str = ""


@dataclass(frozen=True)
class Image:
    """What the environments of all functions have in common."""

    recipe: Recipe
    folder: Path
    """The files of its working folder."""
    environment: Mapping[str, str]
    """Variables of the image, and the credentials of the role."""


@dataclass(eq=False)
class Invocation:
    """An event on its way through an environment."""

    request_id: str
    payload: bytes
    function: str
    arn: str
    timeout_s: int
    ended: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None

    def end(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
        self.ended.set()

    @property
    def title(self) -> str:
        return str(json.loads(self.payload).get("title", ""))


@dataclass(eq=False)
class Environment:
    """A sandbox with the runtime of one function."""

    function: str
    memory_mib: int
    stream: str
    sandbox: Sandbox | None = None
    waits: threading.Event = field(default_factory=threading.Event)
    """Set while the runtime waits for an invocation."""
    given: threading.Event = field(default_factory=threading.Event)
    init_error: Outcome | None = None
    invocation: Invocation | None = None

    @property
    def is_alive(self) -> bool:
        return self.sandbox is not None and self.sandbox.status is None

    def begin_anew(self) -> None:
        """Forget what the runtime said when it was initialised before."""
        self.init_error = None
        self.waits.clear()

    def peak_mib(self) -> int:
        """The most memory it ever had, as Lambda reports it: at most its size."""
        assert self.sandbox is not None
        return min(self.memory_mib, -(-self.sandbox.peak_bytes // MIB))


class Environments:
    """Starts environments, and serves their Runtime API."""

    def __init__(self, host: SandboxHost, image: Image) -> None:
        self._host = host
        self._image = image
        self._by_address: dict[str, Environment] = {}
        self._lock = threading.Condition()
        handler = type("RuntimeApi", (_RuntimeApi,), {"environments": self})
        self._server = ThreadingHTTPServer((host.caller_address, 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="runtime-api")
        self._thread.start()

    def start(self, environment: Environment, log: Callable[[str, str], None], limit_s: float = _INIT_S) -> Outcome:
        """Start the sandbox of an environment, and wait until its runtime is initialised or has failed."""
        environment.begin_anew()
        address, port = self._server.server_address[:2]
        variables = {
            **self._image.environment,
            "AWS_LAMBDA_RUNTIME_API": f"{address!s}:{port}",
            "AWS_LAMBDA_FUNCTION_NAME": environment.function,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(environment.memory_mib),
            "AWS_LAMBDA_LOG_STREAM_NAME": environment.stream,
            "HOME": "/home/sbx_user1051",
        }
        confines = Confines(
            memory_bytes=environment.memory_mib * MIB,
            vcpus=environment.memory_mib / MIB_PER_VCPU,
            tmp_bytes=_TMP_BYTES,
            has_init=True,
            user_id=_USER,
            environment=variables,
            folders={self._image.recipe.folder: self._image.folder},
            working_folder=self._image.recipe.folder,
        )
        stream = environment.stream
        sandbox = self._host.start(
            self._image.recipe.command, confines, on_output=lambda line: log(stream, line.decode("utf-8", "replace"))
        )
        environment.sandbox = sandbox
        with self._lock:
            self._by_address[sandbox.address] = environment
            self._lock.notify_all()
        deadline_s = time.monotonic() + limit_s
        while not environment.waits.wait(0.02):
            if environment.init_error is not None:
                self.stop(environment)
                return environment.init_error
            if sandbox.status is not None:
                return Outcome("error", "Runtime.ExitError", f"exit status {sandbox.status}")
            if time.monotonic() > deadline_s:
                self.stop(environment)
                return Outcome("timeout")
        return Outcome("success")

    def run(self, environment: Environment, invocation: Invocation, limit_s: float) -> Outcome:
        """Give an invocation to an environment that waits for one, and wait for its end."""
        sandbox = environment.sandbox
        assert sandbox is not None
        environment.invocation = invocation
        environment.waits.clear()
        environment.given.set()
        deadline_s = time.monotonic() + limit_s
        while not invocation.ended.wait(0.02):
            if sandbox.status is not None:
                is_memory = sandbox.ran_out_of_memory
                kind = "Runtime.OutOfMemory" if is_memory else "Runtime.ExitError"
                ended = "signal: killed" if sandbox.status in (-9, 137) else f"exit status {sandbox.status}"
                invocation.end(Outcome("error", kind, f"Runtime exited with error: {ended}"))
            elif time.monotonic() > deadline_s:
                invocation.end(Outcome("timeout"))
                self.stop(environment)
        assert invocation.outcome is not None
        return invocation.outcome

    def rest(self, environment: Environment) -> bool:
        """Let an environment stand still until it is needed again; False if it has ended."""
        deadline_s = time.monotonic() + _INIT_S
        while not environment.waits.wait(0.02):
            if not environment.is_alive or time.monotonic() > deadline_s:
                return False
        assert environment.sandbox is not None
        environment.sandbox.freeze()
        return environment.is_alive

    def stop(self, environment: Environment) -> None:
        """End an environment at once."""
        sandbox = environment.sandbox
        if sandbox is not None:
            sandbox.kill()
            sandbox.wait()
            with self._lock:
                if self._by_address.get(sandbox.address) is environment:
                    del self._by_address[sandbox.address]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def at(self, address: str) -> Environment:
        """Return the environment at an address. Its first request may come before its start has returned."""
        with self._lock:
            self._lock.wait_for(lambda: address in self._by_address, timeout=_INIT_S)
            return self._by_address[address]


class _RuntimeApi(BaseHTTPRequestHandler):
    """The Runtime API, as the documents of Lambda describe it."""

    environments: Environments
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path != f"{_PATH}invocation/next":
            self._answer(404, {"errorMessage": self.path, "errorType": "NotFound"})
            return
        environment = self.environments.at(self.client_address[0])
        sandbox = environment.sandbox
        environment.waits.set()
        while not environment.given.wait(0.2):
            if sandbox is None or sandbox.status is not None:
                self.close_connection = True
                return
        environment.given.clear()
        invocation = environment.invocation
        assert invocation is not None
        self._answer(
            200,
            invocation.payload,
            {
                "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
                "Lambda-Runtime-Deadline-Ms": str(int(1000 * (time.time() + invocation.timeout_s))),
                "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
                "Lambda-Runtime-Trace-Id": f"Root=1-{secrets.token_hex(4)}-{secrets.token_hex(12)}",
            },
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        environment = self.environments.at(self.client_address[0])
        kind = self.headers.get("Lambda-Runtime-Function-Error-Type", "Unhandled")
        if self.path == f"{_PATH}init/error":
            environment.init_error = Outcome("error", kind, body.decode("utf-8", "replace"))
            self._answer(202, {"status": "OK"})
            return
        invocation = environment.invocation
        _, _, rest = self.path.partition(f"{_PATH}invocation/")
        request_id, _, what = rest.partition("/")
        if invocation is None or request_id != invocation.request_id or what not in ("response", "error"):
            self._answer(400, {"errorMessage": f"invalid request id {request_id}", "errorType": "InvalidRequestID"})
            return
        self._answer(202, {"status": "OK"})
        if what == "response":
            invocation.end(Outcome("success"))
        else:
            told: dict[str, Any] = json.loads(body or b"{}")
            invocation.end(Outcome("error", str(told.get("errorType", kind)), str(told.get("errorMessage", ""))))

    def _answer(self, status: int, body: bytes | dict[str, Any], headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:  # the sandbox has ended
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

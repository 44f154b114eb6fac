"""A service of MicroVMs like that of AWS Lambda: the real client talks to it, and MicroVMs are sandboxes.

What is not documented is taken as the less convenient: a MicroVM lives on and is billed when its program has ended.
"""

import io
import itertools
import json
import math
import secrets
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lab.endpoints import microvm_guest
from lab.endpoints.aws_shapes import Refused, Request, RestJsonModel
from lab.sandboxes.confines import Confines
from lab.sandboxes.sandbox import PYTHON, Sandbox, SandboxHost

ACCOUNT, REGION = "123456789012", "us-east-1"
BASE_IMAGE = f"arn:aws:lambda:{REGION}:aws:microvm-image:al2023-1"
_MIB, _GIB = 2**20, 2**30
_SIZES_MIB = (512, 1024, 2048, 4096, 8192)
_CEILING = 4
_MIB_PER_VCPU = 2048
_DISK_BYTES = 8 * _GIB
_SHARED_MEMORY_BYTES = 64 * _MIB
_PAGE = 50
_GRACE_S = 5.0
"""Time beyond that of the hook after which a MicroVM is cut off."""

USD_PER_VCPU_S, USD_PER_GIB_S, USD_PER_GIB_READ = 0.0000276944, 0.0000036667, 0.0015467699
"""The price list of us-east-1, for Arm."""
SNAPSHOT_GIB = 2.0
"""How much of a snapshot is read when a MicroVM starts."""


@dataclass(frozen=True)
class _Image:
    arn: str
    folder: Path
    """Its files, which stand for those of the container that was built."""
    command: list[str]
    request: dict[str, Any]
    created_at_s: float

    @property
    def baseline_mib(self) -> int:
        return int(self.request["resources"][0]["minimumMemoryInMiB"])


@dataclass
class _Microvm:
    id: str
    image: _Image
    request: dict[str, Any]
    started_at_s: float
    state: str = "PENDING"
    reason: str = ""
    terminated_at_s: float | None = None
    sandbox: Sandbox | None = None
    hooks: list[dict[str, Any]] = field(default_factory=list)
    """Hooks that were called, with their answers."""
    output: list[str] = field(default_factory=list)


class MicrovmService:
    """The images and MicroVMs of one account."""

    def __init__(
        self, host: SandboxHost, folder: Path, fetch: Callable[[str], bytes], role_environment: Mapping[str, str]
    ) -> None:
        """`fetch` reads an object of S3; `role_environment` is what the execution role gives to a MicroVM."""
        self._host = host
        self._folder = folder
        self._fetch = fetch
        self._role_environment = role_environment
        self._images: dict[str, _Image] = {}
        self._microvms: dict[str, _Microvm] = {}
        self._by_token: dict[str, _Microvm] = {}
        self._lock = threading.RLock()
        self._count = itertools.count()
        guest = folder / "guest"
        guest.mkdir()
        (guest / "guest.py").write_text(Path(microvm_guest.__file__).read_text())

    def do(self, request: Request) -> dict[str, Any]:
        """Answer a request that the model allows."""
        by_operation: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateMicrovmImage": self._create_image,
            "GetMicrovmImage": self._get_image,
            "GetMicrovmImageVersion": self._get_image_version,
            "RunMicrovm": self._run,
            "GetMicrovm": lambda given: self._described(self._found(given)),
            "ListMicrovms": self._list,
            "TerminateMicrovm": self._terminate,
        }
        if request.operation not in by_operation:
            raise Refused("InternalServerException", 500, f"the laboratory has no {request.operation}")
        with self._lock:
            return by_operation[request.operation](request.parameters)

    def _create_image(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["name"]
        arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:microvm-image:{name}"
        hooks = given.get("hooks", {})
        if arn in self._images:
            raise Refused("ValidationException", 400, f"A MicroVM image with the name '{name}' already exists")
        if given["baseImageArn"] != BASE_IMAGE:
            raise Refused("ResourceNotFoundException", 404, f"there is no base image {given['baseImageArn']}")
        if [each["minimumMemoryInMiB"] for each in given.get("resources", [])] not in [[size] for size in _SIZES_MIB]:
            raise Refused("ValidationException", 400, f"minimumMemoryInMiB must be one of {_SIZES_MIB}")
        if [each["architecture"] for each in given.get("cpuConfigurations", [{"architecture": "ARM_64"}])] != [
            "ARM_64"
        ]:
            raise Refused("ValidationException", 400, "MicroVMs have the architecture ARM_64 only")
        if hooks.get("microvmHooks") and hooks.get("microvmImageHooks", {}).get("ready") != "ENABLED":
            raise Refused("ValidationException", 400, "an image with MicroVM hooks needs the hook `ready`")
        folder = self._folder / f"image{next(self._count)}"
        with zipfile.ZipFile(io.BytesIO(self._fetch(given["codeArtifact"]["uri"]))) as archive:
            archive.extractall(folder)
        self._images[arn] = image = _Image(arn, folder, _command_in(folder / "Dockerfile"), given, time.time())
        echoed = {key: value for key, value in given.items() if key != "clientToken"}
        return {**echoed, **self._image_state(image), "imageVersion": "1.0"}

    def _image_state(self, image: _Image) -> dict[str, Any]:
        """Describe an image; it is built at once here."""
        known = {"imageArn": image.arn, "name": image.request["name"], "createdAt": image.created_at_s}
        return {**known, "state": "CREATED", "latestActiveImageVersion": "1.0"}

    def _image(self, arn: str) -> _Image:
        if arn not in self._images:
            raise Refused("ResourceNotFoundException", 404, f"MicroVM image {arn} was not found")
        return self._images[arn]

    def _get_image(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._image_state(self._image(given["imageIdentifier"]))

    def _get_image_version(self, given: dict[str, Any]) -> dict[str, Any]:
        image = self._image(given["imageIdentifier"])
        if given["imageVersion"] != "1.0":
            raise Refused("ResourceNotFoundException", 404, f"version {given['imageVersion']} was not found")
        kept = ("baseImageArn", "buildRoleArn", "codeArtifact", "resources", "hooks", "cpuConfigurations")
        echoed = {key: image.request[key] for key in kept if key in image.request}
        state = {"imageArn": image.arn, "imageVersion": "1.0", "createdAt": image.created_at_s}
        return {**echoed, **state, "state": "SUCCESSFUL", "status": "ACTIVE"}

    def _run(self, given: dict[str, Any]) -> dict[str, Any]:
        image = self._image(given["imageIdentifier"])
        token = given.get("clientToken", secrets.token_hex(16))
        known = self._by_token.get(token)
        if known is not None:
            if known.request != given:
                raise Refused("ConflictException", 409, "the client token was used with other parameters")
            return self._described(known)
        microvm = _Microvm(f"microvm-{next(self._count):08x}", image, given, time.time())
        self._microvms[microvm.id] = self._by_token[token] = microvm
        threading.Thread(target=self._live, args=(microvm,), name=microvm.id, daemon=True).start()
        return self._described(microvm)

    def _described(self, microvm: _Microvm) -> dict[str, Any]:
        given = microvm.request
        kept = ("executionRoleArn", "idlePolicy", "ingressNetworkConnectors", "egressNetworkConnectors")
        described = {
            "microvmId": microvm.id,
            "state": microvm.state,
            "endpoint": f"https://{microvm.id}.lambda-microvm.{REGION}.on.aws",
            "imageArn": microvm.image.arn,
            "imageVersion": "1.0",
            "maximumDurationInSeconds": given.get("maximumDurationInSeconds", 28_800),
            "startedAt": microvm.started_at_s,
        }
        described |= {key: given[key] for key in kept if key in given}
        described |= {"stateReason": microvm.reason} if microvm.reason else {}
        return described | ({} if microvm.terminated_at_s is None else {"terminatedAt": microvm.terminated_at_s})

    def _found(self, given: dict[str, Any]) -> _Microvm:
        if given["microvmIdentifier"] not in self._microvms:
            raise Refused("ResourceNotFoundException", 404, f"MicroVM {given['microvmIdentifier']} was not found")
        return self._microvms[given["microvmIdentifier"]]

    def _list(self, given: dict[str, Any]) -> dict[str, Any]:
        wanted = given.get("imageIdentifier")
        chosen = [each for each in self._microvms.values() if wanted in (None, each.image.arn)]
        first = int(given.get("nextToken", 0))
        most = given.get("maxResults", _PAGE)
        items = [
            {key: self._described(each)[key] for key in ("microvmId", "state", "imageArn", "imageVersion", "startedAt")}
            for each in chosen[first : first + most]
        ]
        return {"items": items} | ({"nextToken": str(first + most)} if first + most < len(chosen) else {})

    def _terminate(self, given: dict[str, Any]) -> dict[str, Any]:
        self._begin_to_end(self._found(given), "")
        return {}

    def _begin_to_end(self, microvm: _Microvm, reason: str) -> None:
        """Call the last hook, and cut the MicroVM off when it takes too long; does nothing if it ends already."""
        with self._lock:
            if microvm.state in ("TERMINATING", "TERMINATED"):
                return
            microvm.state, microvm.reason = "TERMINATING", reason
            sandbox = microvm.sandbox
        if sandbox is not None:
            self._let_end(microvm, sandbox)

    def _let_end(self, microvm: _Microvm, sandbox: Sandbox) -> None:
        hooks = microvm.image.request.get("hooks", {}).get("microvmHooks", {})
        sandbox.signal(15)
        cut_off = threading.Timer(hooks.get("terminateTimeoutInSeconds", 1) + _GRACE_S, sandbox.kill)
        cut_off.daemon = True
        cut_off.start()

    def _live(self, microvm: _Microvm) -> None:
        """Let a MicroVM run to its end, in a thread of its own."""
        given, image = microvm.request, microvm.image
        hooks = image.request.get("hooks", {})
        order = {
            "command": [PYTHON if each == "python3" else each for each in image.command],
            "port": hooks["port"],
            "payload": given.get("runHookPayload", ""),
            "ready_timeout_s": hooks["microvmImageHooks"].get("readyTimeoutInSeconds", 30),
            "run_timeout_s": hooks["microvmHooks"].get("runTimeoutInSeconds", 1),
            "terminate_timeout_s": hooks["microvmHooks"].get("terminateTimeoutInSeconds", 1),
        }
        confines = Confines(
            memory_bytes=_CEILING * image.baseline_mib * _MIB,
            vcpus=_CEILING * image.baseline_mib / _MIB_PER_VCPU,
            tmp_bytes=_DISK_BYTES,
            shared_memory_bytes=_SHARED_MEMORY_BYTES,
            is_read_only=False,
            has_init=True,
            environment={**image.request.get("environmentVariables", {}), **self._role_environment},
            folders={"/opt/guest": self._folder / "guest", "/app": image.folder},
        )
        command = [PYTHON, "/opt/guest/guest.py"]
        sandbox = self._host.start(
            command, confines, stdin=json.dumps(order).encode(), on_output=lambda line: self._hear(microvm, line)
        )
        with self._lock:
            microvm.sandbox = sandbox
            if microvm.state == "TERMINATING":
                self._let_end(microvm, sandbox)
        age_s = time.time() - microvm.started_at_s
        limit_s = given.get("maximumDurationInSeconds", 28_800) - age_s
        limit = threading.Timer(limit_s, self._begin_to_end, (microvm, "The maximum duration was reached."))
        limit.daemon = True
        limit.start()
        sandbox.wait()
        limit.cancel()
        with self._lock:
            microvm.state, microvm.terminated_at_s = "TERMINATED", sandbox.ended_at_s

    def _hear(self, microvm: _Microvm, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if not text.startswith(microvm_guest.MARK):
            microvm.output.append(text)
            return
        told = json.loads(text.removeprefix(microvm_guest.MARK))
        microvm.hooks.append(told)
        with self._lock:
            if told["hook"] == "run" and told["status"] == 200 and microvm.state == "PENDING":
                microvm.state = "RUNNING"
            elif told["hook"] != "terminate" and told["status"] != 200 and microvm.state == "PENDING":
                microvm.state, microvm.reason = "TERMINATING", f"The hook {told['hook']} failed."

    def named(self, token: str) -> _Microvm:
        """Return the MicroVM that was asked for with this client token."""
        return self._by_token[token]

    def take(self, token: str) -> None:
        """Let a MicroVM vanish at once, as when its machine fails."""
        microvm = self.named(token)
        with self._lock:
            assert microvm.sandbox is not None
            microvm.reason = "The MicroVM failed."
            microvm.sandbox.kill()

    def replace(self, token: str) -> None:
        """End a MicroVM in good order though nobody has asked for it, as before maintenance."""
        self._begin_to_end(self.named(token), "The MicroVM was replaced.")

    def living(self, prefix: str) -> list[str]:
        """List the MicroVMs that have not ended, of those whose client tokens begin so."""
        return [each.id for each in self._of(prefix) if each.state != "TERMINATED"]

    def billed_usd(self, prefix: str) -> float:
        """Return what MicroVMs cost that have ended: the seconds begun, as if each had used all that it had."""
        return math.fsum(self._cost_usd(each) for each in self._of(prefix))

    def _of(self, prefix: str) -> list[_Microvm]:
        with self._lock:
            return [each for token, each in self._by_token.items() if token.startswith(prefix)]

    @staticmethod
    def _cost_usd(microvm: _Microvm) -> float:
        if microvm.terminated_at_s is None:
            return 0.0
        gib = _CEILING * microvm.image.baseline_mib / 1024
        usd_per_s = gib / 2 * USD_PER_VCPU_S + gib * USD_PER_GIB_S
        return math.ceil(microvm.terminated_at_s - microvm.started_at_s) * usd_per_s + SNAPSHOT_GIB * USD_PER_GIB_READ


def _command_in(dockerfile: Path) -> list[str]:
    """Return the last command of a Dockerfile, in the form that names no shell."""
    commands = [line.removeprefix("CMD ") for line in dockerfile.read_text().splitlines() if line.startswith("CMD [")]
    if not commands:
        raise Refused("ValidationException", 400, "the Dockerfile has no CMD")
    command: list[str] = json.loads(commands[-1])
    return command


@contextmanager
def microvm_endpoint(
    host: SandboxHost, fetch: Callable[[str], bytes], role_environment: Mapping[str, str], access_key: str
) -> Iterator[tuple[MicrovmService, str]]:
    """Yield the service and its URL. Requests need to be signed with this access key for the region and the service."""
    model = RestJsonModel("lambda-microvms")
    scope = f"/{REGION}/lambda/aws4_request"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                credential = self.headers.get("Authorization", "").partition("Credential=")[2].partition(",")[0]
                if not credential.startswith(f"{access_key}/") or not credential.endswith(scope):
                    raise Refused("AccessDeniedException", 403, "the request is not signed for this account")
                request = model.understand(self.command, self.path, body)
                answer = service.do(request)
                model.check_answer(request.operation, answer)
                self._send(200, json.dumps(answer).encode())
            except Refused as refused:
                content = json.dumps({"message": str(refused)}).encode()
                self._send(refused.status, content, {"x-amzn-ErrorType": refused.code})

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def _send(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with tempfile.TemporaryDirectory(prefix="zooid-microvms-") as folder:
        service = MicrovmService(host, Path(folder), fetch, role_environment)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield service, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

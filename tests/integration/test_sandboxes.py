"""Sandboxes hold a program as serverless platforms do, in files, memory, time and network, and leave nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import zooid
from lab.sandboxes.confines import Confines
from lab.sandboxes.sandbox import PYTHON, Sandbox, SandboxFailed, SandboxHost
from lab.waiting import wait_until
from tests.integration.laboratory import sandboxes_or_skip
from tests.integration.leftovers import remaining, traces_of
from zooid.core.errors import InputError

pytestmark = pytest.mark.timeout(60)

MIB = 2**20
FUNCTION = Confines(memory_bytes=256 * MIB, vcpus=1.0, tmp_bytes=4 * MIB, has_init=True, user_id=993)
CONTAINER = Confines(
    memory_bytes=256 * MIB,
    vcpus=1.0,
    tmp_bytes=4 * MIB,
    shared_memory_bytes=8 * MIB,
    is_read_only=False,
    accepts_connections=True,
    shows_cgroups=True,
)
END_S = 30.0
REFUSED_S = 0.5
"""Nobody hears of a packet that is dropped, so a connection that is not let in is given up after this time."""

WRITE = """
import os, sys
for folder in sys.argv[1:]:
    try:
        with open(f"{folder}/note", "w") as file:
            print(file.name)
    except OSError as error:
        pass
"""
FILL = """
import errno, os
written = 0
try:
    with open("/tmp/large", "wb", buffering=0) as file:
        while True:
            written += file.write(bytes(2**16))
except OSError as error:
    print(errno.errorcode[error.errno], written)
"""
SEMAPHORE = "import multiprocessing; multiprocessing.Semaphore()"
ALLOCATE = "import sys; print(len(bytearray(int(sys.argv[1]))))"
BURN = """
import os, time
start_s = time.monotonic()
is_child = os.fork() == 0
while time.process_time() < 0.1:
    pass
if not is_child:
    os.wait()
    print(time.monotonic() - start_s)
"""
LISTEN = """
import socket, threading
server = socket.create_server(("", 0))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", server.getsockname()[1]))
socket.create_connection(server.getsockname()).close()
server.accept()[0].close()
print(server.getsockname()[1], flush=True)
def receive():
    print(datagrams.recv(10).decode(), flush=True)
threading.Thread(target=receive, daemon=True).start()
while True:
    server.accept()[0].close()
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("connected")
except OSError as error:
    print(type(error).__name__, error)
"""
NOTICE_GAPS = """
import time
last_s = time.monotonic()
print("runs", flush=True)
while True:
    now_s = time.monotonic()
    if now_s > last_s + 0.3:
        print("gap", flush=True)
    last_s = now_s
"""
SANDBOX_OF_A_PROCESS = """
import json, time
from lab.waiting import wait_until
from tests.integration.laboratory import sandboxes_or_skip
from tests.integration.leftovers import traces_of
from tests.integration.test_sandboxes import CONTAINER, START_ANOTHER
with sandboxes_or_skip() as host:
    sandbox = host.start(START_ANOTHER, CONTAINER)
    wait_until(lambda: len(sandbox.processes()) == 3)
    print(json.dumps(traces_of(sandbox.processes(), host.caller_address, host.folder)), flush=True)
    time.sleep(60)
"""
START_ANOTHER = ["sh", "-c", "setsid sleep 60 & sleep 60"]


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with sandboxes_or_skip() as made:
        yield made


class Program:
    """A program in a sandbox, and the lines that it has printed."""

    def __init__(
        self, host: SandboxHost, command: Sequence[str], confines: Confines = FUNCTION, stdin: bytes | None = None
    ) -> None:
        self.lines: list[str] = []
        self.sandbox = host.start(command, confines, stdin=stdin, on_output=self._take)

    def _take(self, line: bytes) -> None:
        self.lines.append(line.decode().strip())

    def first_line(self) -> str:
        wait_until(lambda: self.lines)
        return self.lines[0]


def python(code: str, *arguments: object) -> list[str]:
    return [PYTHON, "-S", "-c", code, *map(str, arguments)]


def output(host: SandboxHost, command: Sequence[str], confines: Confines = FUNCTION, stdin: bytes | None = None) -> str:
    program = Program(host, command, confines, stdin)
    assert program.sandbox.wait(END_S) == 0, program.lines
    return "\n".join(program.lines)


def traces(host: SandboxHost, sandbox: Sandbox) -> list[str]:
    return traces_of(sandbox.processes(), host.caller_address, host.folder)


class TestFiles:
    def test_a_function_writes_to_tmp_alone(self, host: SandboxHost) -> None:
        folders = [
            "",
            "/etc",
            "/home",
            "/opt",
            "/root",
            "/run",
            "/usr",
            "/var/tmp",
            "/dev",
            "/sys",
            Path(PYTHON).parent,
        ]
        for user_id in (0, 993):
            confines = replace(FUNCTION, user_id=user_id)
            assert output(host, python(WRITE, *folders, "/tmp"), confines) == "/tmp/note"

    def test_a_container_writes_to_its_root(self, host: SandboxHost) -> None:
        expected = [f"{folder}/note" for folder in ("", "/etc", "/root", "/var/tmp", "/dev/shm", "/tmp")]
        for _ in range(2):
            written = output(
                host, python(WRITE, "", "/etc", "/root", "/var/tmp", "/dev/shm", "/tmp", "/usr"), CONTAINER
            )
            assert written.split() == expected
        assert not any(Path(path).exists() for path in expected)

    @pytest.mark.parametrize("confines", [FUNCTION, CONTAINER], ids=["function", "container"])
    def test_tmp_is_full_at_its_size(self, host: SandboxHost, confines: Confines) -> None:
        error, written = output(host, python(FILL), confines).split()
        assert error == "ENOSPC"
        assert 0.9 * confines.tmp_bytes <= int(written) <= confines.tmp_bytes

    def test_what_a_program_made_is_listed_while_it_runs(self, host: SandboxHost, tmp_path: Path) -> None:
        for confines, made in ((FUNCTION, ["/tmp/a", "/tmp/a/b"]), (CONTAINER, ["/root/c", "/tmp/a", "/tmp/a/b"])):
            script = "mkdir /tmp/a; touch /tmp/a/b; ! touch /root/c; echo done; exec sleep 60"
            program = Program(host, ["sh", "-c", script], replace(confines, folders={"/var/task": tmp_path}))
            wait_until(lambda: "done" in program.lines)  # noqa: B023
            assert program.sandbox.files() == made
            program.sandbox.kill()
            program.sandbox.wait(END_S)
            assert program.sandbox.files() == []

    def test_this_computers_files_are_invisible(self, host: SandboxHost, tmp_path: Path) -> None:
        own = [Path(zooid.__file__).parents[1], Path(__file__), Path(sys.prefix), tmp_path, host.folder, "/dev/vda"]
        paths = " ".join(map(str, own))
        for confines in (FUNCTION, CONTAINER):
            assert (
                output(host, ["sh", "-c", f"for path in {paths}; do ! test -e $path || echo $path; done"], confines)
                == ""
            )
        code = "import msgspec\ntry: import zooid\nexcept ModuleNotFoundError: print('absent')"
        assert output(host, [PYTHON, "-c", code]) == "absent"

    def test_given_folders_are_visible_and_read_only(self, host: SandboxHost, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)  # the program is not root
        (tmp_path / "module.py").write_text("print('imported', flush=True)")
        for confines in (FUNCTION, CONTAINER):
            given = replace(confines, folders={"/var/task": tmp_path, "/var/run/inner": tmp_path})
            program = Program(
                host,
                python("import module; open('note', 'w')"),
                replace(given, working_folder="/var/task"),
            )
            assert program.sandbox.wait(END_S) == 1
            assert program.lines[0] == "imported", program.lines
            assert "Read-only file system: 'note'" in program.lines[-1]
            assert output(host, ["ls", "/run/inner"], given) == "module.py"


class TestProcesses:
    def test_the_environment_is_what_is_given(self, host: SandboxHost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LEAKED", "1")
        confines = replace(FUNCTION, environment={"GIVEN": "1", "PATH": "/usr/bin"}, user_id=0)
        assert sorted(output(host, ["/usr/bin/env"], confines).split()) == ["GIVEN=1", "PATH=/usr/bin"]

    def test_host_processes_are_invisible(self, host: SandboxHost) -> None:
        with_another = Program(host, START_ANOTHER)
        assert output(host, ["sh", "-c", "echo /proc/[0-9]*"], CONTAINER) == "/proc/1"
        wait_until(lambda: len(with_another.sandbox.processes()) == 3)
        assert {process.program for process in with_another.sandbox.processes()} == {"dash", "sleep"}
        with_another.sandbox.kill()
        assert with_another.sandbox.wait(END_S) == -signal.SIGKILL
        assert with_another.sandbox.processes() == []

    def test_each_has_its_own_name_and_user(self, host: SandboxHost) -> None:
        command = ["sh", "-c", "hostname; id -u; cat /proc/self/cgroup | cut -d: -f3 | sort -u"]
        first, second = Program(host, command), Program(host, command, CONTAINER)
        for program, user in ((first, "993"), (second, "0")):
            assert program.sandbox.wait(END_S) == 0
            assert program.lines == [program.sandbox.name, user, "/"]
        assert first.sandbox.name != second.sandbox.name

    def test_multiprocessing_needs_shared_memory(self, host: SandboxHost) -> None:
        program = Program(host, python(SEMAPHORE))
        assert program.sandbox.wait(END_S) == 1
        assert "Error" in program.lines[-1]
        assert output(host, python(SEMAPHORE), CONTAINER) == ""

    @pytest.mark.parametrize("command", ["mount -t tmpfs x /tmp", "mknod /tmp/x b 7 0", "ip link set eth0 down"])
    def test_even_root_may_not_change_the_sandbox(self, host: SandboxHost, command: str) -> None:
        program = Program(host, command.split(), CONTAINER)
        assert program.sandbox.wait(END_S) != 0
        assert "ermi" in program.lines[0]

    def test_input_status_and_times(self, host: SandboxHost, tmp_path: Path) -> None:
        assert output(host, ["cat"], stdin=b"sent\n") == "sent"
        assert output(host, ["cat"], CONTAINER) == ""
        before_s = time.time()
        with (tmp_path / "log").open("wb") as log:
            sandbox = host.start(["sh", "-c", "echo out; echo err >&2; exit 3"], FUNCTION, on_output=log)
            assert sandbox.wait(END_S) == sandbox.status == 3
        assert (tmp_path / "log").read_text() == "out\nerr\n"
        assert sandbox.ended_at_s is not None
        assert before_s <= sandbox.started_at_s <= sandbox.ended_at_s <= time.time()

    def test_signals_reach_the_program(self, host: SandboxHost) -> None:
        for confines in (FUNCTION, CONTAINER):
            program = Program(
                host, ["sh", "-c", "trap 'echo told; exit 7' TERM; echo up; while :; do sleep 0.01; done"], confines
            )
            assert program.first_line() == "up"
            program.sandbox.signal(signal.SIGTERM)
            assert program.sandbox.wait(END_S) == 7
            assert program.lines == ["up", "told"]
            program.sandbox.signal(signal.SIGTERM)

    def test_process_1_is_not_ended_by_a_signal_without_a_handler(self, host: SandboxHost) -> None:
        with_init, process_1 = Program(host, ["sleep", "60"]), Program(host, ["sleep", "60"], CONTAINER)
        for program in (with_init, process_1):
            program.sandbox.signal(signal.SIGTERM)
        assert with_init.sandbox.wait(END_S) == -signal.SIGTERM
        assert process_1.sandbox.status is None
        process_1.sandbox.signal(signal.SIGKILL)
        assert process_1.sandbox.wait(END_S) == -signal.SIGKILL

    def test_what_cannot_be_started_is_an_error(self, host: SandboxHost, tmp_path: Path) -> None:
        with pytest.raises(SandboxFailed, match=r"absent could not be started in a sandbox: .*No such file"):
            host.start(["absent"], FUNCTION)
        with pytest.raises(SandboxFailed, match=r"mkdir|Read-only file system"):
            host.start(["true"], replace(FUNCTION, folders={"/usr/absent": tmp_path}))
        with pytest.raises(InputError, match="empty"):
            host.start([], FUNCTION)
        for wrong in ({"memory_bytes": 1}, {"vcpus": 0.0}, {"tmp_bytes": 0}, {"working_folder": "here"}):
            with pytest.raises(InputError, match=next(iter(wrong)).replace("working_folder", "absolute path")):
                replace(FUNCTION, **wrong)


class TestSizes:
    def test_the_kernel_kills_what_needs_more_memory(self, host: SandboxHost) -> None:
        small = replace(FUNCTION, memory_bytes=64 * MIB)
        for confines in (small, replace(small, has_init=False)):
            over = Program(host, python(ALLOCATE, 100 * MIB), confines).sandbox
            assert over.wait(END_S) == -signal.SIGKILL
            assert over.ran_out_of_memory
            assert 60 * MIB <= over.peak_bytes <= 64 * MIB
        within = Program(host, python(ALLOCATE, 40 * MIB), small).sandbox
        assert within.wait(END_S) == 0
        assert not within.ran_out_of_memory
        assert 40 * MIB <= within.peak_bytes <= 64 * MIB

    def test_processor_time_is_limited(self, host: SandboxHost) -> None:
        assert float(output(host, python(BURN), replace(FUNCTION, vcpus=0.25))) >= 0.9 * 0.2 / 0.25

    def test_limits_are_visible_in_a_container_alone(self, host: SandboxHost) -> None:
        files = "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max"  # of either version
        shown = output(host, ["sh", "-c", f"cat {files} 2>/dev/null || true"], CONTAINER)
        assert shown == str(CONTAINER.memory_bytes)
        assert output(host, ["ls", "/sys/fs/cgroup"]) == ""

    def test_the_frozen_stand_still_until_they_are_thawed(self, host: SandboxHost) -> None:
        program = Program(host, python(NOTICE_GAPS))
        assert program.first_line() == "runs"
        program.sandbox.freeze()
        num_lines = len(program.lines)
        with pytest.raises(TimeoutError):
            program.sandbox.wait(0.5)
        assert len(program.lines) == num_lines
        program.sandbox.thaw()
        wait_until(lambda: "gap" in program.lines[num_lines:])
        program.sandbox.freeze()
        program.sandbox.kill()
        assert program.sandbox.wait(END_S) == -signal.SIGKILL
        program.sandbox.freeze()
        program.sandbox.thaw()


class TestNetwork:
    def test_nobody_gets_in_where_connections_are_not_accepted(self, host: SandboxHost) -> None:
        program = Program(host, python(LISTEN))
        port = int(program.first_line())
        with pytest.raises(TimeoutError):
            socket.create_connection((program.sandbox.address, port), timeout=REFUSED_S)
        for confines in (FUNCTION, CONTAINER):
            assert "TimeoutError" in output(host, python(CONNECT, program.sandbox.address, port, REFUSED_S), confines)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.sendto(b"datagram", (program.sandbox.address, port))
        with pytest.raises(TimeoutError):
            program.sandbox.wait(REFUSED_S)
        assert program.lines == [str(port)]
        program.sandbox.kill()

    def test_sandboxes_that_accept_connections_are_reached(self, host: SandboxHost) -> None:
        program = Program(host, python(LISTEN), CONTAINER)
        port = int(program.first_line())
        socket.create_connection((program.sandbox.address, port), timeout=END_S).close()
        for confines in (FUNCTION, CONTAINER):
            assert output(host, python(CONNECT, program.sandbox.address, port, END_S), confines) == "connected"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.sendto(b"datagram", (program.sandbox.address, port))
        wait_until(lambda: "datagram" in program.lines)
        program.sandbox.kill()

    def test_there_is_no_way_out_but_to_the_calling_process(self, host: SandboxHost) -> None:
        with socket.create_server((host.caller_address, 0)) as server:
            port = server.getsockname()[1]
            for confines in (FUNCTION, CONTAINER):
                assert output(host, python(CONNECT, host.caller_address, port, END_S), confines) == "connected"
        assert "unreachable" in output(host, python(CONNECT, "192.0.2.1", 80, END_S))
        assert "gaierror" in output(host, python(CONNECT, "example.com", 80, END_S))

    def test_many_start_at_once(self, host: SandboxHost) -> None:
        with ThreadPoolExecutor(8) as pool:
            programs = list(pool.map(lambda _: Program(host, ["cat", "/etc/hostname"]), range(8)))
        assert len({program.sandbox.address for program in programs}) == 8
        for program in programs:
            assert program.sandbox.wait(END_S) == 0
            assert program.lines == [program.sandbox.name]


class TestEnds:
    def test_nothing_is_left_of_a_sandbox_that_has_ended(self, host: SandboxHost) -> None:
        for confines in (FUNCTION, CONTAINER):
            sandbox = Program(host, START_ANOTHER, confines).sandbox
            left = [trace for trace in traces(host, sandbox) if trace.startswith(("process", "cgroup"))]
            assert remaining(left) == left
            sandbox.kill()
            sandbox.wait(END_S)
            assert remaining(left) == []

    def test_nothing_is_left_after_an_error(self) -> None:
        left: list[str] = []

        def fail_inside() -> None:
            with sandboxes_or_skip() as host:
                sandboxes = [host.start(START_ANOTHER, confines) for confines in (FUNCTION, CONTAINER)]
                sandboxes[0].freeze()
                left.extend(trace for sandbox in sandboxes for trace in traces(host, sandbox))
                assert remaining(left) == left
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_inside()
        assert {trace.split()[0] for trace in left} == {"process", "namespace", "cgroup", "device", "files"}
        wait_until(lambda: remaining(left) == [])

    def test_nothing_is_left_when_the_process_is_killed(self, host: SandboxHost) -> None:
        with subprocess.Popen([sys.executable, "-c", SANDBOX_OF_A_PROCESS], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            left = json.loads(process.stdout.readline())
            assert remaining(left) == left
            process.kill()
        wait_until(lambda: remaining(left) == [])
        assert output(host, ["echo", "lives"]) == "lives"

    def test_a_sandbox_without_its_warden_ends(self) -> None:
        with sandboxes_or_skip() as host:
            sandbox = Program(host, ["sleep", "60"], CONTAINER).sandbox
            left = traces(host, sandbox)
            init = sandbox.processes()[0].outer_pid
            os.kill(int(Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
            assert sandbox.wait(END_S) == -signal.SIGKILL
        wait_until(lambda: remaining(left) == [])

"""The laboratory's machines share nothing but a network, die without a word, and leave nothing behind."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import zooid
from lab.machines.machine import COORDINATOR, Machine, MachineFailed, machines
from lab.waiting import wait_until
from tests.integration.laboratory import machines_or_skip
from tests.integration.leftovers import remaining, traces
from zooid.core.errors import InputError

pytestmark = pytest.mark.timeout(60)

LISTEN = """
import socket
server = socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
kept = []
while True:
    kept.append(server.accept()[0])
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)"
IN_THE_BACKGROUND = "mkdir /sys/fs/cgroup/memory/inner; setsid sleep 60 < /dev/null > /dev/null 2>&1 &"
MACHINES_OF_A_PROCESS = f"""
import json, time
from lab.machines.machine import machines
from tests.integration.leftovers import traces
with machines(2) as made:
    for machine in made:
        machine.run(["sh", "-c", {IN_THE_BACKGROUND!r}])
    print(json.dumps([trace for machine in made for trace in traces(machine)]), flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[Machine, ...]]:
    with machines_or_skip(3) as made:
        yield made


@contextmanager
def listening(machine: Machine) -> Iterator[int]:
    """A server on a machine that accepts connections; yields its port."""
    with subprocess.Popen([*machine.prefix, machine.python, "-c", LISTEN], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


class TestShareNothing:
    def test_the_checkout_and_the_home_are_invisible(self, lab: tuple[Machine, ...], tmp_path: Path) -> None:
        own = Path(zooid.__file__).parents[1]
        for path in (own, Path(__file__), Path(sys.prefix), tmp_path, lab[0].folder):
            assert lab[0].run(["test", "-e", str(path)], check=False).returncode == 1, path
        assert lab[0].run(["ls", "/root", "/tmp", "/var/tmp", "/dev/shm", "/home"]).stdout.split() == [
            "/dev/shm:",
            "/home:",
            "/root:",
            "/tmp:",
            "/var/tmp:",
        ]

    def test_python_has_all_packages_but_not_zooid(self, lab: tuple[Machine, ...]) -> None:
        lab[0].run([lab[0].python, "-c", "import torch, obstore, msgspec"])
        failed = lab[0].run([lab[0].python, "-c", "import zooid"], check=False)
        assert failed.returncode == 1
        assert "No module named 'zooid'" in failed.stderr

    def test_what_one_writes_no_other_sees(self, lab: tuple[Machine, ...]) -> None:
        one, other = lab[:2]
        paths = ["/dev/shm/note", "/root/note", "/tmp/note", "/var/tmp/note"]
        one.run(["touch", *paths])
        assert one.files() == paths
        assert other.files() == []
        assert not any(Path(path).exists() for path in paths)
        one.run(["rm", *paths])
        assert one.files() == []
        with pytest.raises(MachineFailed, match="Read-only file system"):
            one.run(["touch", f"{Path(one.python).parent}/note"])

    def test_each_has_its_own_processes_name_and_cgroups(self, lab: tuple[Machine, ...]) -> None:
        one, other = lab[:2]
        assert [machine.run(["hostname"]).stdout.strip() for machine in lab] == [machine.name for machine in lab]
        one.run(["sh", "-c", IN_THE_BACKGROUND])
        wait_until(lambda: [process.command for process in one.processes()] == ["sleep 60"])
        assert other.processes() == []
        assert "sleep 60" not in other.run(["ps", "-ef"]).stdout
        assert other.run(["test", "-e", "/sys/fs/cgroup/memory/inner"], check=False).returncode == 1
        one.run(["kill", str(one.processes()[0].pid)])
        wait_until(lambda: one.processes() == [])
        assert [process.command for process in one.all_processes()] == ["sleep infinity"], "no zombie is left"

    def test_the_environment_is_fresh(self, lab: tuple[Machine, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "/somewhere")
        assert "PYTHONPATH" not in lab[0].run(["env"]).stdout
        assert "GIVEN=1\n" in lab[0].run(["env"], env={"GIVEN": "1"}).stdout


class TestNetwork:
    def test_machines_reach_one_another_and_the_coordinator_by_name(self, lab: tuple[Machine, ...]) -> None:
        one, other = lab[:2]
        with listening(other) as port, socket.create_server((one.coordinator_address, 0)) as server:
            one.run([one.python, "-c", CONNECT, other.name, str(port)])
            one.run([one.python, "-c", CONNECT, COORDINATOR, str(server.getsockname()[1])])
            socket.create_connection((other.address, port), timeout=5).close()

    def test_a_machine_that_is_unplugged_is_silent_and_comes_back(self, lab: tuple[Machine, ...]) -> None:
        with listening(lab[2]) as port:
            with socket.create_connection((lab[2].address, port), timeout=5) as connection:
                lab[2].unplug()
                connection.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
            lab[2].plug_in()
            socket.create_connection((lab[2].address, port), timeout=5).close()

    def test_sets_of_machines_do_not_meet(self, lab: tuple[Machine, ...]) -> None:
        with machines(1) as (stranger,), listening(stranger) as port:
            assert stranger.name == lab[0].name
            assert stranger.address not in [machine.address for machine in lab]
            socket.create_connection((stranger.address, port), timeout=5).close()
            command = [lab[0].python, "-c", CONNECT, stranger.address, str(port)]
            assert "unreachable" in lab[0].run(command, check=False).stderr


class TestEnds:
    def test_a_machine_loses_its_power(self) -> None:
        with machines_or_skip(2) as (doomed, other), listening(doomed) as port:
            with socket.create_connection((doomed.address, port), timeout=5) as connection:
                owned = [trace for trace in traces(doomed) if trace.startswith(("process", "namespace"))]
                doomed.power_off()
                assert not doomed.is_on
                assert doomed.processes() == []
                connection.settimeout(0.3)
                with pytest.raises(TimeoutError):  # the end of a process alone would close its connections
                    connection.recv(1)
            wait_until(lambda: remaining(owned) == [])
            with pytest.raises(OSError, match=r"timed out|No route to host"):
                socket.create_connection((doomed.address, port), timeout=0.5)
            doomed.power_off()
            with pytest.raises(MachineFailed, match="No such file or directory"):
                doomed.run(["true"])
            assert other.run(["hostname"]).stdout == f"{other.name}\n"

    def test_nothing_is_left_after_an_error(self) -> None:
        left: list[str] = []

        def fail_inside() -> None:
            with machines_or_skip(2) as made:
                for machine in made:
                    machine.run(["sh", "-c", IN_THE_BACKGROUND])
                    left.extend(traces(machine))
                assert remaining(left) == left
                made[1].power_off()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_inside()
        assert {trace.split()[0] for trace in left} == {"process", "namespace", "cgroup", "device", "files"}
        assert remaining(left) == []

    def test_nothing_is_left_when_the_process_is_killed(self, lab: tuple[Machine, ...]) -> None:
        command = [sys.executable, "-c", MACHINES_OF_A_PROCESS]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            left = json.loads(process.stdout.readline())
            assert remaining(left) == left
            process.kill()
        wait_until(lambda: remaining(left) == [])
        assert lab[0].run(["hostname"]).stdout == f"{lab[0].name}\n"

    def test_impossible_wishes_are_refused(self) -> None:
        with pytest.raises(InputError, match="1 to 200 are allowed"), machines(0):
            pass
        with pytest.raises(InputError, match="each with a name of its own"), machines(2, names=["one", "one"]):
            pass

"""The folder of a run on a machine: titles follow real processes, which are really killed, and nothing is left."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from zooid.entry import machine_folder
from zooid.entry.machine_folder import (
    MachineFolderError,
    end_members,
    leave,
    list_members,
    occupy,
    run_folder,
    sweep,
    sweep_dead,
)

pytestmark = pytest.mark.timeout(60)

SOURCE = Path(machine_folder.__file__)
RUN = "run-1"
PREPARE = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {str(SOURCE.parent)!r})
import machine_folder

def say(*words):
    print(*words, flush=True)

def sleeper(**options):
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], **options)

run, title = sys.argv[1:]
held = machine_folder.occupy(run, title)
"""
WAIT = "say('held' if held else 'taken')\ntime.sleep(600)\n"
STUBBORN = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WAIT
ENTRY = """
member = sleeper(start_new_session=True)
held.note_session(member.pid)
helper = sleeper()
say(member.pid, helper.pid)
time.sleep(600)
"""
"""An entry process with a member in a session of its own, and a helper in the session of the entry."""


class Machine:
    """Processes of a machine, which are ended with the test."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, title: str, then: str = WAIT, run: str = RUN) -> tuple[subprocess.Popen[str], list[str]]:
        """Start a process that occupies a title, and wait until it says something."""
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", PREPARE + then, run, title],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().split()

    def entry(self, title: str) -> tuple[subprocess.Popen[str], int, int]:
        process, said = self.start(title, ENTRY)
        return process, int(said[0]), int(said[1])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = Machine(tmp_path / f"zooid-{os.geteuid()}")
    yield made
    end_members(RUN, list_members(RUN), grace_s=0)
    for process in made.processes:
        process.kill()
        process.communicate(timeout=20)
    leave(RUN)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait(20)


class TestOccupation:
    def test_a_title_lives_as_long_as_its_process(self, machine: Machine) -> None:
        process, said = machine.start("m0")
        other, _ = machine.start("m1")
        assert said == ["held"]
        assert list_members(RUN) == {"m0": True, "m1": True}
        kill(process)
        assert list_members(RUN) == {"m0": False, "m1": True}
        kill(other)
        assert list_members(RUN) == {"m0": False, "m1": False}

    def test_a_doubled_start_is_told(self, machine: Machine) -> None:
        first, _ = machine.start("m0")
        assert machine.start("m0")[1] == ["taken"]
        assert occupy(RUN, "m0") is None
        kill(first)
        assert machine.start("m0")[1] == ["held"]

    def test_of_many_that_start_together_one_wins(self, machine: Machine) -> None:
        program = PREPARE + "say('held' if held else 'taken')\nsys.stdin.read()\n"
        processes = [
            subprocess.Popen(
                [sys.executable, "-S", "-c", program, RUN, "m0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for _ in range(6)
        ]
        machine.processes += processes
        said = [process.stdout.readline() for process in processes if process.stdout is not None]
        assert sorted(said) == ["held\n"] + ["taken\n"] * 5

    def test_the_file_names_the_process(self, machine: Machine) -> None:
        process, _ = machine.start("m0")
        written = json.loads((machine.base / RUN / "members" / "m0").read_text())
        assert (written["pid"], written["group"], written["session"]) == (process.pid,) * 3
        assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in written["machine"]

    def test_forked_processes_do_not_hold_it(self, machine: Machine) -> None:
        fork = "pid = os.fork()\nif pid == 0:\n    time.sleep(600)\nsay(pid)\ntime.sleep(600)\n"
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", PREPARE + fork, RUN, "m0"], stdout=subprocess.PIPE, text=True
        )  # without a session of its own, so that only the lock counts
        machine.processes.append(process)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert list_members(RUN) == {"m0": True}
            kill(process)
            wait_until(lambda: list_members(RUN) == {"m0": False})  # the fork closes what it inherits as it begins
            assert lives(child)
        finally:
            os.kill(child, signal.SIGKILL)

    def test_started_programs_do_not_hold_it(self, machine: Machine) -> None:
        process, said = machine.start(
            "m0", "say(sleeper(start_new_session=True, close_fds=False).pid)\ntime.sleep(600)\n"
        )
        kill(process)
        try:
            assert list_members(RUN) == {"m0": False}
        finally:
            os.kill(int(said[0]), signal.SIGKILL)

    def test_a_title_lives_while_a_session_of_it_does(self, machine: Machine) -> None:
        entry, member, helper = machine.entry("m0")
        kill(entry)
        assert lives(member)
        assert list_members(RUN) == {"m0": True}
        assert machine.start("m0")[1] == ["taken"]
        assert not sweep(RUN)
        os.kill(helper, signal.SIGKILL)
        os.kill(member, signal.SIGKILL)
        wait_until(lambda: list_members(RUN) == {"m0": False})

    def test_a_reused_process_number_counts_for_nothing(self, machine: Machine) -> None:
        process, _ = machine.start("m0")
        kill(process)
        bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
        try:
            file = machine.base / RUN / "members" / "m0"
            before = json.loads(file.read_text())
            as_if_reused = {**before, "pid": bystander.pid, "session": bystander.pid}
            noted = {"session": bystander.pid, "started": before["started"]}
            file.write_text(f"{json.dumps(as_if_reused)}\n{json.dumps(noted)}\n")
            assert list_members(RUN) == {"m0": False}
            assert end_members(RUN, ["m0"], grace_s=0) == []
            assert lives(bystander.pid)
        finally:
            bystander.kill()
            bystander.wait(20)

    def test_what_another_boot_has_written_counts_for_nothing(self, machine: Machine) -> None:
        bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
        try:
            process, _ = machine.start("m0")
            kill(process)
            started = int(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
            about = {"machine": "another boot", "pid": bystander.pid, "session": bystander.pid, "started": started}
            (machine.base / RUN / "members" / "m0").write_text(json.dumps(about) + "\n")
            assert end_members(RUN, ["m0"], grace_s=0) == []
            assert lives(bystander.pid)
        finally:
            bystander.kill()
            bystander.wait(20)

    @pytest.mark.parametrize("text", ["", "{", "[]\n", "null\n", '{"machine": 1}\n', "\n\n", "ß\x00\n"])
    def test_a_damaged_file_is_that_of_a_dead_process(self, machine: Machine, text: str) -> None:
        process, _ = machine.start("m0")
        kill(process)
        (machine.base / RUN / "members" / "m0").write_text(text)
        assert list_members(RUN) == {"m0": False}
        assert end_members(RUN, ["m0"], grace_s=0) == []
        assert machine.start("m0")[1] == ["held"]

    @pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", "a\n", "ä", "~lock", "x" * 201])
    def test_names_stay_in_their_folder(self, machine: Machine, name: str) -> None:
        for call in (lambda: occupy(RUN, name), lambda: occupy(name, "m0"), lambda: list_members(name),
                     lambda: end_members(name, []), lambda: end_members(RUN, [name]), lambda: leave(name),
                     lambda: sweep(name), lambda: run_folder(name)):  # fmt: skip
            with pytest.raises(MachineFolderError, match="is not a name"):
                call()
        assert not machine.base.exists()


class TestPrivacy:
    def test_only_the_user_may_enter(self, machine: Machine) -> None:
        machine.start("m0")
        for folder in (machine.base, machine.base / RUN, machine.base / RUN / "members"):
            assert folder.stat().st_mode & 0o777 == 0o700

    def test_a_link_is_refused(self, machine: Machine, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        machine.base.symlink_to(tmp_path / "elsewhere")
        for call in (lambda: occupy(RUN, "m0"), lambda: list_members(RUN), lambda: sweep_dead(0)):
            with pytest.raises(MachineFolderError, match=r"is not a folder, .*set TMPDIR"):
                call()
        assert list((tmp_path / "elsewhere").iterdir()) == []
        machine.base.unlink()

    def test_a_link_instead_of_the_run_is_refused(self, machine: Machine, tmp_path: Path) -> None:
        machine.base.mkdir(mode=0o700)
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (machine.base / RUN).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(MachineFolderError, match="is not a folder"):
            occupy(RUN, "m0")
        (machine.base / RUN).unlink()

    def test_a_folder_that_others_may_enter_is_refused(self, machine: Machine) -> None:
        machine.base.mkdir()
        machine.base.chmod(0o755)
        with pytest.raises(MachineFolderError, match="has the mode 755 instead of 700"):
            occupy(RUN, "m0")
        machine.base.rmdir()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to other users")
    def test_a_folder_of_another_user_is_refused(self, machine: Machine) -> None:
        machine.base.mkdir(mode=0o700)
        os.chown(machine.base, 65534, 65534)
        with pytest.raises(MachineFolderError, match="belongs to the user 65534 instead of 0"):
            occupy(RUN, "m0")
        machine.base.rmdir()

    def test_a_missing_place_is_named(self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
        with pytest.raises(MachineFolderError, match="missing does not exist; set TMPDIR"):
            occupy(RUN, "m0")
        assert list_members(RUN) == {}


class TestEnding:
    def test_an_interrupt_is_enough(self, machine: Machine) -> None:
        polite = "try:\n    say('ready')\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    say('interrupted')\n"
        process, _ = machine.start("m0", polite)
        assert end_members(RUN, ["m0"], grace_s=30) == []
        assert process.stdout is not None
        assert process.stdout.read() == "interrupted\n"
        assert process.wait(20) == 0

    def test_after_the_grace_everything_is_killed(self, machine: Machine) -> None:
        stubborn = ENTRY.replace("say(", "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsay(")
        entry, said = machine.start("m0", stubborn)
        began_s = time.monotonic()
        assert end_members(RUN, ["m0"], grace_s=0.5) == []
        assert 0.5 <= time.monotonic() - began_s < 8
        assert entry.wait(20) == -signal.SIGKILL
        assert not any(lives(int(pid)) for pid in said)
        assert list_members(RUN) == {"m0": False}

    def test_what_an_interrupted_entry_leaves_behind_is_killed(self, machine: Machine) -> None:
        entry, member, helper = machine.entry("m0")
        assert end_members(RUN, ["m0"], grace_s=0.5) == []
        assert entry.wait(20) != 0
        assert not lives(member)
        assert not lives(helper)

    def test_the_sessions_of_a_killed_entry_are_ended(self, machine: Machine) -> None:
        entry, member, helper = machine.entry("m0")
        kill(entry)
        assert end_members(RUN, ["m0"], grace_s=0.2) == []
        assert not lives(member)
        assert not lives(helper)

    def test_all_titles_are_ended_at_the_same_time(self, machine: Machine) -> None:
        for number in range(4):
            machine.start(f"m{number}", STUBBORN)
        machine.start("other")
        began_s = time.monotonic()
        assert end_members(RUN, ["m0", "m1", "m2", "m3", "unknown"], grace_s=2.0) == []
        assert time.monotonic() - began_s < 7.0  # one after the other would take 8
        assert list_members(RUN) == {"m0": False, "m1": False, "m2": False, "m3": False, "other": True}

    def test_a_stopped_process_is_killed(self, machine: Machine) -> None:
        process, _ = machine.start("m0")
        os.kill(process.pid, signal.SIGSTOP)
        assert end_members(RUN, ["m0"], grace_s=0.1) == []
        assert process.wait(20) == -signal.SIGKILL

    def test_a_process_that_leads_no_session_takes_only_its_descendants_along(self, machine: Machine) -> None:
        program = PREPARE + ENTRY.replace("held.note_session(member.pid)", "")
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", program, RUN, "m0"], stdout=subprocess.PIPE, text=True
        )  # in the session of the tests, which must survive
        machine.processes.append(process)
        assert process.stdout is not None
        descendants = [int(pid) for pid in process.stdout.readline().split()]
        os.kill(process.pid, signal.SIGSTOP)  # otherwise the interrupt would end it, and its descendants were lost
        assert end_members(RUN, ["m0"], grace_s=0.1) == []
        assert process.wait(20) == -signal.SIGKILL
        assert not any(map(lives, descendants))

    def test_nobody_is_there(self, machine: Machine) -> None:
        assert end_members(RUN, ["m0", "m1"], grace_s=30) == []
        assert list_members(RUN) == {}
        assert not machine.base.exists()

    def test_titles_are_a_list(self, machine: Machine) -> None:
        with pytest.raises(MachineFolderError, match="must be a list"):
            end_members(RUN, "m0")


LEAVE = "time.sleep(0.05)\nleft = machine_folder.leave(run)\nsay('gone' if left else 'stays')\n"


class TestRemoval:
    def test_the_last_that_leaves_removes_the_folder(self, machine: Machine, tmp_path: Path) -> None:
        first, _ = machine.start("m0")
        (machine.base / RUN / "code").mkdir()
        (machine.base / RUN / "code" / "job.py").write_text("1")
        assert machine.start("m1", LEAVE)[1] == ["stays"]
        assert list_members(RUN) == {"m0": True}
        kill(first)
        assert machine.start("m2", LEAVE)[1] == ["gone"]
        assert list(tmp_path.iterdir()) == []

    def test_this_process_leaves_all_its_titles(self, machine: Machine) -> None:
        assert occupy(RUN, "m0") is not None
        assert occupy(RUN, "m1") is not None
        assert list_members(RUN) == {"m0": True, "m1": True}
        assert leave(RUN)
        assert not machine.base.exists()

    def test_an_entry_that_leaves_before_its_member_keeps_the_folder(self, machine: Machine) -> None:
        own = occupy(RUN, "m0")
        assert own is not None
        member = subprocess.Popen(["sleep", "600"], start_new_session=True)
        try:
            own.note_session(member.pid)
            assert not leave(RUN)
            assert list_members(RUN) == {"m0": True}
        finally:
            member.kill()
            member.wait(20)
        assert sweep(RUN)

    def test_runs_do_not_disturb_each_other(self, machine: Machine) -> None:
        machine.start("m0")
        assert machine.start("m0", LEAVE, run="run-2")[1] == ["gone"]
        assert [path.name for path in machine.base.iterdir() if path.is_dir()] == [RUN]

    def test_only_dead_runs_are_swept(self, machine: Machine) -> None:
        process, _ = machine.start("m0")
        assert not sweep(RUN)
        kill(process)
        assert sweep(RUN)
        assert sweep(RUN)
        assert not machine.base.exists()

    def test_dead_runs_are_swept_when_they_are_old(self, machine: Machine) -> None:
        machine.start("m0", run="living")
        for run in ("dead", "old"):
            kill(machine.start("m0", run=run)[0])
        hour_ago_s = time.time() - 3600
        for path in [*(machine.base / "old").rglob("*"), machine.base / "old"]:
            os.utime(path, (hour_ago_s, hour_ago_s))
        for path in [*(machine.base / "living").rglob("*"), machine.base / "living"]:
            os.utime(path, (hour_ago_s, hour_ago_s))
        (machine.base / "~gone-0").mkdir()  # as if a process had been killed while it removed it
        (machine.base / "~gone-0" / "large").write_text("1")
        assert sweep_dead(1800) == ["old"]
        assert sorted(path.name for path in machine.base.iterdir()) == ["dead", "living", "~lock"]
        assert sweep_dead(0) == ["dead"]
        end_members("living", ["m0"], grace_s=0)
        assert sweep_dead(0) == ["living"]
        assert not machine.base.exists()

    def test_nobody_loses_the_folder_while_others_leave(self, machine: Machine) -> None:
        """Processes arrive and leave all the time; who has arrived finds the folder until it leaves."""
        churn = """
machine_folder.leave(run)
for number in range(60):
    held = machine_folder.occupy(run, title)
    assert held is not None
    folder = machine_folder.run_folder(run)
    note = os.path.join(folder, title)
    open(note, "w").close()
    time.sleep(0.001 * (number % 3))
    assert machine_folder.list_members(run)[title]
    os.unlink(note)
    machine_folder.leave(run)
    machine_folder.sweep(run)
    if number % 10 == 0:
        machine_folder.sweep_dead(0)
say("fine")
"""
        processes = [
            subprocess.Popen(
                [sys.executable, "-S", "-c", PREPARE + churn, RUN, f"m{number}"],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for number in range(4)
        ]
        machine.processes += processes
        assert [process.communicate(timeout=50)[0] for process in processes] == ["fine\n"] * 4
        assert not machine.base.exists()


def test_it_needs_only_the_standard_library_of_python_3_9() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 9))
    imported = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").partition(".")[0])
    assert imported <= sys.stdlib_module_names

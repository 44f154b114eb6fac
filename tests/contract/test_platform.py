"""What any platform does with a member: here as a new process, forked, and as an instance of a market."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.members import Members
from lab.waiting import wait_until
from tests.processes import children, heed_signals, is_gone, parent_of
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
from zooid.platforms.local.fork_messages import Lines, News
from zooid.platforms.local.forks import ForkedProcess
from zooid.platforms.local.spot_market import SpotMarket, Supply

LOOK_AROUND = """
import json, os, random, signal, sys
import numpy, torch
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
facts = {
    "command": [word for word in open("/proc/self/cmdline").read().split("\\0") if word],
    "program": sys.modules["__main__"].__spec__.name,
    "arguments": sys.argv,
    "path": sys.path[0],
    "folder": os.getcwd(),
    "leads a session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "files": {number: os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)},
    "ends": [end for file in os.scandir("/proc/self/fd") if (end := os.readlink(file)).startswith(("socket", "pipe"))],
    "environment": dict(os.environ),
    "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
    "num_threads": torch.get_num_threads(),
}
drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(())), torch.initial_seed()]
print(json.dumps([facts, drawn]), flush=True)
os._exit(7)
"""
SLEEPING = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture(scope="module")
def new() -> LocalPlatform:
    return LocalPlatform(forks=False)


@pytest.fixture(scope="module")
def forking() -> LocalPlatform:
    platform = LocalPlatform()
    platform.expect(1)
    return platform


@pytest.fixture(scope="module")
def market(forking: LocalPlatform) -> SpotMarket:
    market = SpotMarket({"": Supply(boot_s=30.0)}, speed=300.0, platform=forking)
    market.open()
    return market


@pytest.fixture(params=["new", "forking", "market"])
def platform(request: pytest.FixtureRequest) -> Platform:
    chosen: Platform = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def members(platform: Platform, tmp_path: Path) -> Iterator[Members]:
    made = Members(platform, tmp_path)
    yield made
    made.end()


def test_a_killed_member_tells_its_signal(members: Members) -> None:
    assert members.status_of(members.start(KILLED)) == -signal.SIGKILL


def test_ending_a_member_ends_its_whole_session(members: Members) -> None:
    member = members.start(SLEEPING)
    pids = [int(word) for word in members.first_line(member).split()]
    assert members.is_running(member)
    members.delete(member)
    assert all(map(is_gone, pids))
    assert members.status_of(member) == -signal.SIGTERM
    members.delete(member)


def look_around(platform: LocalPlatform, folder: Path) -> tuple[dict[str, Any], list[float]]:
    members = Members(platform, folder)
    member = members.start(LOOK_AROUND)
    assert members.status_of(member) == 7, members.log(member)
    members.end()
    digest = members.launched[-1].ticket.spec_digest
    printed = members.log(member).replace(members.run, "RUN").replace(digest, "DIGEST")
    facts, drawn = json.loads(printed.splitlines()[0])
    facts["files"] = {number: name.partition(":")[0] for number, name in facts["files"].items()}
    facts["ends"] = [end for end in facts["ends"] if not end.startswith("pipe")]
    return facts, drawn


def test_a_forked_member_is_like_a_new_process(
    forking: LocalPlatform, new: LocalPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its surroundings are those at its launch, and not those in which the zygote was started."""
    monkeypatch.delenv("PATH")
    monkeypatch.setenv("LATER", "2")
    monkeypatch.chdir(tmp_path)
    as_forked, drawn = look_around(forking, tmp_path)
    as_new, _ = look_around(new, tmp_path)
    assert as_forked == as_new
    assert as_forked["environment"]["LATER"] == "2"
    assert "PATH" not in as_forked["environment"]
    assert as_forked["command"][1:3] == ["-m", "zooid.profiler"]
    assert as_forked["command"][-1] == "DIGEST", "the program checks the spec once more"
    assert as_forked["folder"] == str(tmp_path)
    assert as_forked["leads a session"]
    assert as_forked["ends"] == []
    _, of_sibling = look_around(forking, tmp_path)
    assert not set(drawn) & set(of_sibling)


def test_a_zygote_that_died_is_replaced(forking: LocalPlatform, tmp_path: Path) -> None:
    members = Members(forking, tmp_path)
    try:
        member = members.start(SLEEPING)
        pids = [int(word) for word in members.first_line(member).split()]
        zygote = parent_of(parent_of(pids[0]))
        assert len(os.listdir(f"/proc/{zygote}/task")) == 1, "a process with threads must not fork"
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: is_gone(zygote))
        assert members.status_of(members.start(KILLED)) == -signal.SIGKILL
        assert members.is_running(member), "it does not need the zygote any more"
    finally:
        members.end()
    assert all(map(is_gone, pids))
    assert members.status_of(member) == -signal.SIGTERM


def test_platforms_share_a_zygote_until_it_is_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHON_ZYGOTE_OF_ITS_OWN", "1")
    monkeypatch.setattr("zooid.platforms.local.forks.IDLE_S", 0.05)
    before = set(children())
    first, second = (Members(LocalPlatform(), tmp_path / name) for name in ("first", "second"))
    pids = []
    for members in (first, second):
        pids.append(int(members.first_line(members.start(SLEEPING)).split()[0]))
    [zygote] = set(children()) - before
    assert {parent_of(parent_of(pid)) for pid in pids} == {zygote}
    first.end()
    second.end()
    wait_until(lambda: is_gone(zygote))
    LocalPlatform().expect(1)
    [successor] = set(children()) - before - {zygote}
    os.kill(successor, signal.SIGKILL)  # its own end would come only when it has imported everything


def test_an_interrupt_loses_nothing_that_a_zygote_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C comes when the process id of a member has been read; without the id nobody could end the member."""
    platform = LocalPlatform()
    members = Members(platform, tmp_path)
    member = members.start(SLEEPING)
    feed = Lines.feed

    def interrupted(lines: Lines[News], data: bytes) -> Iterator[News]:
        os.kill(os.getpid(), signal.SIGINT)
        return feed(lines, data)

    with monkeypatch.context() as patch:
        patch.setattr(Lines, "feed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            members.end_of(member)
    [process] = platform._started[members.run].values()
    assert isinstance(process, ForkedProcess)
    assert process.known_pid is not None
    members.end()


def test_a_zygote_that_cannot_start_leaves_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONHOME", str(tmp_path / "nowhere"))
    members = Members(LocalPlatform(), tmp_path)
    ended = members.end_of(members.start(KILLED))
    assert str(ended).startswith("could not be started: ")
    assert "nowhere" in ended.output
    members.end()


def test_members_outlive_a_platform_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ORPHANING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=heed_signals) as platform:
        assert platform.stdout is not None
        pids = [int(word) for word in platform.stdout.readline().split()]
        zygote = parent_of(parent_of(pids[0]))
        platform.kill()
    members = Members(LocalPlatform(), tmp_path, "outliving")
    try:
        wait_until(lambda: is_gone(zygote))
        assert not any(map(is_gone, pids))
        assert members.is_running("m0")
    finally:
        members.delete("m0")
    assert all(map(is_gone, pids))
    assert members.status_of("m0") == -signal.SIGTERM


ORPHANING = """
import sys, time
from pathlib import Path
from tests.contract.test_platform import SLEEPING
from lab.members import Members
from zooid.platforms.local import LocalPlatform
from zooid.platforms.local.fork_messages import Lines, News
from zooid.platforms.local.forks import ForkedProcess
members = Members(LocalPlatform(), Path(sys.argv[1]), "outliving")
print(members.first_line(members.start(SLEEPING)), flush=True)
time.sleep(600)
"""

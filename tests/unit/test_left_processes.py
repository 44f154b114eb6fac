"""Daemons that a member has started, in sessions of their own: they end with the member, and no zombie stays."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.members import Members
from lab.waiting import wait_until
from tests.processes import is_gone
from zooid.platforms.local import LocalPlatform

DAEMONS = """
import os, subprocess, sys, time
code = "import os, time; os.write(1, b'%d' % os.getpid()); time.sleep({})"
def daemon(seconds):
    ready, its_ready = os.pipe()
    subprocess.run(["setsid", "-f", sys.executable, "-S", "-c", code.format(seconds)], stdout=its_ready)
    return int(os.read(ready, 100))
short, long = daemon(0.01), daemon(600)
print(short, long, os.getpid(), flush=True)
"""
STAY = "time.sleep(600)\n"


@pytest.fixture(params=[False, True], ids=["new", "forking"])
def members(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Members]:
    made = Members(LocalPlatform(forks=request.param), tmp_path)
    yield made
    made.end()


def test_daemons_end_with_their_member(members: Members) -> None:
    member = members.start(DAEMONS + "os._exit(7)\n")
    assert members.status_of(member) == 7
    printed = members.log(member)
    assert "Traceback" not in printed, printed
    short, long, _ = map(int, printed.split())
    assert is_gone(short)
    assert is_gone(long)


def test_daemons_that_end_are_no_zombies_and_others_live_as_long_as_their_member(members: Members) -> None:
    member = members.start(DAEMONS + STAY)
    short, long, pid = map(int, members.first_line(member).split())
    wait_until(lambda: not Path("/proc", str(short)).exists())
    os.kill(long, 0)
    members.delete(member)
    assert not Path("/proc", str(long)).exists()
    assert is_gone(pid)
    assert members.status_of(member) == -15

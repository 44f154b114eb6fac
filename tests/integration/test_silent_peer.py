"""A machine that vanishes without a word: no connection is closed, no packet comes back."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.namespaces import Star, connect_members, set_forwarding
from tests.integration.laboratory import star_or_skip

pytestmark = pytest.mark.timeout(60)

LIMIT_S = 16.0
"""Keep-alive gives up after 11 s; the rest is for a machine that is busy."""
PROGRAM = """
import sys, time, torch, torch.distributed as dist, zooid.comm
from zooid.core.errors import PeerLost
rank = int(sys.argv[1])
dist.init_process_group("zooid", init_method=sys.argv[2], rank=rank, world_size=2)
tensor = torch.ones(100)
dist.all_reduce(tensor)
print("going", flush=True)
sys.stdin.readline()
try:
    if rank == 0:
        dist.recv(tensor, 1)
    while True:
        dist.all_reduce(tensor)
except PeerLost as error:
    print(error, flush=True)
"""


@pytest.fixture
def lab() -> Iterator[Star]:
    with star_or_skip(2) as made:
        connect_members(made)
        yield made


def test_who_waits_for_it_and_who_sends_to_it_hear_of_it(lab: Star, tmp_path: Path) -> None:
    """Rank 0 only waits, for a message; rank 1 goes on sending."""
    with ExitStack() as stack:
        ranks = [
            subprocess.Popen(
                [*member.prefix, sys.executable, "-c", PROGRAM, str(rank), f"file://{tmp_path}/group?transport=tcp"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, member in enumerate(lab.members)
        ]
        for process in ranks:
            stack.enter_context(process)
            stack.callback(process.kill)
        assert [_line(process) for process in ranks] == ["going\n"] * 2
        set_forwarding(lab.store, False)
        began_s = time.monotonic()
        for process in ranks:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        heard = [_line(process) for process in ranks]
        assert time.monotonic() - began_s < LIMIT_S
    assert "rank 1 was lost" in heard[0]
    assert "rank 0 was lost" in heard[1] or "rank 0 cannot be reached any more" in heard[1]


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()

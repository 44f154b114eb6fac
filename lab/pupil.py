"""What a member of a crew does while strangers stand at its door: it meets the others, and trains with them."""

import ctypes
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lab.crew import Answer, wait_until
from zooid.comm import ObjectRendezvous, Options, ProcessGroup
from zooid.comm.tcp import connect
from zooid.core.abort import Abort
from zooid.store import open_store

_TIMEOUT_S = 60.0
_NUM_WEIGHTS = 50_000
_LEARNING_RATE = 0.1

_group: ProcessGroup | None = None


def meet_in_store(url: str, prefix: str, last_after_s: float, start_s: float) -> Answer:
    """Meet the others over TCP. The last rank comes so much later than the others; how long it then took."""
    global _group
    rank, size = map(int, sys.argv[1:])
    _forget_peak()
    rendezvous = ObjectRendezvous(open_store(url), prefix, timeout_s=_TIMEOUT_S)
    options = Options(transport="tcp")
    abort = Abort()
    wait_until(start_s + (last_after_s if rank == size - 1 else 0.0))
    began_s = time.monotonic()
    transport, _ = connect(rendezvous, rank, size, options, timeout_s=_TIMEOUT_S, abort=abort)
    _group = ProcessGroup(
        transport,
        rank,
        size,
        abort=abort,
        timeout_s=_TIMEOUT_S,
        options=options,
        c10d_store=rendezvous,
    )
    _group.barrier().wait()
    return {"took_s": time.monotonic() - began_s}


def train_together(num_steps: int) -> Answer:
    """Fit weights to the mean of all ranks' targets by gradient descent, and leave the group."""
    rank, size = map(int, sys.argv[1:])
    assert _group is not None
    weights = torch.zeros(_NUM_WEIGHTS, dtype=torch.float64)
    began_s = time.monotonic()
    for _ in range(num_steps):
        gradient = weights - _target(rank)
        _group.allreduce([gradient]).wait()
        weights -= _LEARNING_RATE * gradient / size
    took_s = time.monotonic() - began_s
    expected = sum(_target(each) for each in range(size)) / size * (1 - (1 - _LEARNING_RATE) ** num_steps)
    is_right = bool(torch.allclose(weights, torch.as_tensor(expected), rtol=0.0, atol=1e-9))
    _group.shutdown()
    return {"took_s": took_s, "is_right": is_right, "peak_bytes": _status_bytes("VmHWM")}


def _target(rank: int) -> Any:
    return torch.sin(torch.arange(_NUM_WEIGHTS, dtype=torch.float64) * (rank + 1))


def _forget_peak() -> None:
    """What was freed goes back to the system, so that the next peak is seen."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024

"""The largest grain that fits into memory, found by trials in a child process that may fail."""

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from zooid.layers.disk_tensors import give_back_freed

_MARGIN = 0.95
"""Fraction of the allowed memory that a trial may use; the rest is for temporary needs."""


def largest_that_fits(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest size up to `limit` that fits, by doubling and bisection; 0 where not even 1 fits."""
    good, size = 0, 1
    while size < limit and fits(size):
        good, size = size, min(2 * size, limit)
    if size == limit and good < limit and fits(limit):
        return limit
    bad = size
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def runs_within(work: Callable[[], None], memory_bytes: int) -> bool:
    """Whether a forked copy of this process can do the work within this memory.

    Allocations beyond the limit fail. If the kernel runs out of memory first, it kills the copy and nobody else.
    """
    give_back_freed()  # freed memory that is kept here would count beside the child's
    child = os.fork()
    if child == 0:
        _try(work, memory_bytes)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def runs_on_gpu(work: Callable[[], None]) -> bool:
    """Whether the work fits into the memory of the GPU, where a failed allocation does no harm."""
    try:
        work()
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def _try(work: Callable[[], None], memory_bytes: int) -> None:
    """Do the work in the child and exit, with one thread, since a pool of threads does not survive a fork."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        allowed = round(memory_bytes * _MARGIN)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
        torch.set_num_threads(1)
        work()
        code = 0
    except (MemoryError, RuntimeError):
        code = 1
    finally:
        os._exit(code)

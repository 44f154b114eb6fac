"""The largest grain that fits into memory, tried out by a child process that may fail."""

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from zooid.layers.disk_tensors import give_back_freed

_MARGIN = 0.95
"""Of the memory that is allowed; the rest is for what comes and goes."""


def largest_that_fits(most: int, fits: Callable[[int], bool]) -> int:
    """The largest size up to `most` that fits, by doubling and then bisection; 0 where not even one sample does."""
    good, size = 0, 1
    while size < most and fits(size):
        good, size = size, min(2 * size, most)
    if size == most and (good < most) and fits(most):
        return most
    bad = size
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def runs_within(work: Callable[[], None], memory_bytes: int) -> bool:
    """Whether a copy of this process can do the work without asking for more memory than this.

    What it asks for beyond is refused to it; and should the kernel run out of memory first, it ends that copy and
    nobody else.
    """
    give_back_freed()  # what the child takes counts beside it
    child = os.fork()
    if child == 0:
        _try(work, memory_bytes)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def runs_on_gpu(work: Callable[[], None]) -> bool:
    """The same for the memory of a GPU, which refuses without harm."""
    try:
        work()
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def _try(work: Callable[[], None], memory_bytes: int) -> None:
    """In the child: never returns. One thread, since a pool of threads does not survive a fork."""
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

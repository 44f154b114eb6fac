"""Company for a measurement: members that share a machine share its memory and caches, and slow each other down."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

from zooid.core.errors import TrainingError

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def busy_neighbours(count: int, work: Callable[[], None]) -> Iterator[None]:
    """While inside, so many copies of this process repeat `work`, which must only compute.

    Copies are forked, so that they start at once with everything built; they touch neither the store nor any file.
    """
    parent = os.getpid()
    children = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                _repeat(work, parent)
            children.append(child)
        yield
        if ended := [child for child in children if os.waitpid(child, os.WNOHANG) != (0, 0)]:
            children = [child for child in children if child not in ended]
            raise TrainingError("a neighbour process ended while layers were measured; times with company are unknown")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _repeat(work: Callable[[], None], parent: int) -> None:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive a parent that was killed
        while os.getppid() == parent:
            work()
    finally:
        os._exit(1)

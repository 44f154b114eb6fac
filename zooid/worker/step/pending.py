"""Messages and reduces that are under way: what to wait for, and when they began and ended."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import distributed as dist

from zooid.comm.calls.work import TransferWork


class Underway:
    """One or several calls of torch.distributed as one, with what is to be done when they have ended."""

    def __init__(
        self,
        works: Sequence[dist.Work] = (),
        then: Callable[[], None] = lambda: None,
        *,
        after: "Underway | None" = None,
    ) -> None:
        self._works = list(works)
        self._then = then
        self._after = after
        """A message that goes the same way before this one, which only then has the way to itself."""
        self._free_s = 0.0
        """When that one had ended, once this has been waited for; a message must not keep all those before it."""
        self._called_s = time.perf_counter()
        self._waited_s: float | None = None

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._waited_s = time.perf_counter()
        if self._after is not None:
            self._free_s, self._after = self._after.end_s, None
        self._then()

    @property
    def end_s(self) -> float:
        """When the last call ended; the end of the wait, where a backend does not tell."""
        ends = [work.done.ended_s for work in self._works if isinstance(work, TransferWork)]
        known = [end_s for end_s in ends if end_s is not None]
        if known and len(known) == len(self._works):
            return max(known)
        return self._called_s if not self._works else self._waited_s or time.perf_counter()

    @property
    def start_s(self) -> float:
        """When the first bytes moved, as far as that is known."""
        ours = [work.done for work in self._works if isinstance(work, TransferWork)]
        if begun := [done.began_s for done in ours if done.began_s is not None]:
            return min(begun)
        called_s = min([self._called_s, *(done.made_s for done in ours)])
        free_s = self._free_s if self._after is None else self._after.end_s
        return min(max(called_s, free_s), self.end_s)


def sending(message: torch.Tensor, target: int, tag: int, group: dist.ProcessGroup) -> dist.Work:
    return group.send([message], target, tag)


def receiving(message: torch.Tensor, source: int, tag: int, group: dist.ProcessGroup) -> dist.Work:
    return group.recv([message], source, tag)


def adding_up(values: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Begin to replace the values by their sums over the group."""
    return group.allreduce([values])


def copying(values: torch.Tensor, source: int, group: dist.ProcessGroup) -> dist.Work:
    """Begin to replace the values by those of one rank of the group."""
    options = dist.BroadcastOptions()
    options.rootRank = source
    options.rootTensor = 0
    return group.broadcast([values], options)

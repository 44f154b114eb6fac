"""Messages and collectives in flight: what to wait for, and when they began and ended."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import distributed as dist

from zooid.comm.calls.work import TransferWork


class Pending:
    """Several calls of torch.distributed as one, with a function that runs when they have ended."""

    def __init__(
        self,
        works: Sequence[dist.Work] = (),
        then: Callable[[], None] = lambda: None,
        *,
        after: "Pending | None" = None,
    ) -> None:
        self._works = list(works)
        self._then = then
        self._after = after
        """The message sent before this one on the same link, which occupies the link until it ends."""
        self._link_free_s = 0.0
        """When that message had ended; copied in `wait`, so that a message does not keep all earlier ones alive."""
        self._called_s = time.perf_counter()
        self._waited_s: float | None = None

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._waited_s = time.perf_counter()
        if self._after is not None:
            self._link_free_s, self._after = self._after.end_s, None
        self._then()

    @property
    def end_s(self) -> float:
        """When the last call ended; where a backend does not tell, when the wait for it ended."""
        ends = [work.done.ended_s for work in self._works if isinstance(work, TransferWork)]
        known = [end_s for end_s in ends if end_s is not None]
        if known and len(known) == len(self._works):
            return max(known)
        return self._called_s if not self._works else self._waited_s or time.perf_counter()

    @property
    def num_bytes(self) -> int:
        """Size of all messages or values; 0 where a backend does not tell."""
        return sum(work.num_bytes for work in self._works if isinstance(work, TransferWork))

    @property
    def start_s(self) -> float:
        """When the first bytes moved, as far as that is known."""
        transfers = [work.done for work in self._works if isinstance(work, TransferWork)]
        if begun := [transfer.began_s for transfer in transfers if transfer.began_s is not None]:
            return min(begun)
        called_s = min([self._called_s, *(transfer.made_s for transfer in transfers)])
        link_free_s = self._link_free_s if self._after is None else self._after.end_s
        return min(max(called_s, link_free_s), self.end_s)


def begin_all_reduce(values: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Begin to replace the values by their sums over the group."""
    return group.allreduce([values])


def begin_broadcast(values: torch.Tensor, source: int, group: dist.ProcessGroup) -> dist.Work:
    """Begin to replace the values by those of one rank of the group."""
    options = dist.BroadcastOptions()
    options.rootRank = source
    options.rootTensor = 0
    return group.broadcast([values], options)

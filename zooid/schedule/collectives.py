"""Collectives as lists of transfers, executed by the process group over any transport and timed by the predictor.

A transfer moves a span of the buffer from one rank to one or more readers. Over an object store it is one put and a get
for each reader; over sockets, a message to each. What `reduce` transfers bring is added to the reader's own span when
all of that span are in, in the order of their ranks, so that every run of the same step gives the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message of a collective; its number is its place in the list."""

    source: int
    readers: tuple[int, ...]
    start: int
    """First element of the span."""
    stop: int
    """One past the last element."""
    combine: Literal["reduce", "copy"]
    after: tuple[int, ...] = ()
    """Transfers that the source must have taken in before it sends this one."""

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


TransferList = tuple[Transfer, ...]


def spans(num_elements: int, num_parts: int) -> list[tuple[int, int]]:
    """Even cuts of a buffer; the first parts take what does not divide.

    >>> spans(10, 3)
    [(0, 4), (4, 7), (7, 10)]
    """
    size, rest = divmod(num_elements, num_parts)
    starts = [part * size + min(part, rest) for part in range(num_parts + 1)]
    return list(pairwise(starts))


def exchange(num_elements: int, num_ranks: int) -> TransferList:
    """All-reduce with the least latency: everyone publishes everything, everyone adds up. For small tensors."""
    if num_ranks == 1:
        return ()
    return tuple(Transfer(rank, _others(rank, num_ranks), 0, num_elements, "reduce") for rank in range(num_ranks))


def three_phase(num_elements: int, num_ranks: int) -> TransferList:
    """LambdaML's scatter-reduce (FuncPipe §3.3): upload the others' splits, merge one's own, gather the merged."""
    if num_ranks == 1:
        return ()
    parts = spans(num_elements, num_ranks)
    transfers: list[Transfer] = []
    for distance in range(1, num_ranks):  # everyone begins with the next rank, so that no reader is besieged
        for source in range(num_ranks):
            owner = (source + distance) % num_ranks
            transfers.append(Transfer(source, (owner,), *parts[owner], "reduce"))
    for owner in range(num_ranks):
        incoming = tuple(i for i, part in enumerate(transfers) if part.combine == "reduce" and owner in part.readers)
        transfers.append(Transfer(owner, _others(owner, num_ranks), *parts[owner], "copy", incoming))
    return tuple(transfers)


def broadcast(num_elements: int, num_ranks: int, root: int) -> TransferList:
    """One publishes, the others take."""
    return (Transfer(root, _others(root, num_ranks), 0, num_elements, "copy"),) if num_ranks > 1 else ()


def all_gather(num_elements: int, num_ranks: int) -> TransferList:
    """The buffer holds one equal part per rank; each publishes its own and takes the others'."""
    if num_ranks == 1:
        return ()
    parts = spans(num_elements, num_ranks)
    return tuple(Transfer(rank, _others(rank, num_ranks), *parts[rank], "copy") for rank in range(num_ranks))


ALL_REDUCE: dict[str, Callable[[int, int], TransferList]] = {"exchange": exchange, "three_phase": three_phase}

EXCHANGE_MAX_BYTES = 64 * 1024
"""Below this, latency rather than bandwidth decides, and `exchange` has half the round trips."""


def choose_all_reduce(num_elements: int, element_bytes: int, num_ranks: int, preferred: str) -> TransferList:
    """The transfer list of one all-reduce: the preferred algorithm, or `exchange` for what is small."""
    small = num_elements * element_bytes <= EXCHANGE_MAX_BYTES or num_elements < num_ranks
    return (exchange if small else ALL_REDUCE[preferred])(num_elements, num_ranks)


def _others(rank: int, num_ranks: int) -> tuple[int, ...]:
    return tuple(other for other in range(num_ranks) if other != rank)

"""Collectives as lists of transfers, which the process group executes and the predictor times.

A transfer moves a span of the buffer from one rank to one or more readers. Over an object store it is one put, and a
get for each reader; over sockets, a message to each reader. A reader adds the data of `reduce` transfers to its own
span when all of them have arrived, in the order of ranks, so that every run of a step gives the same bits.

A rank begins the sends and takes of a round when it has finished those of the rounds before. Most lists have one round:
a transfer starts as soon as its data exist, and in list order where a link is busy.

In the formulas, s is the number of bytes, n the number of ranks, w the bandwidth of a link and l its latency.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message of a collective; its number is its index in the list."""

    source: int
    readers: tuple[int, ...]
    start: int
    """First element of the span."""
    stop: int
    """One past the last element."""
    combine: Literal["reduce", "copy"]
    after: tuple[int, ...] = ()
    """Transfers that the source must have taken before it sends this one."""
    send_round: int = 0
    take_round: int = 0

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


TransferList = tuple[Transfer, ...]


@dataclass(frozen=True)
class FlightWindow:
    """The limit on messages in flight between a rank and a store.

    Many small messages at once hide their latency. A few large ones keep the link busy, and the first still arrives
    early.
    """

    min_at_once: int
    max_bytes: int
    """The largest total of messages in flight where there are more than `min_at_once`."""

    def admits(self, num_active: int, active_bytes: float, next_bytes: float) -> bool:
        return num_active < self.min_at_once or active_bytes + next_bytes <= self.max_bytes


UPLOADS = FlightWindow(min_at_once=2, max_bytes=2**20)
DOWNLOADS = FlightWindow(min_at_once=4, max_bytes=2 * 2**20)

_MAX_WEIGHT = 4
"""The size of the largest chunk of `streaming`, as a multiple of the smallest."""
_TREE_WIDTH = 4
"""Number of children of each rank in a tree."""
Span = tuple[int, int]


def spans(num_elements: int, num_parts: int) -> list[Span]:
    """Cut a buffer into equal parts; the first parts get the remainder.

    >>> spans(10, 3)
    [(0, 4), (4, 7), (7, 10)]
    """
    size, rest = divmod(num_elements, num_parts)
    starts = [part * size + min(part, rest) for part in range(num_parts + 1)]
    return list(pairwise(starts))


@lru_cache(maxsize=512)
def exchange(num_elements: int, num_ranks: int) -> TransferList:
    """All-reduce of small tensors with the least latency: every rank publishes its buffer, and adds up all."""
    if num_ranks == 1:
        return ()
    return tuple(Transfer(rank, _others(rank, num_ranks), 0, num_elements, "reduce") for rank in range(num_ranks))


@lru_cache(maxsize=512)
def tree(num_elements: int, num_ranks: int, *, publishes: bool) -> TransferList:
    """All-reduce of small tensors over many ranks, along a tree; a rank sends and takes only a few messages.

    The sum returns down the tree. If the first rank `publishes` it, all ranks take it from there, as from a store.
    """
    transfers: list[Transfer] = []
    arriving: list[list[int]] = [[] for _ in range(num_ranks)]
    for rank in range(num_ranks - 1, 0, -1):
        parent = (rank - 1) // _TREE_WIDTH
        arriving[parent].append(len(transfers))
        transfers.append(Transfer(rank, (parent,), 0, num_elements, "reduce", tuple(arriving[rank])))
    needs = {0: tuple(arriving[0])}
    for rank in range(num_ranks):
        first = _TREE_WIDTH * rank + 1
        children = range(1, num_ranks) if publishes else range(first, min(first + _TREE_WIDTH, num_ranks))
        if not children or (publishes and rank > 0):
            break
        needs |= dict.fromkeys(children, (len(transfers),))
        transfers.append(Transfer(rank, tuple(children), 0, num_elements, "copy", needs[rank]))
    return tuple(transfers)


def three_phase(num_elements: int, num_ranks: int) -> TransferList:
    """LambdaML's scatter-reduce (FuncPipe §3.3), in three phases that do not overlap.

    A rank uploads the splits of others, takes and merges its own split, and publishes the merged split, which the
    others take. Time 3s/w − 2s/(nw) + 4l (FuncPipe (1)).
    """
    return _scatter_reduce(num_elements, num_ranks, lambda distance: (0, 1), publish_round=2)


def pipelined(num_elements: int, num_ranks: int) -> TransferList:
    """FuncPipe's scatter-reduce (§3.3), whose uploads and downloads overlap.

    In round k, rank i uploads split i + k and takes the part of its own split that rank i − (k − 1) uploaded a round
    before. Merged splits are published as in `three_phase`. Time 2s/w + (n + 2)l (FuncPipe (2)).
    """
    return _scatter_reduce(num_elements, num_ranks, lambda distance: (distance - 1, distance), publish_round=num_ranks)


def streaming(num_elements: int, num_ranks: int, num_chunks: int = 8) -> TransferList:
    """Scatter-reduce without phases: a chunk is merged when its n − 1 parts have arrived, and published at once.

    The lower bound is the downlink's time, 2s(n−1)/(nw). Only the time before the first chunk arrives and after the
    last one is merged is lost, so these chunks are the smallest. Two ranks send each other everything in chunks: that
    is as many bytes, and nothing waits for a merge. Two uploads share a link there. As the first chunk is smaller, they
    end in turn and not at the same time, so that the other rank's downlink never waits for both.
    """
    if num_ranks == 1:
        return ()
    if num_ranks == 2:
        num_pieces = num_ranks * num_chunks
        weights = [min(number + 1, num_pieces - number, 2) for number in range(num_pieces)]
        pieces = chunks_of((0, num_elements), weights)
        return tuple(Transfer(rank, (1 - rank,), *piece, "reduce") for piece in pieces for rank in range(num_ranks))
    weights = [min(number + 1, num_chunks - number, _MAX_WEIGHT) for number in range(num_chunks)]
    chunks = [chunks_of(part, weights) for part in spans(num_elements, num_ranks)]
    transfers: list[Transfer] = []
    for number in range(num_chunks):
        parts = [chunks[owner][number] for owner in range(num_ranks)]
        arriving: list[list[int]] = [[] for _ in range(num_ranks)]
        for source, owner in _pairs(num_ranks):
            arriving[owner].append(len(transfers))
            transfers.append(Transfer(source, (owner,), *parts[owner], "reduce"))
        for owner in range(num_ranks):
            readers = tuple((owner + distance) % num_ranks for distance in range(1, num_ranks))
            transfers.append(Transfer(owner, readers, *parts[owner], "copy", tuple(arriving[owner])))
    return tuple(transfers)


def ring(num_elements: int, num_ranks: int, num_chunks: int = 1) -> TransferList:
    """All-reduce around a ring: each split is summed in n − 1 hops, and the sum is passed on in n − 1 more.

    Every rank talks to its two neighbours only. Time 2s(n−1)/(nw) + 2(n−1)l.
    """
    if num_ranks == 1:
        return ()
    chunks = [chunks_of(part, [1] * num_chunks) for part in spans(num_elements, num_ranks)]
    transfers: list[Transfer] = []
    latest: dict[tuple[int, int], int] = {}
    for hop in range(2 * (num_ranks - 1)):
        is_sum = hop < num_ranks - 1
        for number in range(num_chunks):
            for source in range(num_ranks):
                part = (source - hop) % num_ranks
                after = (latest[part, number],) if hop else ()
                reader = (source + 1) % num_ranks
                span = chunks[part][number]
                transfers.append(Transfer(source, (reader,), *span, "reduce" if is_sum else "copy", after))
                latest[part, number] = len(transfers) - 1
    return tuple(transfers)


@lru_cache(maxsize=512)
def broadcast(num_elements: int, num_ranks: int, root: int) -> TransferList:
    """The root publishes, and the others take."""
    return (Transfer(root, _others(root, num_ranks), 0, num_elements, "copy"),) if num_ranks > 1 else ()


@lru_cache(maxsize=512)
def reduce(num_elements: int, num_ranks: int, root: int) -> TransferList:
    """Every rank sends to the root, which adds up."""
    return tuple(Transfer(rank, (root,), 0, num_elements, "reduce") for rank in _others(root, num_ranks))


@lru_cache(maxsize=512)
def reduce_scatter(parts: tuple[Span, ...]) -> TransferList:
    """Every rank sends each owner its part, and adds up its own."""
    return tuple(Transfer(source, (owner,), *parts[owner], "reduce") for source, owner in _pairs(len(parts)))


@lru_cache(maxsize=512)
def all_gather(num_parts: int, num_ranks: int) -> TransferList:
    """Every rank publishes its part of the buffer, and takes the parts of the others; parts are equal."""
    if num_ranks == 1:
        return ()
    parts = spans(num_parts, num_ranks)
    return tuple(Transfer(rank, _others(rank, num_ranks), *parts[rank], "copy") for rank in range(num_ranks))


@lru_cache(maxsize=512)
def gather(num_ranks: int, root: int) -> TransferList:
    """Every rank sends its part, numbered by the rank, to the root."""
    return tuple(Transfer(rank, (root,), rank, rank + 1, "copy") for rank in _others(root, num_ranks))


@lru_cache(maxsize=512)
def scatter(num_ranks: int, root: int) -> TransferList:
    """The root sends each rank its part, numbered by that rank."""
    return tuple(Transfer(root, (rank,), rank, rank + 1, "copy") for rank in _others(root, num_ranks))


@lru_cache(maxsize=512)
def all_to_all(num_ranks: int) -> TransferList:
    """Every rank sends every other one a part; the part from i to j has the number i·n + j."""
    return tuple(
        Transfer(source, (reader,), source * num_ranks + reader, source * num_ranks + reader + 1, "copy")
        for source, reader in _pairs(num_ranks)
    )


@lru_cache(maxsize=512)
def tree_reduce(num_elements: int, num_nodes: tuple[int, ...]) -> TransferList:
    """Sum along a tree over grains; `num_nodes` says how many nodes of the tree each rank has.

    Every rank sends each owner its part of all nodes, and takes the sums of all owners. With one node on each rank that
    is 2s(n−1)/n bytes, as in a ring.
    """
    num_ranks = len(num_nodes)
    size = -(-num_elements // num_ranks)
    transfers: list[Transfer] = []
    arriving: list[list[int]] = [[] for _ in range(num_ranks)]
    for source, owner in _pairs(num_ranks):
        arriving[owner].append(len(transfers))
        transfers.append(Transfer(source, (owner,), 0, num_nodes[source] * size, "copy"))
    for owner in range(num_ranks):
        after = tuple(arriving[owner])
        transfers.append(Transfer(owner, _others(owner, num_ranks), 0, size, "copy", after))
    return tuple(transfers)


def _scatter_reduce(
    num_elements: int, num_ranks: int, rounds: Callable[[int], tuple[int, int]], publish_round: int
) -> TransferList:
    """Send every split to its owner in the rounds (send, take) of its distance, then publish the merged splits."""
    if num_ranks == 1:
        return ()
    splits = spans(num_elements, num_ranks)
    transfers: list[Transfer] = []
    for source, owner in _pairs(num_ranks):
        distance = (owner - source) % num_ranks
        transfers.append(Transfer(source, (owner,), *splits[owner], "reduce", (), *rounds(distance)))
    merged = []
    for owner, split in enumerate(splits):
        arriving = tuple(number for number, transfer in enumerate(transfers) if owner in transfer.readers)
        readers = _others(owner, num_ranks)
        merged.append(Transfer(owner, readers, *split, "copy", arriving, publish_round, publish_round + 1))
    return (*transfers, *merged)


def chunks_of(span: Span, weights: list[int]) -> list[Span]:
    """Cut a span in proportion to weights."""
    start, stop = span
    ends = [start + (stop - start) * total // sum(weights) for total in accumulate(weights)]
    return list(pairwise([start, *ends]))


def _pairs(num_ranks: int) -> Iterator[tuple[int, int]]:
    """All (source, reader); every source begins with the next rank, so that no reader gets all at once."""
    ranks = range(num_ranks)
    return ((source, (source + distance) % num_ranks) for distance in ranks[1:] for source in ranks)


def _others(rank: int, num_ranks: int) -> tuple[int, ...]:
    return tuple(other for other in range(num_ranks) if other != rank)

"""Collectives as lists of transfers, executed by the process group over any transport and timed by the predictor.

A transfer moves a span of the buffer from one rank to one or more readers. Over an object store it is one put and a get
for each reader; over sockets, a message to each. What `reduce` transfers bring is added to the reader's own span when
all of that span are in, in the order of their ranks, so that every run of the same step gives the same bits.

A rank begins the sends and the takes of a round when it has finished those of the rounds before. Most lists have one
round: everything starts as early as its data exist, in the order of the list where a link is busy.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal

from zooid.core.plans.plan import OwnTransportName


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
    send_round: int = 0
    take_round: int = 0

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


TransferList = tuple[Transfer, ...]


@dataclass(frozen=True)
class Window:
    """How many messages a rank has on its way through a store at once, in the order of the list.

    Small ones go side by side, which hides their latency; of large ones a few, so that the first is there early while
    the link never idles.
    """

    min_at_once: int
    max_bytes: int
    """More than `min_at_once` only as long as they are not larger than this together."""

    def admits(self, num_active: int, active_bytes: float, next_bytes: float) -> bool:
        return num_active < self.min_at_once or active_bytes + next_bytes <= self.max_bytes


UPLOADS = Window(min_at_once=2, max_bytes=2**20)
DOWNLOADS = Window(min_at_once=4, max_bytes=2 * 2**20)

_MAX_WEIGHT = 4
"""The largest chunk of `streaming`, in smallest ones."""
_TREE_WIDTH = 4
"""How many ranks each rank of a tree has below it."""
Span = tuple[int, int]


def spans(num_elements: int, num_parts: int) -> list[Span]:
    """Even cuts of a buffer; the first parts take what does not divide.

    >>> spans(10, 3)
    [(0, 4), (4, 7), (7, 10)]
    """
    size, rest = divmod(num_elements, num_parts)
    starts = [part * size + min(part, rest) for part in range(num_parts + 1)]
    return list(pairwise(starts))


@lru_cache(maxsize=512)
def exchange(num_elements: int, num_ranks: int) -> TransferList:
    """All-reduce with the least latency: everyone publishes everything, everyone adds up. For small tensors."""
    if num_ranks == 1:
        return ()
    return tuple(Transfer(rank, _others(rank, num_ranks), 0, num_elements, "reduce") for rank in range(num_ranks))


@lru_cache(maxsize=512)
def tree(num_elements: int, num_ranks: int, *, publishes: bool) -> TransferList:
    """All-reduce of small tensors over many ranks, along a tree in which each rank has a few below it. A rank sends and
    takes a few messages, however many ranks there are.

    The sum goes back down the tree. If the first rank `publishes` it, all take it from there, as from a store.
    """
    transfers: list[Transfer] = []
    arriving: list[list[int]] = [[] for _ in range(num_ranks)]
    for rank in range(num_ranks - 1, 0, -1):
        above = (rank - 1) // _TREE_WIDTH
        arriving[above].append(len(transfers))
        transfers.append(Transfer(rank, (above,), 0, num_elements, "reduce", tuple(arriving[rank])))
    needs = {0: tuple(arriving[0])}
    for rank in range(num_ranks):
        first = _TREE_WIDTH * rank + 1
        below = range(1, num_ranks) if publishes else range(first, min(first + _TREE_WIDTH, num_ranks))
        if not below or (publishes and rank > 0):
            break
        needs |= dict.fromkeys(below, (len(transfers),))
        transfers.append(Transfer(rank, tuple(below), 0, num_elements, "copy", needs[rank]))
    return tuple(transfers)


def three_phase(num_elements: int, num_ranks: int) -> TransferList:
    """LambdaML's scatter-reduce (FuncPipe §3.3): upload the others' splits; take and merge one's own; upload the
    merged split, then take the others'. Time 3s/w − 2s/(nw) + 4l (FuncPipe (1))."""
    if num_ranks == 1:
        return ()
    parts = spans(num_elements, num_ranks)
    transfers: list[Transfer] = []
    for distance in range(1, num_ranks):  # everyone begins with the next rank, so that no reader is besieged
        for source in range(num_ranks):
            owner = (source + distance) % num_ranks
            transfers.append(Transfer(source, (owner,), *parts[owner], "reduce", (), 0, 1))
    return _publish_merged(transfers, parts, send_round=2)


def pipelined(num_elements: int, num_ranks: int) -> TransferList:
    """FuncPipe's scatter-reduce (§3.3): in step k, rank i uploads split i + k while it takes its own split that rank
    i − (k − 1) uploaded a step before; merged splits as in `three_phase`. Time 2s/w + (n + 2)l (FuncPipe (2))."""
    if num_ranks == 1:
        return ()
    parts = spans(num_elements, num_ranks)
    transfers: list[Transfer] = []
    for step in range(1, num_ranks):
        for source in range(num_ranks):
            owner = (source + step) % num_ranks
            transfers.append(Transfer(source, (owner,), *parts[owner], "reduce", (), step - 1, step))
    return _publish_merged(transfers, parts, send_round=num_ranks)


def streaming(num_elements: int, num_ranks: int, num_chunks: int = 8) -> TransferList:
    """Scatter-reduce without phases: splits travel in chunks, a chunk is merged when its n − 1 parts are in and goes
    out while later chunks still arrive. The bound is the downlink, 2s(n−1)/(nw); what is lost is the time until the
    first chunk can be taken and after the last one was merged, so these are the smallest. Two ranks send one another
    everything, chunk by chunk: that is as many bytes, and nothing waits for a merge.
    """
    if num_ranks == 1:
        return ()
    if num_ranks == 2:
        pieces = spans(num_elements, num_ranks * num_chunks)
        return tuple(Transfer(rank, (1 - rank,), *piece, "reduce") for piece in pieces for rank in range(num_ranks))
    weights = [min(number + 1, num_chunks - number, _MAX_WEIGHT) for number in range(num_chunks)]
    chunks = [_chunks(part, weights) for part in spans(num_elements, num_ranks)]
    transfers: list[Transfer] = []
    for number in range(num_chunks):
        parts = [chunks[owner][number] for owner in range(num_ranks)]
        arriving: list[list[int]] = [[] for _ in range(num_ranks)]
        for distance in range(1, num_ranks):
            for source in range(num_ranks):
                owner = (source + distance) % num_ranks
                arriving[owner].append(len(transfers))
                transfers.append(Transfer(source, (owner,), *parts[owner], "reduce"))
        for owner in range(num_ranks):
            readers = tuple((owner + distance) % num_ranks for distance in range(1, num_ranks))
            transfers.append(Transfer(owner, readers, *parts[owner], "copy", tuple(arriving[owner])))
    return tuple(transfers)


def ring(num_elements: int, num_ranks: int, num_chunks: int = 1) -> TransferList:
    """All-reduce around a ring: n − 1 hops in which a split gathers its sum, n − 1 in which the sum goes round. Every
    rank talks to its two neighbours only; time 2s(n−1)/(nw) + 2(n−1)l."""
    if num_ranks == 1:
        return ()
    chunks = [_chunks(part, [1] * num_chunks) for part in spans(num_elements, num_ranks)]
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


def hierarchical(num_elements: int, sites: Sequence[Hashable], num_chunks: int = 1) -> TransferList:
    """All-reduce over places that are far from one another; `sites` says of each rank where it is.

    In every site each member adds up a part of its own. The members that own the same part in their sites send these
    sums to one of them, by turns of all sites, which publishes the whole sum; the others spread it inside. Between
    sites that is 2s(G−1)/G bytes out of every one of G sites, the least there can be, over as many connections as the
    site has members; no member moves more than without sites, 2s(N−1)/N. A rank adds up any element only once, so that
    sums need no order among them.
    """
    crews: dict[Hashable, list[int]] = {}
    for rank, site in enumerate(sites):
        crews.setdefault(site, []).append(rank)
    owned = _owned_parts(num_elements, list(crews.values()), num_chunks) if len(sites) > 1 else []
    transfers: list[Transfer] = []
    for parts in owned:
        _add_hierarchical(transfers, parts, list(crews.values()))
    return tuple(transfers)


@lru_cache(maxsize=512)
def broadcast(num_elements: int, num_ranks: int, root: int) -> TransferList:
    """One publishes, the others take."""
    return (Transfer(root, _others(root, num_ranks), 0, num_elements, "copy"),) if num_ranks > 1 else ()


@lru_cache(maxsize=512)
def reduce(num_elements: int, num_ranks: int, root: int) -> TransferList:
    """Everyone sends to the root, which adds up."""
    return tuple(Transfer(rank, (root,), 0, num_elements, "reduce") for rank in _others(root, num_ranks))


@lru_cache(maxsize=512)
def reduce_scatter(parts: tuple[Span, ...]) -> TransferList:
    """Everyone sends each owner its part, and adds up its own."""
    num_ranks = len(parts)
    return tuple(
        Transfer(source, ((source + distance) % num_ranks,), *parts[(source + distance) % num_ranks], "reduce")
        for distance in range(1, num_ranks)
        for source in range(num_ranks)
    )


@lru_cache(maxsize=512)
def all_gather(num_parts: int, num_ranks: int) -> TransferList:
    """The buffer holds one equal part per rank; each publishes its own and takes the others'."""
    if num_ranks == 1:
        return ()
    parts = spans(num_parts, num_ranks)
    return tuple(Transfer(rank, _others(rank, num_ranks), *parts[rank], "copy") for rank in range(num_ranks))


@lru_cache(maxsize=512)
def gather(num_ranks: int, root: int) -> TransferList:
    """Each sends its own part, numbered by its rank, to the root."""
    return tuple(Transfer(rank, (root,), rank, rank + 1, "copy") for rank in _others(root, num_ranks))


@lru_cache(maxsize=512)
def scatter(num_ranks: int, root: int) -> TransferList:
    """The root sends each rank its part, numbered by that rank."""
    return tuple(Transfer(root, (rank,), rank, rank + 1, "copy") for rank in _others(root, num_ranks))


@lru_cache(maxsize=512)
def all_to_all(num_ranks: int) -> TransferList:
    """Everyone sends everyone a part; the part from i to j has the number i·n + j."""
    return tuple(
        Transfer(source, (reader,), source * num_ranks + reader, source * num_ranks + reader + 1, "copy")
        for distance in range(1, num_ranks)
        for source in range(num_ranks)
        for reader in [(source + distance) % num_ranks]
    )


@lru_cache(maxsize=512)
def tree_reduce(num_elements: int, num_nodes: tuple[int, ...]) -> TransferList:
    """A sum along a tree over grains, of whose nodes each rank has so many: everyone sends each owner its part of all
    of its nodes, and takes everybody's sums. With one node on each rank that is 2s(n−1)/n bytes, as in a ring."""
    num_ranks = len(num_nodes)
    size = -(-num_elements // num_ranks)
    transfers: list[Transfer] = []
    arriving: list[list[int]] = [[] for _ in range(num_ranks)]
    for distance in range(1, num_ranks):
        for source in range(num_ranks):
            owner = (source + distance) % num_ranks
            arriving[owner].append(len(transfers))
            transfers.append(Transfer(source, (owner,), 0, num_nodes[source] * size, "copy"))
    for owner in range(num_ranks):
        after = tuple(arriving[owner])
        transfers.append(Transfer(owner, _others(owner, num_ranks), 0, size, "copy", after))
    return tuple(transfers)


ALL_REDUCE: dict[str, Callable[[int, int], TransferList]] = {
    "exchange": exchange,
    "three_phase": three_phase,
    "pipelined": pipelined,
    "streaming": streaming,
    "ring": ring,
}

EXCHANGE_MAX_BYTES = 64 * 1024
"""Below this, latency rather than bandwidth decides, and `exchange` has half the round trips."""
MIN_CHUNK_BYTES = 256 * 1024
"""Of `streaming`: smaller chunks fill a slow link no better, and each is a request."""
AUTO_CHUNK_BYTES = 4 * 2**20
"""Of `auto`, which does not know the price of requests: a fast link carries this in a tenth of a second."""
MAX_CHUNKS = 8
MOST_EXCHANGING = 8
"""Among more ranks, small tensors go along a tree: with `exchange`, each would take a message of every other one."""


@lru_cache(maxsize=512)
def choose_all_reduce(
    num_elements: int,
    element_bytes: int,
    num_ranks: int,
    preferred: str,
    exchange_max_bytes: int = EXCHANGE_MAX_BYTES,
    min_chunk_bytes: int | None = None,
    tree_over: OwnTransportName | None = None,
) -> TransferList:
    """The transfer list of one all-reduce: the preferred algorithm, or `exchange` or `tree` for what is small.

    `auto` is `streaming`, which no other algorithm beats on bytes, once a buffer is not small; `exchange_max_bytes`
    says where that begins on the links at hand (see `break_even_bytes`). Its chunks are larger than those of
    `streaming` itself, so that it makes no more requests than the others unless buffers are large.

    Many ranks use `tree` for what is small, over the transport that is given as `tree_over`, if any.
    """
    num_bytes = num_elements * element_bytes
    if preferred == "exchange" or num_bytes <= exchange_max_bytes or num_elements < num_ranks:
        if num_ranks > MOST_EXCHANGING and preferred != "exchange" and tree_over is not None:
            return tree(num_elements, num_ranks, publishes=tree_over == "store")
        return exchange(num_elements, num_ranks)
    if preferred in ("auto", "streaming", "ring"):
        chunk_bytes = min_chunk_bytes or (AUTO_CHUNK_BYTES if preferred == "auto" else MIN_CHUNK_BYTES)
        num_chunks = max(1, min(MAX_CHUNKS, num_bytes // num_ranks // chunk_bytes))
        return (ring if preferred == "ring" else streaming)(num_elements, num_ranks, num_chunks)
    return ALL_REDUCE[preferred](num_elements, num_ranks)


def break_even_bytes(latency_s: float, bytes_per_s: float, num_ranks: int) -> int:
    """The size up to which `exchange` is not slower than `streaming`.

    `exchange` takes 2l + s/w + (n−1)s/w, one chunk of `streaming` 4l + 2s/w: equal at s = 2lw/(n − 2); between two
    ranks `exchange` saves latency and costs nothing until a buffer can be cut into chunks.
    """
    if num_ranks == 2:
        return 2 * MIN_CHUNK_BYTES
    return int(2 * latency_s * bytes_per_s / (num_ranks - 2))


@dataclass(frozen=True, slots=True)
class _OwnedPart:
    """A span that one member of each site adds up for it, and the site that adds up these sums."""

    span: Span
    owners: tuple[int, ...]
    home: int


def _owned_parts(num_elements: int, crews: list[list[int]], num_chunks: int) -> list[list[_OwnedPart]]:
    """Parts by chunk. Sites of unequal size cut the buffer at different places; a part lies between any two cuts."""
    starts = [[start for start, _ in spans(num_elements, len(crew))] for crew in crews]
    cuts = sorted({0, num_elements}.union(*starts))
    chunks: list[list[_OwnedPart]] = [[] for _ in range(num_chunks)]
    for piece in pairwise(cuts):
        owners = tuple(crew[bisect_right(own, piece[0]) - 1] for crew, own in zip(crews, starts, strict=True))
        for parts, chunk in zip(chunks, _chunks(piece, [1] * num_chunks), strict=True):
            shares = _chunks(chunk, [1] * len(crews))
            parts += [_OwnedPart(span, owners, home) for home, span in enumerate(shares) if span[0] < span[1]]
    return chunks


def _add_hierarchical(transfers: list[Transfer], parts: list[_OwnedPart], crews: list[list[int]]) -> None:
    """Append what one chunk takes: parts to owners inside, sums of sites to their homes, and back."""
    arriving: defaultdict[tuple[_OwnedPart, int], list[int]] = defaultdict(list)
    for distance in range(1, max(map(len, crews))):  # as in the other lists, nobody is besieged
        for part in parts:
            for crew, owner in zip(crews, part.owners, strict=True):
                if distance < len(crew):
                    arriving[part, owner].append(len(transfers))
                    source = _others_of(crew, owner)[-distance]
                    transfers.append(Transfer(source, (owner,), *part.span, "reduce"))
    for distance in range(1, len(crews)):
        for part in parts:
            source, reader = part.owners[(part.home - distance) % len(crews)], part.owners[part.home]
            arriving[part, reader].append(len(transfers))
            transfers.append(Transfer(source, (reader,), *part.span, "reduce", tuple(arriving[part, source])))
    for part in parts:
        source = part.owners[part.home]
        far = [(part.home + distance) % len(crews) for distance in range(1, len(crews))]
        readers = (*(part.owners[site] for site in far), *_others_of(crews[part.home], source))
        whole = len(transfers)
        transfers.append(Transfer(source, readers, *part.span, "copy", tuple(arriving[part, source])))
        for site in far:
            others = _others_of(crews[site], part.owners[site])
            if others:
                transfers.append(Transfer(part.owners[site], others, *part.span, "copy", (whole,)))


def _publish_merged(transfers: list[Transfer], parts: list[Span], send_round: int) -> TransferList:
    """Append every owner's merged split, which goes out when its parts are in and is taken a round later."""
    num_ranks = len(parts)
    merged = []
    for owner in range(num_ranks):
        incoming = tuple(i for i, part in enumerate(transfers) if owner in part.readers)
        readers = _others(owner, num_ranks)
        merged.append(Transfer(owner, readers, *parts[owner], "copy", incoming, send_round, send_round + 1))
    return (*transfers, *merged)


def _chunks(span: Span, weights: list[int]) -> list[Span]:
    """Cuts of a span in proportion to weights."""
    start, stop = span
    ends = [start + (stop - start) * total // sum(weights) for total in accumulate(weights)]
    return list(pairwise([start, *ends]))


def _others(rank: int, num_ranks: int) -> tuple[int, ...]:
    return tuple(other for other in range(num_ranks) if other != rank)


def _others_of(crew: list[int], rank: int) -> tuple[int, ...]:
    """The rest of a site, beginning with the next."""
    place = crew.index(rank)
    return (*crew[place + 1 :], *crew[:place])

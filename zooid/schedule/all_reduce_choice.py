"""The choice of the transfer list for an all-reduce, by bytes, ranks, transport and measured latency."""

from collections.abc import Callable
from functools import lru_cache

from zooid.core.plans.plan import AllReduceName, OwnTransportName
from zooid.schedule.transfer_lists import TransferList, exchange, pipelined, ring, streaming, three_phase, tree

ALL_REDUCE: dict[str, Callable[[int, int], TransferList]] = {
    "exchange": exchange,
    "three_phase": three_phase,
    "pipelined": pipelined,
    "streaming": streaming,
    "ring": ring,
}

EXCHANGE_MAX_BYTES = 64 * 1024
"""Up to this size latency matters more than bandwidth, and `exchange` has half the round trips."""
MIN_CHUNK_BYTES = 256 * 1024
"""The smallest chunk of `streaming`: smaller ones fill a slow link no better, and each is a request."""
AUTO_CHUNK_BYTES = 4 * 2**20
"""The smallest chunk of `auto`, which does not know the price of requests; a fast link needs 0.1 s for it."""
MAX_CHUNKS = 8
MAX_PAIR_CHUNKS = 16
"""The largest number of chunks of each half between two ranks, which then send as many messages as each of four."""
_MAX_EXCHANGING = 8
"""Above this number of ranks, small tensors use a tree; with `exchange`, each rank would take n − 1 messages."""


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
    """The transfer list of one all-reduce: the preferred algorithm, or `exchange` or `tree` for small buffers.

    A buffer is small up to `exchange_max_bytes`, which depends on the links (see `break_even_bytes`). For other buffers
    `auto` is `streaming`, since no algorithm moves fewer bytes. Its chunks are larger than those of `streaming` itself,
    so that it makes no more requests than the others unless buffers are large.

    Many ranks use `tree` for small buffers, if `tree_over` names a transport.
    """
    num_bytes = num_elements * element_bytes
    if preferred == "exchange" or num_bytes <= exchange_max_bytes or num_elements < num_ranks:
        if num_ranks > _MAX_EXCHANGING and preferred != "exchange" and tree_over is not None:
            return tree(num_elements, num_ranks, publishes=tree_over == "store")
        return exchange(num_elements, num_ranks)
    if preferred in ("auto", "streaming", "ring"):
        chunk_bytes = min_chunk_bytes or (AUTO_CHUNK_BYTES if preferred == "auto" else MIN_CHUNK_BYTES)
        most = MAX_PAIR_CHUNKS if num_ranks == 2 and preferred != "ring" else MAX_CHUNKS
        num_chunks = max(1, min(most, num_bytes // num_ranks // chunk_bytes))
        return (ring if preferred == "ring" else streaming)(num_elements, num_ranks, num_chunks)
    return ALL_REDUCE[preferred](num_elements, num_ranks)


def break_even_bytes(latency_s: float, bytes_per_s: float, num_ranks: int) -> int:
    """The largest size for which `exchange` is not slower than `streaming`.

    `exchange` takes 2l + s/w + (n−1)s/w, and one chunk of `streaming` 4l + 2s/w; they are equal at s = 2lw/(n − 2).
    Between two ranks, `exchange` saves latency and costs nothing until a buffer can be cut into chunks.
    """
    if num_ranks == 2:
        return 2 * MIN_CHUNK_BYTES
    return int(2 * latency_s * bytes_per_s / (num_ranks - 2))


_ASSUMED_BYTES_PER_S = {"store": 50e6, "tcp": 125e6}
"""The assumed bandwidth of a link whose latency alone was measured."""
_CHUNK_BYTES = {"store": None, "tcp": 2 * 2**20}
"""Chunk sizes; sockets need chunks only to overlap sums with transfers, and each costs some processor time."""
_PAIR_EXCHANGE_BYTES = 2**20
"""Up to this size, the fewest messages are fastest between two ranks over sockets.

All algorithms move equally many bytes between two ranks.
"""


class AllReduceChoice:
    """The rule of one group.

    It depends only on facts that all ranks know, so that all ranks, and predictions, choose the same list.
    """

    def __init__(
        self, transport: OwnTransportName, preferred: AllReduceName, num_ranks: int, latency_s: float | None
    ) -> None:
        self._num_ranks = num_ranks
        self._transport = transport
        self._chunk_bytes = _CHUNK_BYTES[transport]
        self._name: str = preferred
        self._exchange_max_bytes = EXCHANGE_MAX_BYTES
        if preferred != "auto":
            return
        if transport == "tcp":
            self._name = "ring"
        if num_ranks > 2 and latency_s is not None:
            rate = _ASSUMED_BYTES_PER_S[transport]
            self._exchange_max_bytes = break_even_bytes(latency_s, rate, num_ranks)
        elif num_ranks == 2 and transport == "tcp":
            self._exchange_max_bytes = _PAIR_EXCHANGE_BYTES

    def transfers(self, num_elements: int, element_bytes: int, *, is_lossy: bool = False) -> TransferList:
        """The list of an all-reduce; a lossy codec excludes rings and trees, which would lose digits at every hop."""
        name = "streaming" if is_lossy and self._name == "ring" else self._name
        return choose_all_reduce(
            num_elements,
            element_bytes,
            self._num_ranks,
            name,
            self._exchange_max_bytes,
            self._chunk_bytes,
            None if is_lossy else self._transport,
        )

"""Which transfer list an all-reduce of a group runs: by bytes, ranks, transport and the latency that was measured."""

from zooid.core.plans.plan import AllReduceName, OwnTransportName
from zooid.schedule import transfer_lists
from zooid.schedule.transfer_lists import TransferList

_ASSUMED_BYTES_PER_S = {"store": 50e6, "tcp": 125e6}
"""What a link is taken to carry when sizes are weighed against its measured latency."""
_CHUNK_BYTES = {"store": None, "tcp": 2 * 2**20}
"""Sockets need chunks only so that sums and transfers overlap; each costs some processor time."""
_PAIR_EXCHANGE_BYTES = 2**20
"""Between two ranks everything moves as many bytes; over sockets, up to here, the fewest messages are fastest."""


class AllReduceChoice:
    """The rule of one group. It rests on nothing but what all ranks know, so that all choose alike, and so that a
    prediction knows what they choose."""

    def __init__(
        self, transport: OwnTransportName, preferred: AllReduceName, num_ranks: int, latency_s: float | None
    ) -> None:
        self._num_ranks = num_ranks
        self._transport = transport
        self._chunk_bytes = _CHUNK_BYTES[transport]
        self._name: str = preferred
        self._exchange_max_bytes = transfer_lists.EXCHANGE_MAX_BYTES
        if preferred != "auto":
            return
        if transport == "tcp":
            self._name = "ring"
        if num_ranks > 2 and latency_s is not None:
            rate = _ASSUMED_BYTES_PER_S[transport]
            self._exchange_max_bytes = transfer_lists.break_even_bytes(latency_s, rate, num_ranks)
        elif num_ranks == 2 and transport == "tcp":
            self._exchange_max_bytes = _PAIR_EXCHANGE_BYTES

    def transfers(self, num_elements: int, element_bytes: int, *, is_lossy: bool = False) -> TransferList:
        """The list; one that goes through a codec is never a ring or a tree, which would lose digits at every hop."""
        name = "streaming" if is_lossy and self._name == "ring" else self._name
        return transfer_lists.choose_all_reduce(
            num_elements,
            element_bytes,
            self._num_ranks,
            name,
            self._exchange_max_bytes,
            self._chunk_bytes,
            None if is_lossy else self._transport,
        )

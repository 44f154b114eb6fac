"""The part of a transfer list that one rank executes."""

from collections import defaultdict
from dataclasses import dataclass

from zooid.schedule.transfer_lists import TransferList


@dataclass(frozen=True)
class SpanSum:
    """A span that this rank adds up, and the transfers that bring its parts."""

    start: int
    stop: int
    parts: tuple[int, ...]
    sent_before: tuple[int, ...]
    """Sends of the same elements before they are summed; the sum must not overwrite them while in flight."""


@dataclass(frozen=True)
class RankRound:
    """The transfers that a rank may do at the same time."""

    sends: tuple[int, ...]
    takes: tuple[int, ...]


class RankProgram:
    """The sends, takes and sums of one rank in a collective; all calls of the same shape use the same program."""

    def __init__(self, transfers: TransferList, rank: int, *, in_rounds: bool = True) -> None:
        """`in_rounds` keeps the rounds of the list, which pace the links; dependencies hold without them."""
        sends = [number for number, transfer in enumerate(transfers) if transfer.source == rank]
        takes = [number for number, transfer in enumerate(transfers) if rank in transfer.readers]
        self._lay_out(_Order.of(transfers), rank, sends, takes, in_rounds)

    @classmethod
    def of_all(cls, transfers: TransferList, num_ranks: int, *, in_rounds: bool = True) -> "list[RankProgram]":
        """The programs of all ranks, made together."""
        order = _Order.of(transfers)
        sends: list[list[int]] = [[] for _ in range(num_ranks)]
        takes: list[list[int]] = [[] for _ in range(num_ranks)]
        for number, transfer in enumerate(transfers):
            sends[transfer.source].append(number)
            for reader in transfer.readers:
                takes[reader].append(number)
        programs = [cls.__new__(cls) for _ in range(num_ranks)]
        for rank, program in enumerate(programs):
            program._lay_out(order, rank, sends[rank], takes[rank], in_rounds)
        return programs

    def _lay_out(self, order: "_Order", rank: int, sends: list[int], takes: list[int], in_rounds: bool) -> None:
        transfers = order.transfers
        self.transfers = transfers
        self.rank = rank
        send_rounds: defaultdict[int, list[int]] = defaultdict(list)
        take_rounds: defaultdict[int, list[int]] = defaultdict(list)
        for number in sends:
            send_rounds[transfers[number].send_round if in_rounds else 0].append(number)
        for number in takes:
            take_rounds[transfers[number].take_round if in_rounds else 0].append(number)
        last_round = max([*send_rounds, *take_rounds], default=-1)
        self.rounds = tuple(
            RankRound(tuple(send_rounds[number]), tuple(take_rounds[number])) for number in range(last_round + 1)
        )
        self.sums = _sums(transfers, sends, takes)
        self.sum_of = {number: span for span in self.sums for number in span.parts}
        self.send_index = order.send_indices
        """The position of each transfer among those that its source sends."""
        self.expected_by = order.counterparts(sends, takes)
        """The send index of each take that is expected when this rank has sent its own transfer of that index."""

    @property
    def num_actions(self) -> int:
        return sum(len(part.sends) + len(part.takes) for part in self.rounds)

    def missing_ranks(self, untaken: set[int]) -> list[int]:
        """The ranks that this rank waits for; those that wait for nobody themselves, if there are any."""
        independent = {self.transfers[number].source for number in untaken if not self.transfers[number].after}
        return sorted(independent or {self.transfers[number].source for number in untaken})


def _sums(transfers: TransferList, sends: list[int], takes: list[int]) -> tuple[SpanSum, ...]:
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number in takes:
        if transfers[number].combine == "reduce":
            groups[transfers[number].start, transfers[number].stop].append(number)
    unsummed = [(number, transfers[number]) for number in sends if not transfers[number].after]
    return tuple(
        SpanSum(start, stop, tuple(parts), tuple(n for n, sent in unsummed if sent.start < stop and start < sent.stop))
        for (start, stop), parts in groups.items()
    )


@dataclass(frozen=True)
class _Order:
    """The order of sends and the dependencies of a transfer list, which all ranks know."""

    transfers: TransferList
    send_indices: tuple[int, ...]
    needed: tuple[int, ...]
    """A bit set for each transfer: those that must be taken before it can be sent."""

    @classmethod
    def of(cls, transfers: TransferList) -> "_Order":
        counts: defaultdict[int, int] = defaultdict(int)
        send_indices: list[int] = []
        needed: list[int] = []
        for transfer in transfers:
            send_indices.append(counts[transfer.source])
            counts[transfer.source] += 1
            bits = 0
            for earlier in transfer.after:
                bits |= needed[earlier] | 1 << earlier
            needed.append(bits)
        return cls(transfers, tuple(send_indices), tuple(needed))

    def counterparts(self, sends: list[int], takes: list[int]) -> dict[int, int]:
        """The send index of each take whose counterpart among the sends does not itself depend on that take."""
        send_at = {self.send_indices[number]: number for number in sends}
        return {
            number: index
            for number in takes
            if (index := self.send_indices[number]) in send_at and not self.needed[send_at[index]] >> number & 1
        }

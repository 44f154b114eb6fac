"""One rank's part of a transfer list, laid out for executing."""

from collections import defaultdict
from dataclasses import dataclass

from zooid.schedule.transfer_lists import Transfer, TransferList


@dataclass(frozen=True)
class SpanSum:
    """A span that this rank adds up: the transfers that bring its parts."""

    start: int
    stop: int
    parts: tuple[int, ...]
    sent_before: tuple[int, ...]
    """Sends of the same elements as they were: the sum must not overwrite them on their way out."""


@dataclass(frozen=True)
class Round:
    """What a rank may do at the same time."""

    sends: tuple[int, ...]
    takes: tuple[int, ...]


class Program:
    """What one rank does in one call, whatever the data: made once and run for every call of the same shape."""

    def __init__(self, transfers: TransferList, rank: int, *, in_rounds: bool = True) -> None:
        """`in_rounds` keeps to the list's rounds, which pace the links; its dependencies hold without them."""
        sends = [number for number, transfer in enumerate(transfers) if transfer.source == rank]
        takes = [number for number, transfer in enumerate(transfers) if rank in transfer.readers]
        self._lay_out(_Order.of(transfers), rank, sends, takes, in_rounds)

    @classmethod
    def of_all(cls, transfers: TransferList, num_ranks: int, *, in_rounds: bool = True) -> "list[Program]":
        """The programs of all ranks, in one go."""
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
            Round(tuple(send_rounds[number]), tuple(take_rounds[number])) for number in range(last_round + 1)
        )
        self.sums = _sums(transfers, sends, takes)
        self.sum_of = {number: span for span in self.sums for number in span.parts}
        self.place = order.places
        """Of each transfer: how many its source sends before it."""
        self.expected_by = order.clock(sends, takes)
        """Of what this rank takes: its place, where this rank sends one of that place and does not wait for it."""

    @property
    def num_actions(self) -> int:
        return sum(len(each.sends) + len(each.takes) for each in self.rounds)

    def missing_ranks(self, untaken: set[int]) -> list[int]:
        """Who keeps this rank waiting: sources of what could have been sent without waiting for anybody, if any."""
        blamed = {self.transfers[n].source for n in untaken if not self.transfers[n].after}
        return sorted(blamed or {self.transfers[number].source for number in untaken})


def _sums(transfers: TransferList, sends: list[int], takes: list[int]) -> tuple[SpanSum, ...]:
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number in takes:
        if transfers[number].combine == "reduce":
            groups[transfers[number].start, transfers[number].stop].append(number)
    return tuple(
        SpanSum(
            start,
            stop,
            tuple(parts),
            tuple(n for n in sends if _overlaps(transfers[n], start, stop) and not transfers[n].after),
        )
        for (start, stop), parts in groups.items()
    )


def _overlaps(transfer: Transfer, start: int, stop: int) -> bool:
    return transfer.start < stop and start < transfer.stop


@dataclass(frozen=True)
class _Order:
    """What all ranks know of a list."""

    transfers: TransferList
    places: tuple[int, ...]
    needed: tuple[int, ...]
    """Of each transfer, as sets of bits: all that must be taken before it can be sent."""

    @classmethod
    def of(cls, transfers: TransferList) -> "_Order":
        counts: defaultdict[int, int] = defaultdict(int)
        places: list[int] = []
        needed: list[int] = []
        for transfer in transfers:
            places.append(counts[transfer.source])
            counts[transfer.source] += 1
            bits = 0
            for earlier in transfer.after:
                bits |= needed[earlier] | 1 << earlier
            needed.append(bits)
        return cls(transfers, tuple(places), tuple(needed))

    def clock(self, sends: list[int], takes: list[int]) -> dict[int, int]:
        """Which takes can be expected by what a rank has sent itself; the others would be waited for in a circle."""
        own = {self.places[number]: number for number in sends}
        return {
            number: self.places[number]
            for number in takes
            if self.places[number] in own and not self.needed[own[self.places[number]]] >> number & 1
        }

"""One rank's part of a transfer list, laid out for executing."""

from collections import defaultdict
from dataclasses import dataclass

from zooid.schedule.collectives import Transfer, TransferList


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
        self.transfers = transfers
        self.rank = rank
        sends = [number for number, transfer in enumerate(transfers) if transfer.source == rank]
        takes = [number for number, transfer in enumerate(transfers) if rank in transfer.readers]
        send_rounds = {n: transfers[n].send_round if in_rounds else 0 for n in sends}
        take_rounds = {n: transfers[n].take_round if in_rounds else 0 for n in takes}
        last_round = max([*send_rounds.values(), *take_rounds.values()], default=-1)
        self.rounds = tuple(
            Round(
                tuple(n for n in sends if send_rounds[n] == number),
                tuple(n for n in takes if take_rounds[n] == number),
            )
            for number in range(last_round + 1)
        )
        self.sums = _sums(transfers, sends, takes)
        self.sum_of = {number: span for span in self.sums for number in span.parts}
        self.place = _places(transfers)
        """Of each transfer: how many its source sends before it."""
        self.expected_by = _clock(transfers, self.place, sends, takes)
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


def _places(transfers: TransferList) -> tuple[int, ...]:
    counts: defaultdict[int, int] = defaultdict(int)
    places = []
    for transfer in transfers:
        places.append(counts[transfer.source])
        counts[transfer.source] += 1
    return tuple(places)


def _clock(transfers: TransferList, place: tuple[int, ...], sends: list[int], takes: list[int]) -> dict[int, int]:
    """Which takes can be expected by what this rank has sent itself; the others would be waited for in a circle."""
    own = {place[number]: number for number in sends}
    needed: list[int] = []
    for transfer in transfers:  # as sets of bits: all that must be taken before this can be sent
        bits = 0
        for earlier in transfer.after:
            bits |= needed[earlier] | 1 << earlier
        needed.append(bits)
    return {
        number: place[number]
        for number in takes
        if place[number] in own and not needed[own[place[number]]] >> number & 1
    }

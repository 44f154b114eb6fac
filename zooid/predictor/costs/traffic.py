"""Bytes and store requests of one step for each member, from the action lists that members execute.

Bytes are counted on the wire, as members count them: with the trailer of every message in a store, and without the
headers of TCP frames. Bytes, puts and successful gets are exact for given message sizes. The number of gets that come
too early depends on how evenly members run, and is an expectation.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zooid.core.plans.plan import AllReduceName
from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.runs.store_rules import TRAILER_BYTES, put_requests
from zooid.schedule.actions import Action, Kind, taking_action
from zooid.schedule.all_reduce_choice import AllReduceChoice
from zooid.schedule.arrival_times import LINE_MISSES
from zooid.schedule.grain_tree import maximal_nodes
from zooid.schedule.pipelines import StepSchedule
from zooid.schedule.polling_rules import SETTLED_MISSES, is_urgent
from zooid.schedule.step_state import VOTE_ELEMENT_BYTES, vote_elements
from zooid.schedule.transfer_lists import TransferList, tree_reduce

Seat = tuple[int, int]
"""A seat as replica and stage."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SeatTraffic:
    """Bytes and requests of one member, or of all members together."""

    sent_bytes: int = 0
    received_bytes: int = 0
    num_puts: int = 0
    """Number of put requests; a large message takes several."""
    num_gets: int = 0
    """Number of gets that return an object."""
    num_early_gets: float = 0.0
    """Expected number of gets that come too early and are repeated. They are charged like the others."""


@dataclass(frozen=True)
class Traffic:
    """Bytes and requests of all members in one step."""

    seats: Mapping[Seat, SeatTraffic]
    passed_bytes: Mapping[tuple[Seat, Seat], int]
    """Bytes between connected members, by source and reader; empty with a store."""

    @property
    def total(self) -> SeatTraffic:
        names = [field.name for field in fields(SeatTraffic)]
        return SeatTraffic(**{name: sum(getattr(seat, name) for seat in self.seats.values()) for name in names})


def step_traffic(
    schedule: StepSchedule,
    stages: Sequence[StageTimes],
    *,
    all_reduce: AllReduceName,
    is_direct: bool,
    ties: Sequence[Tie] = (),
    element_bytes: int = 4,
    rtt_s: float | None = None,
    reproducible: bool = False,
    has_copies: bool = False,
) -> Traffic:
    """Count the bytes and requests of one step for every seat of a schedule.

    `rtt_s` is the round trip by which connected members choose their all-reduce. A `reproducible` run reduces gradients
    along a tree over grains. With `has_copies`, the copies of a single replica follow it as if they were a second one,
    and each receives the gradients of its stage.
    """
    num_grains = sum(map(len, schedule.grains))
    num_nodes = tuple(len(maximal_nodes(own, num_grains)) for own in schedule.grains)
    seats = [(replica, stage) for replica, lists in enumerate(schedule.lists) for stage in range(len(lists))]
    copies = [(schedule.num_replicas, stage) for stage in range(len(stages))] if has_copies else []
    tally = _Tally([*seats, *copies], is_direct)
    latency_s = rtt_s if is_direct else None
    joined: defaultdict[tuple[Kind, int, int], list[int]] = defaultdict(list)
    for number, (replica, stage) in enumerate(seats):
        kinds: Counter[Kind] = Counter()
        for action in schedule.lists[replica][stage]:
            kinds[action.kind] += 1
            if action.kind in (Kind.REDUCE, Kind.SHARE, Kind.COMMIT):
                joined[_call_of(action, replica, stage)].append(number)
        for kind in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD):
            if kinds[kind]:
                taken = taking_action(Action(stage, kind, 0))
                assert taken is not None
                num_bytes = round(stages[min(stage, taken.stage)].out_bytes)
                tally.add_messages(number, number + taken.stage - stage, kinds[kind], num_bytes)
    for number, (_, stage) in enumerate(copies, len(seats)):
        tally.add_messages(stage, number, 1, sum(bucket.num_bytes for bucket in stages[stage].buckets))
        joined[Kind.COMMIT, 0, 0].append(number)
    for (kind, owner, bucket), members in joined.items():
        if kind is Kind.COMMIT:
            size, width = vote_elements(len(stages), schedule.num_replicas), VOTE_ELEMENT_BYTES
        else:
            num_bytes = stages[owner].buckets[bucket].num_bytes if kind is Kind.REDUCE else ties[bucket].num_bytes
            size, width = -(-num_bytes // element_bytes), element_bytes
        if size and len(members) > 1:
            if kind is Kind.REDUCE and reproducible:
                counts = _collective_counts(tree_reduce(size, num_nodes), width, len(members), is_direct)
            else:
                counts = _all_reduce_counts(size, width, len(members), all_reduce, is_direct, latency_s)
            tally.add_collective(members, counts, width)
    return tally.read()


def _call_of(action: Action, replica: int, stage: int) -> tuple[Kind, int, int]:
    """The call that an action joins: a stage's bucket over replicas, a replica's tie over stages, or the vote."""
    if action.number is None:
        return action.kind, 0, 0
    return action.kind, stage if action.kind is Kind.REDUCE else replica, action.number


class _CollectiveCounts(NamedTuple):
    """Elements and messages of every rank of a collective."""

    sent: Counts
    num_sent: Counts
    received: Counts
    num_received: Counts
    extra_puts: Counts
    passed: Counts
    """Elements by source and reader, for connected ranks only."""


@lru_cache(maxsize=1024)
def _all_reduce_counts(
    num_elements: int,
    element_bytes: int,
    num_ranks: int,
    all_reduce: AllReduceName,
    is_direct: bool,
    latency_s: float | None,
) -> _CollectiveCounts:
    choice = AllReduceChoice("tcp" if is_direct else "store", all_reduce, num_ranks, latency_s)
    return _collective_counts(choice.transfers(num_elements, element_bytes), element_bytes, num_ranks, is_direct)


def _collective_counts(
    transfers: TransferList, element_bytes: int, num_ranks: int, is_direct: bool
) -> _CollectiveCounts:
    sources = np.fromiter((transfer.source for transfer in transfers), np.int64)
    sizes = np.fromiter((transfer.stop - transfer.start for transfer in transfers), np.int64)
    num_readers = np.fromiter((len(transfer.readers) for transfer in transfers), np.int64)
    readers = np.fromiter(chain.from_iterable(transfer.readers for transfer in transfers), np.int64)
    read = np.repeat(sizes, num_readers)
    copies = num_readers if is_direct else np.ones_like(num_readers)
    distinct, index = np.unique(sizes * element_bytes + TRAILER_BYTES, return_inverse=True)
    extra_puts = np.array([put_requests(num_bytes) - 1 for num_bytes in distinct.tolist()], np.int64)[index]
    passed = np.zeros((num_ranks, num_ranks) if is_direct else (0, 0), np.int64)
    if is_direct:
        np.add.at(passed, (np.repeat(sources, num_readers), readers), read)
    return _CollectiveCounts(
        sent=_sums(sources, sizes * copies, num_ranks),
        num_sent=_sums(sources, copies, num_ranks),
        received=_sums(readers, read, num_ranks),
        num_received=_sums(readers, np.ones_like(read), num_ranks),
        extra_puts=_sums(sources, extra_puts, num_ranks),
        passed=passed,
    )


def _sums(keys: Counts, values: Counts, size: int) -> Counts:
    """Exact sums by key; numpy's bincount would add floats."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, keys, values)
    return sums


class _Tally:
    """Sums of bytes and requests by seat number."""

    def __init__(self, seats: Sequence[Seat], is_direct: bool) -> None:
        self._seats = seats
        self._is_direct = is_direct
        size = len(seats)
        self._sent, self._received, self._puts, self._gets = np.zeros((4, size), np.int64)
        self._early = np.zeros(size)
        self._passed: Counter[tuple[int, int]] = Counter()

    def add_messages(self, source: int, reader: int, count: int, num_bytes: int) -> None:
        """Add `count` messages of this size from one seat to another."""
        wire_bytes = num_bytes if self._is_direct else num_bytes + TRAILER_BYTES
        self._sent[source] += count * wire_bytes
        self._received[reader] += count * wire_bytes
        if self._is_direct:
            self._passed[source, reader] += count * wire_bytes
            return
        self._puts[source] += count * put_requests(wire_bytes)
        self._gets[reader] += count
        self._early[reader] += count * LINE_MISSES

    def add_collective(self, members: Sequence[int], call: _CollectiveCounts, element_bytes: int) -> None:
        numbers = np.array(members)
        trailer_bytes = 0 if self._is_direct else TRAILER_BYTES
        self._sent[numbers] += call.sent * element_bytes + call.num_sent * trailer_bytes
        self._received[numbers] += call.received * element_bytes + call.num_received * trailer_bytes
        if self._is_direct:
            for source, reader in zip(*np.nonzero(call.passed), strict=True):
                num_bytes = int(call.passed[source, reader]) * element_bytes
                self._passed[members[source], members[reader]] += num_bytes
            return
        self._puts[numbers] += call.num_sent + call.extra_puts
        self._gets[numbers] += call.num_received
        mean_bytes = element_bytes * call.received / np.maximum(call.num_received, 1)
        misses = [SETTLED_MISSES[is_urgent(num_bytes)] for num_bytes in mean_bytes]
        self._early[numbers] += call.num_received * np.array(misses)

    def read(self) -> Traffic:
        columns = (self._sent, self._received, self._puts, self._gets, self._early)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return Traffic(
            seats={seat: SeatTraffic(*row) for seat, row in zip(self._seats, rows, strict=True)},
            passed_bytes={
                (self._seats[source], self._seats[reader]): num_bytes
                for (source, reader), num_bytes in sorted(self._passed.items())
            },
        )

"""What one step moves and asks of the store: every member's bytes and requests, from the lists that members execute.

Bytes are those on the wire as members count them: through a store with the trailer of every message, between connected
members without the frames' headers. They are exact for given sizes of messages. So are puts, and the gets that bring
something; how often members look too early depends on how evenly they run, and is an expectation.
"""

import math
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
from zooid.schedule.actions import Action, Kind, taking_action
from zooid.schedule.all_reduce_choice import AllReduceChoice
from zooid.schedule.grain_tree import maximal_nodes
from zooid.schedule.pipelines import StepSchedule
from zooid.schedule.polling_rules import SETTLED_MISSES, is_urgent
from zooid.schedule.step_state import VOTE_ELEMENT_BYTES, vote_elements
from zooid.schedule.transfer_lists import TransferList, tree_reduce

TRAILER_BYTES = 24
"""Behind every message in a store."""
SINGLE_PUT_BYTES = 32 * 2**20
PART_BYTES = 8 * 2**20
"""What is larger than a single put goes in parts, each a request, between one that begins and one that ends it."""

Seat = tuple[int, int]
"""Replica and stage."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SeatTraffic:
    """Of one member, or of all of them together."""

    sent_bytes: int = 0
    received_bytes: int = 0
    num_puts: int = 0
    """Requests; a large message takes several."""
    num_gets: int = 0
    """That bring an object."""
    num_early_gets: float = 0.0
    """That are expected to come too early: waiting is looking again. They are charged like the others."""
    num_deleted: int = 0
    """Objects that the member removes: of collectives its own, of other messages those that it has taken."""


@dataclass(frozen=True)
class Traffic:
    """Of all members in one step."""

    seats: Mapping[Seat, SeatTraffic]
    passed_bytes: Mapping[tuple[Seat, Seat], int]
    """From whom to whom, where members are connected; nothing through a store."""

    @property
    def total(self) -> SeatTraffic:
        names = [field.name for field in fields(SeatTraffic)]
        return SeatTraffic(**{name: sum(getattr(each, name) for each in self.seats.values()) for name in names})


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
    """Bytes and requests of one step for every seat of its lists.

    `rtt_s` is the round trip between connected members, who choose their all-reduce by it. If the run is to be
    `reproducible`, gradients are reduced along a tree over grains. If a single replica `has_copies`, their seats come
    after its own, as if they were another replica's, and each takes the gradients of its stage.
    """
    num_grains = sum(map(len, schedule.grains))
    num_nodes = tuple(len(maximal_nodes(own, num_grains)) for own in schedule.grains)
    seats = [(replica, stage) for replica, own in enumerate(schedule.lists) for stage in range(len(own))]
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
            size, width = vote_elements(len(stages)), VOTE_ELEMENT_BYTES
        else:
            num_bytes = stages[owner].buckets[bucket].num_bytes if kind is Kind.REDUCE else ties[bucket].num_bytes
            size, width = -(-num_bytes // element_bytes), element_bytes
        if size and len(members) > 1:
            if kind is Kind.REDUCE and reproducible:
                call = _call_of_transfers(tree_reduce(size, num_nodes), width, len(members), is_direct)
            else:
                call = _call(size, width, len(members), all_reduce, is_direct, latency_s)
            tally.add_collective(members, call, width)
    return tally.read()


def _call_of(action: Action, replica: int, stage: int) -> tuple[Kind, int, int]:
    """Which call an action joins: a stage's bucket over its replicas, a replica's tie over its stages, all's vote."""
    if action.number is None:
        return action.kind, 0, 0
    return action.kind, stage if action.kind is Kind.REDUCE else replica, action.number


class _Call(NamedTuple):
    """What every rank of a collective does, in elements and messages."""

    sent: Counts
    num_sent: Counts
    received: Counts
    num_received: Counts
    extra_puts: Counts
    passed: Counts
    """Elements by source and reader; of connected ranks only."""


@lru_cache(maxsize=1024)
def _call(
    num_elements: int,
    element_bytes: int,
    num_ranks: int,
    all_reduce: AllReduceName,
    is_direct: bool,
    latency_s: float | None,
) -> _Call:
    choice = AllReduceChoice("tcp" if is_direct else "store", all_reduce, num_ranks, latency_s)
    return _call_of_transfers(choice.transfers(num_elements, element_bytes), element_bytes, num_ranks, is_direct)


def _call_of_transfers(transfers: TransferList, element_bytes: int, num_ranks: int, is_direct: bool) -> _Call:
    sources = np.fromiter((each.source for each in transfers), np.int64)
    sizes = np.fromiter((each.stop - each.start for each in transfers), np.int64)
    num_readers = np.fromiter((len(each.readers) for each in transfers), np.int64)
    readers = np.fromiter(chain.from_iterable(each.readers for each in transfers), np.int64)
    read = np.repeat(sizes, num_readers)
    copies = num_readers if is_direct else np.ones_like(num_readers)
    large, at = np.unique(sizes * element_bytes + TRAILER_BYTES, return_inverse=True)
    extra_puts = np.array([put_requests(num_bytes) - 1 for num_bytes in large.tolist()], np.int64)[at]
    passed = np.zeros((num_ranks, num_ranks) if is_direct else (0, 0), np.int64)
    if is_direct:
        np.add.at(passed, (np.repeat(sources, num_readers), readers), read)
    return _Call(
        sent=_sums(sources, sizes * copies, num_ranks),
        num_sent=_sums(sources, copies, num_ranks),
        received=_sums(readers, read, num_ranks),
        num_received=_sums(readers, np.ones_like(read), num_ranks),
        extra_puts=_sums(sources, extra_puts, num_ranks),
        passed=passed,
    )


def _sums(keys: Counts, values: Counts, size: int) -> Counts:
    """Exact sums by key; numpy's bincount would add in float."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, keys, values)
    return sums


def put_requests(num_bytes: float) -> int:
    """Requests that it takes to put an object of this size into a store.

    >>> put_requests(32 * 2**20), put_requests(32 * 2**20 + 1)
    (1, 7)
    """
    return 1 if num_bytes <= SINGLE_PUT_BYTES else 2 + math.ceil(num_bytes / PART_BYTES)


class _Tally:
    """Adds up by number of the seat."""

    def __init__(self, seats: Sequence[Seat], is_direct: bool) -> None:
        self._seats = seats
        self._is_direct = is_direct
        size = len(seats)
        self._sent, self._received, self._puts, self._gets, self._deleted = np.zeros((5, size), np.int64)
        self._early = np.zeros(size)
        self._passed: Counter[tuple[int, int]] = Counter()

    def add_messages(self, source: int, reader: int, count: int, num_bytes: int) -> None:
        """As many messages of this size, from one seat to another."""
        wire_bytes = num_bytes if self._is_direct else num_bytes + TRAILER_BYTES
        self._sent[source] += count * wire_bytes
        self._received[reader] += count * wire_bytes
        if self._is_direct:
            self._passed[source, reader] += count * wire_bytes
            return
        self._puts[source] += count * put_requests(wire_bytes)
        self._gets[reader] += count
        self._early[reader] += count * SETTLED_MISSES[is_urgent(False, num_bytes)]
        self._deleted[reader] += count

    def add_collective(self, members: Sequence[int], call: _Call, element_bytes: int) -> None:
        own = np.array(members)
        trailer_bytes = 0 if self._is_direct else TRAILER_BYTES
        self._sent[own] += call.sent * element_bytes + call.num_sent * trailer_bytes
        self._received[own] += call.received * element_bytes + call.num_received * trailer_bytes
        if self._is_direct:
            for source, reader in zip(*np.nonzero(call.passed), strict=True):
                num_bytes = int(call.passed[source, reader]) * element_bytes
                self._passed[members[source], members[reader]] += num_bytes
            return
        self._puts[own] += call.num_sent + call.extra_puts
        self._gets[own] += call.num_received
        mean_bytes = element_bytes * call.received / np.maximum(call.num_received, 1)
        misses = [SETTLED_MISSES[is_urgent(True, num_bytes)] for num_bytes in mean_bytes]
        self._early[own] += call.num_received * np.array(misses)
        self._deleted[own] += call.num_sent

    def read(self) -> Traffic:
        columns = (self._sent, self._received, self._puts, self._gets, self._early, self._deleted)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return Traffic(
            seats={seat: SeatTraffic(*row) for seat, row in zip(self._seats, rows, strict=True)},
            passed_bytes={
                (self._seats[source], self._seats[reader]): num_bytes
                for (source, reader), num_bytes in sorted(self._passed.items())
            },
        )

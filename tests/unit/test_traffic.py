"""A step's bytes and requests: by hand, against a walk through every single transfer, and as fast as a search needs."""

import time
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.plans.plan import AllReduceName
from zooid.core.plans.stage import Bucket, StageTimes, Tie
from zooid.core.runs.store_rules import TRAILER_BYTES, put_requests
from zooid.predictor.costs import traffic as predicted
from zooid.predictor.costs.traffic import SeatTraffic, Traffic, step_traffic
from zooid.schedule.actions import Kind, peer_action
from zooid.schedule.all_reduce_choice import AllReduceChoice, choose_all_reduce
from zooid.schedule.arrival_times import LINE_MISSES
from zooid.schedule.pipelines import StepSchedule, StepShape
from zooid.schedule.polling_rules import SETTLED_MISSES
from zooid.schedule.samples import even_shares, split_grains
from zooid.schedule.step_state import vote_elements

MIB = 2**20
ALGORITHMS: list[AllReduceName] = ["auto", "exchange", "three_phase", "pipelined", "streaming", "ring"]


def stage(out_bytes: float = 0.0, *bucket_bytes: int) -> StageTimes:
    buckets = tuple(Bucket(num_bytes=size, at_share=1.0) for size in bucket_bytes or (0,))
    return StageTimes(forward_s=1, backward_s=2, out_bytes=out_bytes, buckets=buckets, reduce_s=0, update_s=0)


def schedule_of(
    stages: Sequence[StageTimes], num_replicas: int, num_grains: int, ties: Sequence[Tie] = ()
) -> StepSchedule:
    buckets = tuple(len(each.buckets) for each in stages)
    shape = StepShape("1f1b", len(stages), 0, buckets, tuple(tie.stages for tie in ties))
    return shape.step(split_grains(num_grains, even_shares(num_grains, num_replicas)))


def through_store(stages: Sequence[StageTimes], num_replicas: int = 1, num_grains: int = 4) -> Traffic:
    schedule = schedule_of(stages, num_replicas, num_grains)
    return step_traffic(schedule, stages, all_reduce="auto", is_direct=False, ties=())


def vote_bytes(num_replicas: int) -> int:
    return 8 * vote_elements(1, num_replicas)


# By hand


def test_a_pipeline_puts_every_message_once_and_its_reader_gets_and_removes_it() -> None:
    found = through_store([stage(1000.0), stage()])
    messages = 4 * (1000 + TRAILER_BYTES)
    vote = 8 * vote_elements(2, 1) + TRAILER_BYTES
    each = SeatTraffic(messages + vote, messages + vote, 5, 5, 4 * LINE_MISSES + SETTLED_MISSES[False])
    assert found.seats == {(0, 0): each, (0, 1): each}
    assert found.passed_bytes == {}
    assert found.total.num_puts == 10


def test_what_is_small_is_exchanged_whole() -> None:
    found = through_store([stage(0.0, 4000)], num_replicas=3)
    sent = 4000 + vote_bytes(3) + 2 * TRAILER_BYTES
    misses = 2 * SETTLED_MISSES[True] + 2 * SETTLED_MISSES[False]  # of gradients, and of votes
    assert found.seats[1, 0] == SeatTraffic(sent, 2 * sent, 2, 4, misses)


@pytest.mark.parametrize("name", ["three_phase", "pipelined", "streaming"])
def test_what_is_large_is_received_as_often_as_the_bound_says(name: AllReduceName) -> None:
    """2s(n−1)/n bytes down for every member, s up; no list through a store is better."""
    size, number = 8 * MIB, 4
    schedule = schedule_of([stage(0.0, size)], number, number)
    found = step_traffic(schedule, [stage(0.0, size)], all_reduce=name, is_direct=False)
    for own in found.seats.values():
        num_puts, num_gets = own.num_puts - 1, own.num_gets - 3  # without the vote
        vote, seal = vote_bytes(4) + TRAILER_BYTES, TRAILER_BYTES
        assert own.sent_bytes == size + num_puts * seal + vote
        assert own.received_bytes == 2 * size * (number - 1) // number + num_gets * seal + 3 * vote


def test_connected_members_pass_as_much_around_their_ring_and_ask_nothing_of_a_store() -> None:
    size, number = 8 * MIB, 4
    schedule = schedule_of([stage(0.0, size)], number, number)
    found = step_traffic(schedule, [stage(0.0, size)], all_reduce="auto", is_direct=True)
    around = 2 * size * (number - 1) // number
    for replica in range(number):
        own = found.seats[replica, 0]
        assert own == SeatTraffic(around + 3 * vote_bytes(number), around + 3 * vote_bytes(number))
        assert found.passed_bytes[(replica, 0), ((replica + 1) % number, 0)] == around + vote_bytes(number)
        assert found.passed_bytes[(replica, 0), ((replica + 2) % number, 0)] == vote_bytes(number)


def test_a_replica_without_grains_only_reduces_and_votes() -> None:
    found = through_store([stage(1000.0, 400), stage(0.0, 400)], num_replicas=2, num_grains=1)
    assert found.seats[1, 0].num_puts == 2
    assert found.seats[0, 0].num_puts == 3


def test_a_single_member_moves_nothing() -> None:
    assert through_store([stage(0.0, 10**9)]).total == SeatTraffic()


def test_evaluation_sends_forward_only() -> None:
    stages = [stage(1000.0, 400), stage(0.0, 400)]
    schedule = StepShape("1f1b", 2).evaluation([(0, 1, 2)])
    found = step_traffic(schedule, stages, all_reduce="auto", is_direct=False)
    assert found.seats[0, 0] == SeatTraffic(sent_bytes=3 * (1000 + TRAILER_BYTES), num_puts=3)
    assert found.seats[0, 1].num_gets == 3


def test_a_message_that_is_too_large_for_one_put_takes_a_request_for_every_part() -> None:
    large = 40 * MIB
    assert put_requests(large) == 2 + 5
    found = through_store([stage(large), stage()], num_grains=1)
    assert found.seats[0, 0].num_puts == 1 + 2 + 6  # its trailer is in a sixth part
    assert found.seats[0, 1].num_gets == 2
    reduced = step_traffic(
        schedule_of([stage(0.0, large)], 2, 2), [stage(0.0, large)], all_reduce="exchange", is_direct=False
    )
    assert reduced.seats[0, 0].num_puts == 1 + 2 + 6


# Against a walk through everything


def walked(
    schedule: StepSchedule,
    stages: Sequence[StageTimes],
    ties: Sequence[Tie],
    all_reduce: AllReduceName,
    is_direct: bool,
    element_bytes: int,
) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]], Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Bytes sent and received, puts and gets by seat: message by message, as a member would count them."""
    sent: Counter[tuple[int, int]] = Counter()
    received: Counter[tuple[int, int]] = Counter()
    puts: Counter[tuple[int, int]] = Counter()
    gets: Counter[tuple[int, int]] = Counter()

    def move(source: tuple[int, int], readers: Sequence[tuple[int, int]], num_bytes: int) -> None:
        wire_bytes = num_bytes + (0 if is_direct else TRAILER_BYTES)
        sent[source] += wire_bytes * (len(readers) if is_direct else 1)
        puts[source] += not is_direct
        for reader in readers:
            received[reader] += wire_bytes
            gets[reader] += not is_direct

    def reduce(seats: Sequence[tuple[int, int]], num_bytes: int, width: int) -> None:
        choice = AllReduceChoice("tcp" if is_direct else "store", all_reduce, len(seats), None)
        for each in choice.transfers(-(-num_bytes // width), width) if num_bytes else ():
            move(seats[each.source], [seats[reader] for reader in each.readers], each.num_elements * width)

    for replica, members in enumerate(schedule.lists):
        for actions in members:
            for action in actions:
                source = peer_action(action)
                if source is not None:
                    size = stages[min(action.stage, source.stage)].out_bytes
                    move((replica, source.stage), [(replica, action.stage)], round(size))
                elif action.kind is Kind.REDUCE and replica == 0:
                    assert action.number is not None
                    seats = [(other, action.stage) for other in range(schedule.num_replicas)]
                    reduce(seats, stages[action.stage].buckets[action.number].num_bytes, element_bytes)
                elif action.kind is Kind.SHARE and action.stage == schedule.ties[action.number or 0][0]:
                    tie = ties[action.number or 0]
                    reduce([(replica, number) for number in tie.stages], tie.num_bytes, element_bytes)
    everyone = [(replica, number) for replica in range(schedule.num_replicas) for number in range(schedule.num_stages)]
    reduce(everyone, 8 * vote_elements(schedule.num_stages, schedule.num_replicas), 8)
    return sent, received, puts, gets


@settings(max_examples=60, deadline=None)
@given(
    num_replicas=st.integers(1, 5),
    sizes=st.lists(
        st.tuples(st.floats(0, 1e6), st.lists(st.integers(0, 3_000_000), min_size=1, max_size=3)),
        min_size=1,
        max_size=4,
    ),
    num_grains=st.integers(1, 9),
    tie_bytes=st.integers(0, 200_000),
    all_reduce=st.sampled_from(ALGORITHMS),
    is_direct=st.booleans(),
    element_bytes=st.sampled_from([2, 4, 8]),
)
def test_every_seat_moves_what_its_actions_and_transfers_move(
    num_replicas: int,
    sizes: list[tuple[float, list[int]]],
    num_grains: int,
    tie_bytes: int,
    all_reduce: AllReduceName,
    is_direct: bool,
    element_bytes: int,
) -> None:
    stages = [stage(out_bytes, *buckets) for out_bytes, buckets in sizes]
    ties = [Tie(stages=(0, len(stages) - 1), num_bytes=tie_bytes)] if len(stages) > 1 else []
    schedule = schedule_of(stages, num_replicas, num_grains, ties)
    found = step_traffic(
        schedule, stages, all_reduce=all_reduce, is_direct=is_direct, ties=ties, element_bytes=element_bytes
    )
    sent, received, puts, gets = walked(schedule, stages, ties, all_reduce, is_direct, element_bytes)
    assert len(found.seats) == num_replicas * len(stages)
    for seat, own in found.seats.items():
        assert (own.sent_bytes, own.received_bytes) == (sent[seat], received[seat])
        assert (own.num_puts, own.num_gets) == (puts[seat], gets[seat])
        assert own.num_early_gets >= SETTLED_MISSES[False] * own.num_gets * (1 - 1e-9)
    total = found.total
    if is_direct:
        assert sum(found.passed_bytes.values()) == total.sent_bytes == total.received_bytes


@pytest.mark.parametrize(("num_replicas", "num_stages"), [(64, 1), (8, 8), (1, 64)])
@pytest.mark.parametrize("is_direct", [False, True])
def test_64_members_with_32_grains_each_are_counted_in_no_time(
    num_replicas: int, num_stages: int, is_direct: bool
) -> None:
    """A search asks for thousands of layouts. Lists that were made before are kept, as they are for a simulator."""
    stages = [stage(1e6, 4_000_000 + number, 4_000_000 + 7 * number) for number in range(num_stages)]
    schedule = schedule_of(stages, num_replicas, 32 * num_replicas)
    choose_all_reduce.cache_clear()
    predicted._all_reduce_counts.cache_clear()
    begin_s = time.process_time()
    found = step_traffic(schedule, stages, all_reduce="auto", is_direct=is_direct)
    assert time.process_time() - begin_s < 0.3
    assert len(found.seats) == 64

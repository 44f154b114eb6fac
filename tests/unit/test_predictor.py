"""Predicted time, memory and money, against what can be worked out by hand."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from lab.one_site import one_site
from tests.unit.paper_formulas import pipeline_s
from tests.unit.profiles import INSTANT_BYTES_PER_S, layer, offer, profile, store_links
from zooid.core.plans.plan import AllReduceName, ScheduleName, TransportName
from zooid.core.plans.profile import TiedParameter
from zooid.core.plans.stage import Bucket, StageTimes, Tie
from zooid.core.runs.step_parts import parts_by_member
from zooid.core.runs.timeline import Timeline
from zooid.planner.drafts import grains_kept
from zooid.predictor import (
    DirectedLink,
    Layout,
    bill_usd,
    directed_links,
    lower_bound_s,
    run_cost,
    simulate_step,
    stage_memory_bytes,
    stage_times,
    ties_between,
)
from zooid.predictor.simulation.clock import Pipe, Simulation
from zooid.schedule.all_reduce_choice import EXCHANGE_MAX_BYTES, MAX_CHUNKS, MIN_CHUNK_BYTES
from zooid.schedule.pipelines import StepSchedule, StepShape
from zooid.schedule.samples import even_shares, split_grains

quick = settings(deadline=None, max_examples=40)

Arrival = tuple[float, float]
"""(when work arrives, how much)."""


def ends_of(capacity: float, limit: float, arrivals: list[Arrival]) -> list[float]:
    """When each piece of work is done that goes through one pipe."""
    simulation = Simulation()
    pipe = Pipe(capacity)
    ends = [math.nan] * len(arrivals)

    def arrive(number: int, amount: float) -> None:
        def done() -> None:
            ends[number] = simulation.now_s

        simulation.flow(amount, (pipe,), limit, done)

    for number, (at_s, amount) in enumerate(arrivals):
        simulation.after(at_s, lambda number=number, amount=amount: arrive(number, amount))  # type: ignore[misc]
    simulation.run()
    return ends


@pytest.mark.parametrize(
    ("cores", "arrivals", "ends"),
    [
        (1, [(0, 1)], [1]),
        (1, [(0, 1), (0, 1)], [2, 2]),
        (1, [(0, 1), (0, 3)], [2, 4]),
        (2, [(0, 1), (0, 1)], [1, 1]),
        (2, [(0, 1), (0, 1), (0, 1)], [1.5, 1.5, 1.5]),
        (2, [(0, 1), (0, 2), (0, 2)], [1.5, 2.5, 2.5]),
        (1, [(0, 2), (1, 2)], [3, 4]),
        (2, [(0, 3), (0, 3), (1, 3)], [4, 4, 5]),
        (1, [(0, 1), (5, 1)], [1, 6]),
        (1, [(0, 0), (0, 1)], [0, 1]),
    ],
)
def test_cores_serve_equally_and_at_most_one_to_each(cores: int, arrivals: list[Arrival], ends: list[float]) -> None:
    assert ends_of(cores, 1.0, arrivals) == pytest.approx(ends)


def test_one_message_takes_a_whole_link_and_two_share_it() -> None:
    assert ends_of(100.0, 100.0, [(0, 500)]) == [5]
    assert ends_of(100.0, 100.0, [(0, 500), (0, 500)]) == [10, 10]


amounts = st.floats(0.01, 10)


@quick
@given(st.lists(st.tuples(st.floats(0, 10), amounts), min_size=1, max_size=8), st.integers(1, 4))
def test_no_work_is_lost_and_none_is_done_faster_than_alone(arrivals: list[Arrival], cores: int) -> None:
    ends = ends_of(cores, 1.0, arrivals)
    for (at_s, amount), end_s in zip(arrivals, ends, strict=True):
        assert end_s >= (at_s + amount) * (1 - 1e-9)
    last_arrival_s = max(at_s for at_s, _ in arrivals)
    alone_s = last_arrival_s + sum(amount for _, amount in arrivals)
    assert max(ends) <= alone_s * (1 + 1e-9)


def stage(
    forward_s: float, backward_s: float, out_bytes: float = 0.0, *, parameter_bytes: int = 0, reduce_s: float = 0.0,
    update_s: float = 0.0,
) -> StageTimes:  # fmt: skip
    return StageTimes(
        forward_s=forward_s,
        backward_s=backward_s,
        out_bytes=out_bytes,
        buckets=(Bucket(num_bytes=parameter_bytes, at_share=1.0),),
        reduce_s=reduce_s,
        update_s=update_s,
    )


def layout_of(
    stages: list[StageTimes],
    bandwidth_bytes_per_s: float = INSTANT_BYTES_PER_S,
    rtt_s: float = 0.0,
    *,
    host_cores: int | None = None,
    transport: TransportName = "store",
) -> Layout:
    """Where readers are told at once, as the equations have it."""
    link = DirectedLink(bytes_per_s=bandwidth_bytes_per_s, rtt_s=rtt_s)
    return one_site(stages, link, transport=transport, looks="at_once", all_reduce="three_phase", host_cores=host_cores)


def schedule_of(num_stages: int, num_replicas: int, num_grains: int) -> StepSchedule:
    return StepShape("gpipe", num_stages).step(split_grains(num_grains, (1,) * num_replicas))


def duration_s(timeline: Timeline, action: str, member: str = "r0s0") -> float:
    (found,) = (i for i in timeline.intervals if i.action == action and i.member == member)
    return found.end_s - found.start_s


@pytest.mark.parametrize("host_cores", [None, 1, 4])
def test_one_member_takes_the_sum_of_what_it_does(host_cores: int | None) -> None:
    layout = layout_of([stage(1.0, 2.0, reduce_s=0.5, update_s=0.25)], host_cores=host_cores)
    timeline = simulate_step(schedule_of(1, 1, 3), layout)
    assert timeline.step_s == pytest.approx(3 * (1 + 2) + 0.25), "a single replica gathers nothing"
    assert parts_by_member(timeline)["r0s0"].compute_s == pytest.approx(timeline.step_s)


@quick
@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=4), st.integers(1, 6))
def test_gpipe_without_transfer_cost_is_the_closed_form(times: list[tuple[float, float]], num_grains: int) -> None:
    stages = [stage(forward_s, backward_s, 1.0) for forward_s, backward_s in times]
    timeline = simulate_step(schedule_of(len(stages), 1, num_grains), layout_of(stages))
    links = tuple(directed_links(store_links()).values())
    assert timeline.step_s == pytest.approx(pipeline_s(stages, num_grains, links), rel=1e-9)


def test_members_that_share_one_core_take_turns() -> None:
    stages = [stage(1.0, 2.0), stage(1.0, 2.0)]
    timeline = simulate_step(schedule_of(2, 1, 4), layout_of(stages, host_cores=1))
    assert timeline.step_s == pytest.approx(2 * 4 * 3)


def test_a_message_takes_a_put_and_a_get() -> None:
    timeline = simulate_step(schedule_of(2, 1, 1), layout_of([stage(1, 1, 300.0), stage(1, 1)], 100.0, 0.5))
    assert duration_s(timeline, "0SEND_F0") == pytest.approx(0.5 + 3)
    assert duration_s(timeline, "1RECV_F0", "r0s1") == pytest.approx(0.5 + 3)
    (forward,) = (i for i in timeline.intervals if i.action == "1F0")
    assert forward.start_s == pytest.approx(1 + 2 * 3.5)


def test_processor_time_of_messages_is_taken_from_computing() -> None:
    up = DirectedLink(bytes_per_s=1.0, rtt_s=0.0, cpu_s=0.5, cpu_s_per_byte=0.25)
    down = DirectedLink(bytes_per_s=INSTANT_BYTES_PER_S, rtt_s=0.0)
    layout = one_site([stage(4.0, 0.0, 2.0), stage(0.0, 0.0)], up, back=down, looks="at_once")
    timeline = simulate_step(schedule_of(2, 1, 2), layout)
    # While grain 0 is sent for 2 s, half of the core is the message's until its 0.5 + 2 × 0.25 s are done.
    assert duration_s(timeline, "0F0") == pytest.approx(4)
    assert duration_s(timeline, "0F1") == pytest.approx(5)


def all_reduce_s(algorithm: AllReduceName, size: int, num_replicas: int, rate: float, latency_s: float = 0.0) -> float:
    """Simulated time of one all-reduce among replicas that come at the same time."""
    layout = layout_of([stage(1.0, 1.0, parameter_bytes=size)], rate, latency_s)
    timeline = simulate_step(schedule_of(1, num_replicas, num_replicas), replace(layout, all_reduce=algorithm))
    return duration_s(timeline, "0REDUCE0")


sizes_and_links = [(n, latency_s) for n in (2, 4, 8) for latency_s in (0.0, 0.75, 40.0)]


@pytest.mark.parametrize(("n", "latency_s"), sizes_and_links)
def test_three_phase_takes_the_time_of_its_equation(n: int, latency_s: float) -> None:
    """LambdaML's 3s/w − 2s/(nw) + 4l (FuncPipe (1))."""
    size, rate = 800_000, 1000.0
    wanted_s = 3 * size / rate - 2 * size / (n * rate) + 4 * latency_s
    assert all_reduce_s("three_phase", size, n, rate, latency_s) == pytest.approx(wanted_s)


@pytest.mark.parametrize(("n", "latency_s"), sizes_and_links)
def test_pipelined_takes_the_time_of_its_equation(n: int, latency_s: float) -> None:
    """2s/w + (n + 2)l (FuncPipe (2))."""
    size, rate = 800_000, 1000.0
    wanted_s = 2 * size / rate + (n + 2) * latency_s
    assert all_reduce_s("pipelined", size, n, rate, latency_s) == pytest.approx(wanted_s)


@pytest.mark.parametrize(("n", "limit"), [(2, 1.25), (4, 1.13), (8, 1.13)])
def test_streaming_comes_near_the_downlinks_bound(n: int, limit: float) -> None:
    """2s(n−1)/(nw), and two chunks of filling; of two ranks, whose uplinks are as busy, on both ways."""
    size, rate = MAX_CHUNKS * MIN_CHUNK_BYTES * n, 1e6
    bound_s = 2 * size * (n - 1) / (n * rate)
    assert bound_s <= all_reduce_s("streaming", size, n, rate) <= bound_s * limit


def test_a_small_all_reduce_takes_two_round_trips() -> None:
    size, rate, latency_s, n = EXCHANGE_MAX_BYTES // 2, 1000.0, 0.75, 3
    timeline = simulate_step(schedule_of(1, n, n), layout_of([stage(1.0, 1.0, parameter_bytes=size)], rate, latency_s))
    assert duration_s(timeline, "0REDUCE0") == pytest.approx(n * size / rate + 2 * latency_s)


def test_a_replica_that_is_done_early_waits_for_the_others() -> None:
    layout = layout_of([stage(1.0, 1.0, parameter_bytes=4)])
    timeline = simulate_step(schedule_of(1, 2, 3), layout)
    assert [duration_s(timeline, "0REDUCE0", member) for member in ("r0s0", "r1s0")] == pytest.approx([0, 2])
    assert timeline.step_s == pytest.approx(4)


stages_of_any_kind = st.lists(
    st.builds(
        stage,
        st.floats(0, 2),
        st.floats(0, 2),
        st.sampled_from([0.0, 10.0, 1000.0]),
        parameter_bytes=st.sampled_from([0, 400, 400_000]),
        reduce_s=st.floats(0, 0.3),
        update_s=st.floats(0, 0.3),
    ),
    min_size=1,
    max_size=3,
)


@settings(quick, derandomize=True)
@given(
    stages_of_any_kind, st.integers(1, 3), st.integers(1, 6), st.floats(10, 1e6), st.floats(0, 1), st.floats(1, 20),
    st.floats(0, 1),
)  # fmt: skip
def test_a_better_link_is_never_slower(
    stages: list[StageTimes], num_replicas: int, num_grains: int, rate: float, rtt_s: float, faster: float, less: float
) -> None:
    schedule = schedule_of(len(stages), num_replicas, num_grains)
    before_s = simulate_step(schedule, layout_of(stages, rate, rtt_s)).step_s
    for better in (layout_of(stages, rate * faster, rtt_s), layout_of(stages, rate, rtt_s * less)):
        assert simulate_step(schedule, better).step_s <= before_s * (1 + 1e-9)


@quick
@given(
    stages_of_any_kind,
    st.integers(1, 3),
    st.integers(1, 6),
    st.floats(10, 1e6),
    st.floats(0, 1),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([("gpipe", 0), ("1f1b", 0), ("1f1b", 1)]),
    st.sampled_from(["store", "tcp"]),
    st.sampled_from(["auto", "streaming", "ring", "exchange"]),
    st.sampled_from([0, 400, 400_000]),
)
def test_no_simulation_is_faster_than_the_lower_bound(
    stages: list[StageTimes],
    num_replicas: int,
    num_grains: int,
    rate: float,
    rtt_s: float,
    host_cores: int | None,
    order: tuple[ScheduleName, int],
    transport: TransportName,
    all_reduce: AllReduceName,
    tied_bytes: int,
) -> None:
    ends = (0, len(stages) - 1)
    ties = (Tie(stages=ends, num_bytes=tied_bytes),) if tied_bytes and len(stages) > 1 else ()
    layout = layout_of(stages, rate, rtt_s, host_cores=host_cores, transport=transport)
    layout = replace(layout, all_reduce=all_reduce, ties=ties)
    grains = split_grains(num_grains, even_shares(num_grains, num_replicas))
    step = StepShape(order[0], len(stages), order[1], ties=(ends,) * len(ties)).step(grains)
    simulated_s = simulate_step(step, layout).step_s
    numbers = [len(own) for own in grains]
    kept = grains_kept(order[0], len(stages), order[1], max(numbers))
    assert simulated_s >= lower_bound_s(layout, numbers) * (1 - 1e-9)
    assert simulated_s >= lower_bound_s(layout, numbers, kept) * (1 - 1e-9)


@quick
@given(stages_of_any_kind, st.integers(1, 3), st.integers(0, 6), st.sampled_from([None, 1, 2]))
def test_a_timeline_holds_every_action_once_and_members_compute_one_thing_at_a_time(
    stages: list[StageTimes], num_replicas: int, num_grains: int, host_cores: int | None
) -> None:
    schedule = schedule_of(len(stages), num_replicas, num_grains)
    timeline = simulate_step(schedule, layout_of(stages, 1000.0, 0.01, host_cores=host_cores))
    wanted = Counter(
        (f"r{replica}s{stage}", str(action), action.lane.value)
        for replica, lists in enumerate(schedule.lists)
        for stage, actions in enumerate(lists)
        for action in actions
    )
    assert Counter((i.member, i.action, i.lane) for i in timeline.intervals) == wanted
    for lane in {(i.member, i.lane) for i in timeline.intervals}:
        own = sorted((i.start_s, i.end_s) for i in timeline.intervals if (i.member, i.lane) == lane)
        assert all(start_s <= end_s for start_s, end_s in own)
        if lane[1] == "compute":
            assert all(end_s <= start_s + 1e-9 for (_, end_s), (start_s, _) in pairwise(own))


def test_stage_times_are_sums_over_layers_and_the_ends_read_data() -> None:
    made = profile(
        [layer(3.0, out_bytes=7, parameter_bytes=40), layer(6.0, out_bytes=5), layer(9.0, parameter_bytes=8)],
        load_s_per_sample=0.5,
        optimizer_s_per_byte=0.25,
        reduce_s_per_byte=0.125,
    )
    first = stage_times(made, 0, 2, 2)
    assert [first.forward_s, first.backward_s] == pytest.approx([2 * (1 + 2) + 2 * 0.5, 2 * (2 + 4)])
    assert (first.out_bytes, first.buckets[0].num_bytes, first.update_s, first.reduce_s) == (10, 40, 10, 5)
    assert stage_times(made, 1, 2, 2).forward_s == pytest.approx(4), "stages in the middle read no samples"
    assert stage_times(made, 2, 3, 2).out_bytes == 0


def test_memory_is_what_is_kept_at_the_same_time() -> None:
    made = profile([layer(1, out_bytes=7, parameter_bytes=40), layer(1, out_bytes=5, parameter_bytes=60), layer(1)])
    # 1000 runtime + 60 × (weights, 2 of optimizer, both again for a checkpoint, gradients) + 2 grains × 3 × (10
    # activations + 7 received) + two messages of 3 × (7 in + 5 out)
    assert stage_memory_bytes(made, 1, 2, grain_size=3, grains_kept=2) == 1000 + 420 + 102 + 72
    # with three replicas, gradients also on their way, and a third of the checkpoint
    assert stage_memory_bytes(made, 1, 2, grain_size=3, grains_kept=2, num_replicas=3) == 1000 + 360 + 102 + 72


@quick
@given(st.integers(1, 8), st.integers(1, 8))
def test_memory_grows_with_grains_kept_and_grain_size(grain_size: int, grains_kept: int) -> None:
    made = profile([layer(1, out_bytes=7), layer(1)])
    now = stage_memory_bytes(made, 0, 2, grain_size, grains_kept)
    assert stage_memory_bytes(made, 0, 2, grain_size, grains_kept + 1) - now == 2 * 10 * grain_size
    assert stage_memory_bytes(made, 0, 2, grain_size + 1, grains_kept) > now


@pytest.mark.parametrize(
    ("running_s", "usd"),
    [(0, 1.6), (1, 1.6), (60, 1.6), (60.1, 1.7), (70, 1.7), (3600, 37.0), (3600.0000000001, 37.0)],
)
def test_time_is_billed_in_whole_grains_from_a_minimum_and_each_start_costs(running_s: float, usd: float) -> None:
    rented = offer(usd_per_hour=36.0, billing_grain_s=10.0, billing_minimum_s=60.0, usd_per_start=1.0)
    assert bill_usd(rented, running_s) == pytest.approx(usd)


def test_a_bill_of_many_small_grains_does_not_round_up_by_one() -> None:
    rented = offer(usd_per_hour=3600.0, billing_grain_s=0.001)
    assert bill_usd(rented, 0.3) == pytest.approx(0.3, abs=1e-9)


@quick
@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1), st.sampled_from([0.001, 1.0, 60.0])), min_size=1, max_size=6),
    st.floats(0, 1e5),
)
def test_terms_of_a_run_sum_to_its_members_bills(prices: list[tuple[float, float, float]], running_s: float) -> None:
    offers = [offer(usd, usd_per_start=start, billing_grain_s=grain_s) for usd, start, grain_s in prices]
    terms = run_cost(offers, running_s)
    total = math.fsum(bill_usd(each, running_s) for each in offers)
    assert math.fsum(term.usd for term in terms) == pytest.approx(total, rel=1e-12, abs=1e-12)
    assert all(term.usd >= -1e-12 for term in terms)


def test_a_stage_counts_what_its_layers_share_once() -> None:
    tied = (TiedParameter(name="embedding", num_bytes=40, layers=(0, 2)),)
    layers = [layer(1, parameter_bytes=40), layer(1, parameter_bytes=8), layer(1, parameter_bytes=50)]
    made = profile(layers, tied=tied)
    assert [made.parameter_bytes(*span) for span in ((0, 3), (0, 2), (1, 3), (2, 3))] == [58, 48, 58, 50]
    assert ties_between(made, [(0, 3)]) == ()
    assert ties_between(made, [(0, 1), (1, 2), (2, 3)]) == (Tie(stages=(0, 2), num_bytes=40),)


def test_what_stages_share_is_summed_between_them_before_the_commit() -> None:
    stages = [stage(1.0, 1.0), stage(1.0, 1.0)]
    layout = layout_of(stages, 100.0)
    alone = simulate_step(schedule_of(2, 1, 1), layout)
    shape = StepShape("gpipe", 2, ties=((0, 1),))
    tied = simulate_step(shape.step([(0,)]), replace(layout, ties=(Tie(stages=(0, 1), num_bytes=1000),)))
    assert tied.step_s > alone.step_s + 5


def test_connected_members_pass_a_message_in_one_go() -> None:
    stages = [stage(1, 1, 300.0), stage(1, 1)]
    timeline = simulate_step(schedule_of(2, 1, 1), layout_of(stages, 100.0, 0.5, transport="tcp"))
    (forward,) = (i for i in timeline.intervals if i.action == "1F0")
    assert forward.start_s == pytest.approx(1 + 0.25 + 3)


def test_the_first_stage_reduces_while_its_last_backward_runs() -> None:
    """Of two buckets of 4 s each, the first is complete in the middle of a backward of 10 s."""
    buckets = tuple(Bucket(num_bytes=400, at_share=share) for share in (0.5, 1.0))
    own = structs.replace(stage(1.0, 10.0), buckets=buckets)
    layout = replace(layout_of([own], 100.0, transport="tcp"), all_reduce="exchange")
    timeline = simulate_step(StepShape("1f1b", 1, buckets=(2,)).step([(0,), (1,)]), layout)
    starts = {i.action: (i.start_s, i.end_s) for i in timeline.intervals if i.member == "r0s0"}
    assert starts["0REDUCE0"] == pytest.approx((6.0, 10.0))
    assert starts["0REDUCE1"] == pytest.approx((11.0, 15.0))


@pytest.mark.parametrize("bandwidth", [2e7, 4e7, 1e12])
def test_1f1b_that_runs_ahead_hides_what_plain_1f1b_does_not(bandwidth: float) -> None:
    """Four equal stages, 12 grains; a message takes up to a third of computing."""
    stages = [stage(1.0, 2.0, 1e7) for _ in range(3)] + [stage(1.0, 2.0)]
    layout = layout_of(stages, bandwidth, transport="tcp")
    plain, ahead = (simulate_step(StepShape("1f1b", 4, n).step([range(12)]), layout).step_s for n in (0, 1))
    bound_s = 12 * 3 + 3 * 3 + 6 * 1e7 / bandwidth
    assert ahead == pytest.approx(bound_s, rel=0.03)
    assert plain > bound_s * 1.05 if bandwidth < 1e9 else plain == pytest.approx(bound_s, rel=0.01)

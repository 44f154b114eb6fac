"""The pick is what trying everything would find, within every limit; what cannot be is refused with a number."""

import math
import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.paper_formulas import pipeline_s
from tests.unit.profiles import SITE, layer, link, offer, picked, profile, store_links
from zooid.coordinator.plans.plan_validation import check_memory
from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import DeviceKind, LayerProfile, Profile
from zooid.core.plans.search_result import Goal
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.core.units import parse_duration_s, parse_usd
from zooid.planner.partition import Partition, StageTable, best_partitions, search
from zooid.predictor import World, directed_links, predict, stage_times

quick = settings(deadline=None, max_examples=40)

LINKS = tuple(directed_links(store_links(100.0, 0.1)).values())

layer_lists = st.lists(
    st.builds(layer, st.floats(0.01, 10), out_bytes=st.sampled_from([0.0, 10.0, 300.0])), min_size=1, max_size=7
)


def every_partition(num_layers: int, num_stages: int) -> Iterator[Partition]:
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        yield tuple(pairwise((0, *cuts, num_layers)))


def closed_form_s(made: Profile, cut: Partition, grain_size: int, num_grains: int) -> float:
    return pipeline_s([stage_times(made, *stage, grain_size) for stage in cut], num_grains, LINKS)


def proposed(made: Profile, grain_size: int, num_grains: int, num_stages: int) -> list[Partition]:
    table = StageTable.of_profile(made, grain_size, num_grains, LINKS)
    return best_partitions(table, [num_stages], max_each=3)[num_stages]


def planned(layers: list[LayerProfile], goal: Goal = "fastest", **limits: Any) -> Plan:
    return picked(profile(layers), offer(), Limits(**limits), goal)


def cuts_of(plan: Plan) -> list[tuple[int, int]]:
    return [(stage.first_layer, stage.end_layer) for stage in plan.stages]


def test_the_closed_form_is_the_papers() -> None:
    """One grain takes 3 + 6 s of computing and two messages; then the slowest of each direction, for each other grain.

    A message of 300 bytes takes 0.1 + 3 s up and as long down.
    """
    made = profile([layer(3.0, out_bytes=300.0), layer(6.0)])
    assert closed_form_s(made, ((0, 2),), 1, 4) == pytest.approx(9 + 3 * 9)
    assert closed_form_s(made, ((0, 1), (1, 2)), 1, 4) == pytest.approx((9 + 2 * 6.2) + 3 * (6.2 + 6.2))
    slower = profile([layer(3.0, out_bytes=300.0), layer(60.0)])
    assert closed_form_s(slower, ((0, 1), (1, 2)), 1, 4) == pytest.approx((63 + 2 * 6.2) + 3 * (20 + 40))


@quick
@given(layer_lists, st.integers(1, 5), st.sampled_from([1, 2, 4]), st.integers(1, 8))
def test_the_proposed_partitions_are_the_best_of_all(
    layers: list[LayerProfile], num_stages: int, grain_size: int, num_grains: int
) -> None:
    made = profile(layers)
    found = proposed(made, grain_size, num_grains, num_stages)
    tried = sorted(closed_form_s(made, cut, grain_size, num_grains) for cut in every_partition(len(layers), num_stages))
    assert [closed_form_s(made, cut, grain_size, num_grains) for cut in found] == pytest.approx(tried[:3], rel=1e-9)
    assert len(set(found)) == len(found)


@quick
@given(layer_lists, st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_where_there_are_too_many_to_try_the_first_is_still_the_best(
    layers: list[LayerProfile], num_stages: int, grain_size: int
) -> None:
    made = profile(layers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MAX_ENUMERATED", 0)
        found = proposed(made, grain_size, 4, num_stages)
    tried = [closed_form_s(made, cut, grain_size, 4) for cut in every_partition(len(layers), num_stages)]
    if not tried:
        assert found == []
    else:
        assert set(found) <= set(every_partition(len(layers), num_stages))
        assert closed_form_s(made, found[0], grain_size, 4) == pytest.approx(min(tried), rel=1e-9)


def test_a_deep_model_is_cut_evenly() -> None:
    made = profile([layer(1.0 + at % 2) for at in range(40)])
    assert math.comb(39, 4) > search.MAX_ENUMERATED
    cut = proposed(made, 1, 4, 5)[0]
    slowest_s = max(sum(1.0 + at % 2 for at in range(first, end)) for first, end in cut)
    assert slowest_s == 12.0, "the layers take 60 s, a fifth of which is 12"


@pytest.mark.parametrize(("slow", "cut"), [(None, 2), (0, 1), (3, 3)], ids=["equal", "first slow", "last slow"])
def test_a_layer_ten_times_slower_moves_the_cut(slow: int | None, cut: int) -> None:
    layers = [layer(10.0 if at == slow else 1.0) for at in range(4)]
    assert cuts_of(planned(layers, num_stages=2, num_replicas=1)) == [(0, cut), (cut, 4)]


def test_a_cut_avoids_the_place_where_much_would_travel() -> None:
    layers = [layer(1.0, out_bytes=size) for size in (1.0, 1e6, 1.0, 0.0)]
    made = profile(layers, store_links(1e5))
    plan = picked(made, offer(), Limits(num_stages=2, num_replicas=1), "fastest")
    assert cuts_of(plan)[0][1] != 2


@pytest.mark.parametrize(("num_replicas", "num_stages"), [(1, 1), (1, 3), (2, 2), (4, 1)])
def test_a_pinned_layout_is_obeyed(num_replicas: int, num_stages: int) -> None:
    plan = planned([layer(1.0)] * 4, num_replicas=num_replicas, num_stages=num_stages)
    assert plan.layout == f"{num_replicas}x{num_stages}"
    assert plan.stages[-1].end_layer == 4


@quick
@given(st.one_of(st.none(), st.integers(1, 4)), st.one_of(st.none(), st.integers(1, 4)), st.integers(1, 8))
def test_never_more_members_than_allowed(num_replicas: int | None, num_stages: int | None, max_members: int) -> None:
    if (num_replicas or 1) * (num_stages or 1) > max_members:
        return
    layers = [layer(1.0, sizes=(2,))] * 4
    plan = planned(layers, num_replicas=num_replicas, num_stages=num_stages, max_members=max_members)
    assert plan.num_members <= max_members
    assert num_replicas in (None, plan.num_replicas)
    assert num_stages in (None, len(plan.stages))


def test_all_members_are_used_where_they_help() -> None:
    assert planned([layer(1.0)] * 4, max_members=4).num_members == 4


def test_more_replicas_than_grains_are_not_planned() -> None:
    made = profile([layer(1.0, sizes=(4,))])
    assert picked(made, offer(), Limits(max_members=8), "fastest").num_replicas == 2


def test_the_grain_is_a_part_of_the_batch_that_fits() -> None:
    made = profile([layer(1.0, sizes=(2, 4))] * 2, largest_grain=4)
    assert picked(made, offer(), Limits(), "fastest").grain_size in (1, 2, 4)
    assert picked(made, offer(), Limits(num_stages=1, max_members=1), "fastest").grain_size <= 4


def test_a_grain_size_that_the_job_fixes_is_kept() -> None:
    made = profile([layer(1.0, sizes=(4,))] * 2)
    assert picked(made, offer(), Limits(), "fastest").grain_size == 4


def test_members_on_one_machine_get_no_more_cores_than_it_has() -> None:
    for num_cores, num_members in ((1, 1), (2, 2)):
        device = DeviceKind(kind="cpu", name="cpu", num_threads=1, num_cores=num_cores, score=1e10)
        made = profile([layer(1.0)], store_links(1e6, 1e-3), device=device)
        assert picked(made, offer(platform="local"), Limits(), "fastest").num_members == num_members


def test_the_cheapest_plan_saves_what_the_fastest_spends() -> None:
    rented = offer(usd_per_hour=36.0, usd_per_start=1.0)
    made = profile([layer(1.0)] * 4)
    fastest = picked(made, rented, Limits(), "fastest")
    cheapest = picked(made, rented, Limits(), "cheapest")
    assert (fastest.num_members, cheapest.num_members) == (4, 1)
    assert fastest.prediction.run_s < cheapest.prediction.run_s
    assert fastest.prediction.run_usd > cheapest.prediction.run_usd


def test_a_limit_decides_between_time_and_money() -> None:
    rented = offer(usd_per_hour=36.0, usd_per_start=1.0)
    made = profile([layer(1.0)] * 4)
    hasty = picked(made, rented, Limits(deadline_s=170.0), "cheapest")
    assert hasty.prediction.run_s <= 170
    assert hasty.num_members == 2, "one member takes 320 s, two take 160 s"
    thrifty = picked(made, rented, Limits(budget_usd=5.5), "fastest")
    assert thrifty.prediction.run_usd <= 5.5
    assert thrifty.num_members == 2, "320 s of computing cost $3.20, each start $1"


@pytest.mark.parametrize("goal", ["fastest", "cheapest"])
def test_of_equal_plans_the_one_with_fewest_members_is_taken(goal: Goal) -> None:
    made = profile([layer(0.0)] * 4, startup_cpu_s=10.0)
    assert picked(made, offer(), Limits(), goal).num_members == 1


def test_the_prediction_adds_up() -> None:
    rented = offer(usd_per_hour=7.3, usd_per_start=0.011, billing_grain_s=0.1, startup_s=4.0)
    made = profile([layer(1.0), layer(1.3)], store_links(1e6, 0.01), num_samples=81, epochs=3, startup_cpu_s=2.0)
    for members in (1, 2, 4):
        plan = picked(made, rented, Limits(num_replicas=1 + (members == 4), num_stages=1 + (members > 1)), "fastest")
        prediction = plan.prediction
        assert prediction.startup_s == 6.0
        assert prediction.num_steps == 33
        assert 6.0 + prediction.step_s * 81 * 3 / 8 <= prediction.run_s <= 6.0 + prediction.step_s * 33
        assert prediction.run_usd == math.fsum(term.usd for term in prediction.cost_terms)
        assert prediction.run_usd == pytest.approx(plan.num_members * (0.011 + 7.3 / 3600 * prediction.run_s), rel=1e-2)
        assert prediction.step_s > 0


@pytest.mark.parametrize(
    ("num_replicas", "num_left", "short_s"), [(1, 1, 1.0), (1, 6, 6.0), (2, 3, 3.0), (2, 6, 4.0), (2, 7, 4.0)]
)
def test_the_short_last_step_of_an_epoch_takes_its_longest_replica(
    num_replicas: int, num_left: int, short_s: float
) -> None:
    """A sample takes a second, and a grain has four of them. Epochs have ten full steps and a short one."""
    made = profile([layer(1.0, sizes=(4,))], num_samples=80 + num_left, epochs=3, largest_grain=4)
    limits = Limits(num_replicas=num_replicas, num_stages=1)
    plan = structs.replace(picked(made, offer(), limits), grain_size=4, shares=())
    prediction, _ = predict(plan, World({"made.offer": made}, directed_links(made.links), looks="at_once"))
    assert prediction.step_s == pytest.approx(8.0 / num_replicas)
    assert prediction.run_s == pytest.approx(3 * (10 * prediction.step_s + short_s))


def number_needed(refusal: pytest.ExceptionInfo[PlanError]) -> str:
    match = re.search(r"needs (\S+);", str(refusal.value))
    assert match is not None, str(refusal.value)
    return match[1]


def small_profile(seconds_per_sample: float) -> Profile:
    return profile([layer(seconds_per_sample, sizes=(4,))])


@quick
@given(st.floats(1e-3, 1e3))
def test_a_deadline_that_nothing_meets_is_refused_with_one_that_works(seconds: float) -> None:
    made = small_profile(seconds)
    with pytest.raises(PlanError, match="no plan ends within 1ms: the fastest, 2x1, needs") as refusal:
        picked(made, offer(), Limits(deadline_s=0.001), "fastest")
    enough_s = parse_duration_s(number_needed(refusal))
    assert picked(made, offer(), Limits(deadline_s=enough_s), "fastest").prediction.run_s <= enough_s


@quick
@given(st.floats(0.01, 100))
def test_a_budget_that_nothing_meets_is_refused_with_one_that_works(usd_per_hour: float) -> None:
    made, rented = small_profile(1.0), offer(usd_per_hour=usd_per_hour, usd_per_start=0.001)
    with pytest.raises(PlanError, match=r"no plan costs at most \$0.0001: the cheapest, 1x1, needs") as refusal:
        picked(made, rented, Limits(budget_usd=1e-4), "fastest")
    enough_usd = parse_usd(number_needed(refusal))
    assert picked(made, rented, Limits(budget_usd=enough_usd), "fastest").prediction.run_usd <= enough_usd


def test_limits_that_exclude_each_other_are_refused() -> None:
    rented = offer(usd_per_hour=36.0, usd_per_start=1.0)
    with pytest.raises(PlanError, match=r"no plan meets deadline and budget at the same time: .* loosen one"):
        picked(profile([layer(1.0)] * 4), rented, Limits(deadline_s=170.0, budget_usd=4.5), "fastest")


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(PlanError, match="4 stages are asked for, but made has only 2 layers; ask for fewer"):
        planned([layer(1.0)] * 2, num_stages=4)


def test_more_replicas_than_grains_are_refused() -> None:
    made = profile([layer(1.0, sizes=(4,))])
    with pytest.raises(PlanError, match="3 replicas are asked for, but a batch of 8 has only 2 grains of 4; ask for"):
        picked(made, offer(), Limits(num_replicas=3), "fastest")


def test_a_model_too_large_for_one_member_is_split() -> None:
    made = profile([layer(1.0, parameter_bytes=10_000)] * 2)
    plan = picked(made, offer(memory_bytes=75_000), Limits(), "cheapest")
    assert len(plan.stages) == 2
    assert all(stage.memory_bytes <= 75_000 for stage in plan.stages)


def on_gpu(gpu_memory_bytes: int) -> Offer:
    return offer(gpu="T4", num_gpus=1, gpu_memory_bytes=gpu_memory_bytes)


def test_a_stage_must_fit_the_memory_of_its_gpu() -> None:
    """However much memory the machine has."""
    made = profile([layer(1.0, parameter_bytes=10_000)] * 2)
    assert len(picked(made, offer(), Limits(), "cheapest").stages) == 1
    plan = picked(made, on_gpu(75_000), Limits(), "cheapest")
    assert len(plan.stages) == 2
    assert all(stage.memory_bytes <= 75_000 for stage in plan.stages)
    with pytest.raises(PlanError, match=r"no plan fits the memory of made\.offer: .* a member has 20 kB on its T4"):
        picked(made, on_gpu(20_000), Limits(), "fastest")


def test_a_given_plan_must_fit_the_memory_of_its_gpus() -> None:
    made = profile([layer(1.0, parameter_bytes=10_000)] * 2)
    plan = picked(made, on_gpu(10**9), Limits(num_stages=1, num_replicas=1), "cheapest")
    check_memory(plan)
    small = structs.replace(plan, offers=(on_gpu(20_000),))
    with pytest.raises(PlanError, match=r"stage 0 of the plan .* but made\.offer has 20 kB: .* are missing"):
        check_memory(small)


def test_a_model_too_large_for_every_layout_is_refused_with_what_it_needs() -> None:
    made = profile([layer(1.0, parameter_bytes=10_000)] * 2)
    with pytest.raises(PlanError, match="memory") as refusal:
        picked(made, offer(memory_bytes=20_000), Limits(), "fastest")
    said = re.search(r"needs ([0-9.]+) kB", str(refusal.value))
    assert said is not None
    needed = round(1000 * float(said[1]))
    assert picked(made, offer(memory_bytes=needed + 10), Limits(), "fastest").num_members > 1
    with pytest.raises(PlanError, match="memory"):
        picked(made, offer(memory_bytes=needed - 10), Limits(), "fastest")


@pytest.mark.parametrize(
    "links",
    [
        (),
        (link(1.0),),
        (link(1.0, from_site=STORE_SITE, to_site=SITE),),
        (link(1.0, from_site="elsewhere"), link(1.0, from_site=STORE_SITE, to_site="elsewhere")),
    ],
    ids=["none", "only up", "only down", "of another site"],
)
def test_a_missing_link_is_an_error(links: tuple[Link, ...]) -> None:
    with pytest.raises(PlanError, match="no links between site 'here' and the store; profile on that site first"):
        picked(profile([layer(1.0)], links), offer(), Limits(), "fastest")

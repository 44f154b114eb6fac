"""Fleets: as good as any that can be rented, of brute force's own arithmetic; and what is said where there is none."""

import itertools
import math
from collections.abc import Iterator
from statistics import NormalDist
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.errors import InputError
from zooid.planner.fleets import (
    ComputePoint,
    FleetProblem,
    Hire,
    Share,
    Shortfall,
    VmType,
    appraise,
    find_fleets,
    fleet_front,
    searching,
)
from zooid.predictor.equations import overlapped_step_s, ring_s

MB = 1e6
exactly = settings(max_examples=300, deadline=None, derandomize=True)


def vm(name: str, usd_per_hour: float = 1.0, *, quota: int = 4, s_per_sample: float = 0.1, **more: object) -> VmType:
    points = (
        ComputePoint(num_samples=1, compute_s=s_per_sample),
        ComputePoint(num_samples=2, compute_s=2 * s_per_sample),
    )
    given = {"compute": points, "bytes_per_s": 100 * MB} | more
    return VmType(name=name, usd_per_hour=usd_per_hour, quota=quota, **given)  # type: ignore[arg-type]


def problem(*vms: VmType, batch_size: int = 16, num_steps: int = 100, **more: object) -> FleetProblem:
    return FleetProblem(vms=vms, batch_size=batch_size, num_steps=num_steps, **more)  # type: ignore[arg-type]


# Brute force: every count, every local batch of every member, the papers' closed forms


def every_split(members: list[VmType], left: int, grain: int) -> Iterator[tuple[int, ...]]:
    if not members:
        if left == 0:
            yield ()
        return
    first, *rest = members
    for share in range(grain, left + 1, grain):
        if first.least_samples <= share <= (first.most_samples or left):
            yield from ((share, *others) for others in every_split(rest, left - share, grain))


def piecewise(points: tuple[ComputePoint, ...], num_samples: int) -> float:
    """Written out once more, from the record's own words."""
    if num_samples <= points[0].num_samples:
        return points[0].compute_s
    if len(points) == 1:
        return points[0].compute_s * num_samples / points[0].num_samples
    for one, two in itertools.pairwise(points):
        if num_samples <= two.num_samples or two is points[-1]:
            slope = (two.compute_s - one.compute_s) / (two.num_samples - one.num_samples)
            return one.compute_s + slope * (num_samples - one.num_samples)
    raise AssertionError


def brute_force(asked: FleetProblem) -> list[tuple[float, float]]:
    """Time and cost of every fleet, with the best of all splits of the batch."""
    rows, fleets = [], []
    for counts in itertools.product(*(range(kind.quota + 1) for kind in asked.vms)):
        fleet = [kind for kind, count in zip(asked.vms, counts, strict=True) for _ in range(count)]
        if not fleet or sum(count > 0 for count in counts) > (asked.most_kinds or len(counts)):
            continue
        members = [kind for kind in fleet for _ in range(kind.num_gpus)]
        inside = [kind.inside_bytes_per_s or kind.bytes_per_s for kind in fleet]
        slowest = min(inside) if len(fleet) == 1 else min(*inside, *(kind.bytes_per_s for kind in fleet))
        num = len(members)
        wait = 0.0 if num == 1 else NormalDist().inv_cdf((num - 0.375) / (num + 0.25))
        lost = sum(kind.interruptions_per_hour / 3600 * (kind.restart_s + asked.lost_s) for kind in fleet)
        usd_per_hour = sum(kind.usd_per_hour for kind in fleet)
        for split in every_split(members, asked.batch_size, asked.grain_size):
            compute = max(piecewise(kind.compute, share) for kind, share in zip(members, split, strict=True))
            rows.append((compute * (1 + asked.compute_spread * wait), num, slowest, 1 + lost, usd_per_hour))
            fleets.append(counts)
    if not rows:
        return []
    compute_s, nums, slowest_bytes_per_s, lost_times, usd = np.array(rows).T
    exchange_s = ring_s(asked.gradient_bytes, nums, slowest_bytes_per_s, asked.latency_s)
    step_s = overlapped_step_s((1 - asked.overlap) * compute_s, asked.overlap * compute_s, exchange_s)
    run_s = asked.num_steps * step_s * lost_times
    values = zip(fleets, run_s.tolist(), (run_s * usd / 3600).tolist(), strict=True)
    best: dict[tuple[int, ...], tuple[float, float]] = {}
    for counts, *value in sorted(values, key=lambda row: -row[1]):
        best[counts] = (value[0], value[1])
    return list(best.values())


@st.composite
def vm_types(draw: st.DrawFn, name: str) -> VmType:
    sizes = sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=3)))
    times = sorted(draw(st.lists(st.integers(1, 30), min_size=len(sizes), max_size=len(sizes))))
    num_gpus = draw(st.sampled_from([1, 1, 2]))
    least = draw(st.integers(1, 2))
    return VmType(
        name=name,
        usd_per_hour=draw(st.integers(0, 9)) / 4,
        quota=draw(st.integers(0, 3 if num_gpus == 1 else 1)),
        num_gpus=num_gpus,
        compute=tuple(
            ComputePoint(num_samples=size, compute_s=time / 10) for size, time in zip(sizes, times, strict=True)
        ),
        bytes_per_s=draw(st.integers(1, 9)) * 10.0,
        inside_bytes_per_s=draw(st.sampled_from([None, 50.0, 500.0])),
        least_samples=least,
        most_samples=draw(st.sampled_from([None, least, least + 2])),
        interruptions_per_hour=draw(st.sampled_from([0.0, 0.0, 5.0])),
        restart_s=draw(st.integers(0, 60)),
    )


@st.composite
def problems(draw: st.DrawFn) -> FleetProblem:
    grain = draw(st.integers(1, 2))
    return FleetProblem(
        vms=tuple(draw(vm_types(f"type-{at}")) for at in range(draw(st.integers(1, 3)))),
        batch_size=grain * draw(st.integers(1, 6)),
        grain_size=grain,
        num_steps=draw(st.integers(1, 50)),
        gradient_bytes=draw(st.integers(0, 40)),
        latency_s=draw(st.sampled_from([0.0, 0.1])),
        overlap=draw(st.sampled_from([0.0, 0.5, 1.0])),
        compute_spread=draw(st.sampled_from([0.0, 0.1])),
        lost_s=draw(st.integers(0, 20)),
        most_kinds=draw(st.sampled_from([None, None, 1, 2])),
    )


blocks = st.sampled_from([1, 4, 12, searching.BLOCK])
"""From branching on every count to all fleets in one block: problems that are small enough for brute force need one."""


@exactly
@given(problems(), blocks)
def test_the_fastest_is_the_fastest_and_the_front_is_the_front_of_brute_force(asked: FleetProblem, block: int) -> None:
    with mock.patch.object(searching, "BLOCK", block):
        _check_front(asked)


def _check_front(asked: FleetProblem) -> None:
    every = brute_force(asked)
    answer = find_fleets(asked)
    assert (answer.best is None) == (not every) == (answer.shortfall is not None)
    if answer.best is None:
        return
    assert answer.best.run_s == pytest.approx(min(run_s for run_s, _ in every), rel=1e-9)
    assert (answer.proof.status, answer.proof.gap) == ("optimal", 0)
    listed = find_fleets(asked, num_best=len(every) + 1)
    assert [answer.best.run_s, *(fleet.run_s for fleet in listed.others)] == pytest.approx(
        sorted(run_s for run_s, _ in every), rel=1e-9
    )
    # corners of the front that differ by rounding alone count as one
    front = [
        (run_s, usd)
        for run_s, usd in every
        if not any(
            time <= run_s * (1 + 1e-9)
            and cost <= usd * (1 + 1e-9)
            and (time < run_s * (1 - 1e-9) or cost < usd * (1 - 1e-9))
            for time, cost in every
        )
    ]
    found = [(fleet.run_s, fleet.run_usd) for fleet in fleet_front(asked).fleets]
    for run_s, usd in front:
        assert any(one == pytest.approx((run_s, usd), rel=1e-9) for one in found)
    for run_s, usd in found:
        assert not any(time < run_s * (1 - 1e-9) and cost < usd * (1 - 1e-9) for time, cost in every)


@exactly
@given(problems(), st.floats(0.3, 3), st.sampled_from([None, None, 0.5, 2.0]), blocks)
def test_the_fastest_in_a_budget_and_the_cheapest_by_a_deadline_are_those_of_brute_force(
    asked: FleetProblem, of_middle: float, of_other: float | None, block: int
) -> None:
    """Some have both limits."""
    every = brute_force(asked)
    with mock.patch.object(searching, "BLOCK", block):
        for goal in ("fastest", "cheapest") if every else ():
            _check_limited(asked, goal, every, of_middle, of_other)


def _check_limited(
    asked: FleetProblem, goal: str, every: list[tuple[float, float]], of_middle: float, of_other: float | None
) -> None:
    middle = [float(np.median(column)) for column in zip(*every, strict=True)]
    first, second = of_middle, of_other
    deadline, budget = (second, first) if goal == "fastest" else (first, second)
    deadline_s = None if deadline is None else 1.0000013 * deadline * middle[0]  # on nobody's own figure
    budget_usd = None if budget is None or not middle[1] else 1.0000013 * budget * middle[1]
    limited = msgspec.structs.replace(asked, goal=goal, deadline_s=deadline_s, budget_usd=budget_usd)
    within = [
        (run_s, usd) for run_s, usd in every if run_s <= (deadline_s or math.inf) and usd <= (budget_usd or math.inf)
    ]
    answer = find_fleets(limited)
    assert (answer.best is None) == (not within)
    if answer.best is None:
        _check_shortfall(limited, answer.shortfall)
        return
    assert (
        sum(share.num_members * share.num_samples for hire in answer.best.hires for share in hire.shares)
        == asked.batch_size
    )
    again = appraise(limited, answer.best.hires)
    assert (again.run_s, again.run_usd) == (answer.best.run_s, answer.best.run_usd)
    own = answer.best.run_s if goal == "fastest" else answer.best.run_usd
    best = min(run_s if goal == "fastest" else usd for run_s, usd in within)
    assert own == pytest.approx(best, rel=1e-9)
    assert answer.best.run_s <= (deadline_s or math.inf)
    assert answer.best.run_usd <= (budget_usd or math.inf)


def _check_shortfall(limited: FleetProblem, shortfall: Shortfall | None) -> None:
    """Each change that is offered is enough, and one that is a little smaller is not."""
    assert shortfall is not None
    for change in shortfall.changes:
        loosened = [
            _changed(limited, change.limit, change.vm, value)
            for value in (change.needed, change.needed - 1 if change.limit == "quota" else change.needed * (1 - 1e-9))
        ]
        if not shortfall.needs_all:
            assert find_fleets(loosened[0], is_explained=False).best is not None, str(shortfall)
            assert find_fleets(loosened[1], is_explained=False).best is None, str(shortfall)
    if shortfall.needs_all:
        both = limited
        for change in shortfall.changes:
            both = _changed(both, change.limit, change.vm, change.needed)
        assert find_fleets(both, is_explained=False).best is not None, str(shortfall)


def _changed(asked: FleetProblem, limit: str, name: str, value: float) -> FleetProblem:
    if limit == "deadline":
        return msgspec.structs.replace(asked, deadline_s=value)
    if limit == "budget":
        return msgspec.structs.replace(asked, budget_usd=value)
    assert limit == "quota"
    vms = tuple(msgspec.structs.replace(kind, quota=int(value)) if kind.name == name else kind for kind in asked.vms)
    return msgspec.structs.replace(asked, vms=vms)


@st.composite
def crowded(draw: st.DrawFn) -> FleetProblem:
    """Batches that only many machines of several types hold."""
    kinds = [
        VmType(
            name=f"type-{at}",
            usd_per_hour=draw(st.integers(1, 9)) / 4,
            quota=draw(st.integers(1, 4)),
            num_gpus=draw(st.sampled_from([1, 1, 2])),
            compute=(ComputePoint(num_samples=1, compute_s=draw(st.integers(1, 20)) / 20),),
            bytes_per_s=draw(st.integers(1, 9)) * 10.0,
            most_samples=draw(st.integers(1, 4)),
            interruptions_per_hour=draw(st.sampled_from([0.0, 5.0])),
            restart_s=60,
        )
        for at in range(draw(st.integers(2, 4)))
    ]
    room = sum(kind.quota * kind.num_gpus * (kind.most_samples or 0) for kind in kinds)
    return problem(
        *kinds,
        batch_size=max(1, round(draw(st.floats(0.4, 1)) * room)),
        gradient_bytes=draw(st.integers(0, 40)),
        overlap=draw(st.sampled_from([0.0, 0.5])),
        goal=draw(st.sampled_from(["fastest", "cheapest"])),
    )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(crowded(), st.floats(1, 2), st.sampled_from([1, 6]))
def test_branches_that_are_left_hold_nothing_better(asked: FleetProblem, of_best: float, block: int) -> None:
    """Beside a list of all fleets, for which nothing can be left out."""
    listed = find_fleets(asked, num_best=100_000)
    assert listed.best is not None
    every = [(fleet.run_s, fleet.run_usd) for fleet in (listed.best, *listed.others)]
    other = 1 if asked.goal == "fastest" else 0
    limit = of_best * min(pair[other] for pair in every) * 1.0000013
    within = min(pair[1 - other] for pair in every if pair[other] <= limit)
    limits = {"budget_usd": limit} if asked.goal == "fastest" else {"deadline_s": limit}
    with mock.patch.object(searching, "BLOCK", block):
        best = find_fleets(msgspec.structs.replace(asked, **limits)).best
        front = fleet_front(asked).fleets
    assert best is not None
    assert (best.run_s if asked.goal == "fastest" else best.run_usd) == pytest.approx(within, rel=1e-9)
    corners = [
        pair for pair in every if not any(one != pair and one[0] <= pair[0] and one[1] <= pair[1] for one in every)
    ]
    assert {(fleet.run_s, fleet.run_usd) for fleet in front} == set(corners)


# What a user would miss


def test_faster_machines_compute_more_so_that_all_end_together() -> None:
    asked = problem(vm("fast", 3, quota=2, s_per_sample=0.1), vm("slow", 1, quota=2, s_per_sample=0.3), batch_size=16)
    best = find_fleets(asked).best
    assert best is not None
    assert str(best) == "2 fast@6 + 2 slow@2"
    assert best.step_s == pytest.approx(0.6)


def test_the_next_best_fleets_come_in_order_and_are_different() -> None:
    asked = problem(vm("a", 2), vm("b", 1, s_per_sample=0.15), gradient_bytes=20 * MB, goal="cheapest")
    answer = find_fleets(asked, num_best=5)
    assert answer.best is not None
    fleets = [answer.best, *answer.others]
    assert len({str(fleet) for fleet in fleets}) == 5
    assert [fleet.run_usd for fleet in fleets] == sorted(fleet.run_usd for fleet in fleets)


def test_what_a_library_measured_replaces_the_ring_and_the_slowest_type_governs() -> None:
    one, other = vm("one"), vm("other")
    hires = [Hire(vm=name, num_vms=2, shares=(Share(num_members=2, num_samples=4),)) for name in ("one", "other")]
    measured = {"one": 0.2, "other": 0.5}
    fleet = appraise(problem(one, other), hires, lambda num, kind: measured[kind.name] * num)
    assert fleet.all_reduce_s == pytest.approx(2.0)
    assert fleet.step_s == pytest.approx(0.4 + 2.0)


def test_spot_is_chosen_until_interruptions_cost_more_than_they_save() -> None:
    def chosen(interruptions_per_hour: float) -> str:
        spot = vm("p3", 1.0, market="spot", interruptions_per_hour=interruptions_per_hour, restart_s=150)
        best = find_fleets(problem(vm("p3", 3.0), spot, goal="cheapest", lost_s=30, num_steps=10_000)).best
        assert best is not None
        assert best.interruptions == pytest.approx(
            interruptions_per_hour * 10_000 * best.step_s / 3600 * sum(hire.num_vms for hire in best.hires)
            if best.hires[0].market == "spot"
            else 0
        )
        return best.hires[0].market

    assert chosen(1.0) == "spot"
    assert chosen(60.0) == "on_demand"


def test_a_batch_that_no_quota_holds_says_how_many_more_machines_do() -> None:
    answer = find_fleets(problem(vm("small", quota=2, most_samples=4), vm("large", quota=0, most_samples=8)))
    assert answer.best is None
    assert answer.shortfall is not None
    assert answer.shortfall.binds == ("batch",)
    assert [(change.limit, change.vm, change.needed) for change in answer.shortfall.changes] == [
        ("quota", "small", 4),
        ("quota", "large", 1),
    ]
    assert str(answer.shortfall) == (
        "no fleet can hold the batch; raise the quota of small from 2 to 4, or raise the quota of large from 0 to 1"
    )


def test_limits_that_are_each_possible_but_not_together_say_so() -> None:
    fast, slow = vm("fast", 10, quota=1, s_per_sample=0.1), vm("slow", 1, quota=1, s_per_sample=0.5)
    asked = problem(fast, slow, most_kinds=1, deadline_s=200, budget_usd=0.3)
    shortfall = find_fleets(asked).shortfall
    assert shortfall is not None
    assert shortfall.binds == ("deadline", "budget")
    assert "fleets that end in time are beyond the budget; allow 800 s instead of" in str(shortfall)
    assert "allow $0.4445 instead of $0.30" in str(shortfall)


def test_a_search_that_is_cut_short_says_how_much_better_another_could_be() -> None:
    kinds = [vm(f"type-{at}", 1 + at / 7, quota=30, s_per_sample=0.1 / (1 + at / 5)) for at in range(6)]
    asked = problem(*kinds, batch_size=2048, gradient_bytes=30 * MB, goal="cheapest", deadline_s=3000)
    cut = find_fleets(asked, limit_s=0.0)
    assert cut.proof.status == "bounded"
    assert cut.proof.gap > 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: vm("a", quota=-1), "`quota` of a is -1"),
        (lambda: vm("a", compute=()), "at least one measured local batch"),
        (
            lambda: vm(
                "a",
                compute=(ComputePoint(num_samples=4, compute_s=2.0), ComputePoint(num_samples=8, compute_s=1.0)),
            ),
            "times that never fall",
        ),
        (lambda: vm("a", most_samples=2, least_samples=4), "at least `least_samples`, 4"),
        (lambda: problem(), "at least one type"),
        (lambda: problem(vm("a"), vm("a")), "twice"),
        (lambda: problem(vm("a"), batch_size=10, grain_size=4), "a grain that divides it"),
        (lambda: problem(vm("a"), batch_size=10**7), "give a larger `grain_size`"),
        (lambda: problem(vm("a"), overlap=1.5), "from 0 to 1"),
        (lambda: problem(vm("a"), deadline_s=0), "above 0, or None"),
        (lambda: problem(vm("a"), goal="best"), "fastest or cheapest"),
        (lambda: find_fleets(problem(vm("a")), num_best=0), "at least 1"),
        (lambda: find_fleets(problem(vm("a")), all_reduce_s=lambda num, kind: -1.0), "finite and at least 0"),
        (lambda: appraise(problem(vm("a")), []), "sum to the batch, 16"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        wrong()  # type: ignore[operator]

"""Fleets: the front of all that can be rented, by brute force's own arithmetic."""

import itertools
from collections.abc import Iterator
from statistics import NormalDist
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.appraisal import appraise
from zooid.core.errors import InputError
from zooid.planner.fleets import ComputePoint, Fleet, FleetProblem, Hire, LocalBatch, VmType, fleet_front, search
from zooid.planner.fleets.answer import fleets_of
from zooid.planner.fleets.arrays import FleetArrays
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
        if first.min_samples <= share <= (first.max_samples or left):
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
        if not fleet:
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
        min_samples=least,
        max_samples=draw(st.sampled_from([None, least, least + 2])),
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
    )


blocks = st.sampled_from([1, 4, 12, search.BLOCK])
"""From branching on every count to all fleets in one block: problems that are small enough for brute force need one."""


@exactly
@given(problems(), blocks)
def test_the_front_is_that_of_brute_force(asked: FleetProblem, block: int) -> None:
    every = brute_force(asked)
    with mock.patch.object(search, "BLOCK", block):
        front = fleet_front(asked)
    assert (front.proof.status, front.proof.gap) == ("optimal", 0)
    assert bool(front.fleets) == bool(every)
    if not every:
        return
    assert front.fleets[0].run_s == pytest.approx(min(run_s for run_s, _ in every), rel=1e-9)
    assert front.fleets[-1].run_usd == pytest.approx(min(usd for _, usd in every), rel=1e-9)
    # corners of the front that differ by rounding alone count as one
    corners = [
        (run_s, usd)
        for run_s, usd in every
        if not any(
            time <= run_s * (1 + 1e-9)
            and cost <= usd * (1 + 1e-9)
            and (time < run_s * (1 - 1e-9) or cost < usd * (1 - 1e-9))
            for time, cost in every
        )
    ]
    found = [(fleet.run_s, fleet.run_usd) for fleet in front.fleets]
    for run_s, usd in corners:
        assert any(one == pytest.approx((run_s, usd), rel=1e-9) for one in found)
    for run_s, usd in found:
        assert not any(time < run_s * (1 - 1e-9) and cost < usd * (1 - 1e-9) for time, cost in every)
    for fleet in front.fleets:
        again = appraise(asked, fleet.hires)
        assert (again.run_s, again.run_usd) == (fleet.run_s, fleet.run_usd)


@exactly
@given(problems(), st.floats(0.3, 3), blocks)
def test_the_fastest_in_a_budget_and_the_cheapest_by_a_deadline_are_on_the_front(
    asked: FleetProblem, of_middle: float, block: int
) -> None:
    every = brute_force(asked)
    if not every:
        return
    with mock.patch.object(search, "BLOCK", block):
        found = [(fleet.run_s, fleet.run_usd) for fleet in fleet_front(asked).fleets]
    for own, other in ((0, 1), (1, 0)):
        limit = 1.0000013 * of_middle * float(np.median([pair[other] for pair in every]))  # on nobody's own figure
        within = [pair[own] for pair in every if pair[other] <= limit]
        best = [pair[own] for pair in found if pair[other] <= limit]
        assert bool(best) == bool(within)
        if within:
            assert min(best) == pytest.approx(min(within), rel=1e-9)


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
            max_samples=draw(st.integers(1, 4)),
            interruptions_per_hour=draw(st.sampled_from([0.0, 5.0])),
            restart_s=60,
        )
        for at in range(draw(st.integers(2, 4)))
    ]
    room = sum(kind.quota * kind.num_gpus * (kind.max_samples or 0) for kind in kinds)
    return problem(
        *kinds,
        batch_size=max(1, round(draw(st.floats(0.4, 1)) * room)),
        gradient_bytes=draw(st.integers(0, 40)),
        overlap=draw(st.sampled_from([0.0, 0.5])),
    )


def all_fleets(asked: FleetProblem) -> tuple[Fleet, ...]:
    """Every fleet that can hold the batch, without a search."""
    arrays = FleetArrays.of(asked)
    counts = np.array(list(itertools.product(*(range(quota + 1) for quota in arrays.quota))))
    members = counts * arrays.num_gpus
    least, most = (members * arrays.min_grains).sum(axis=1), (members * arrays.max_grains).sum(axis=1)
    holds = (counts.sum(axis=1) > 0) & (least <= asked.num_grains) & (most >= asked.num_grains)
    return fleets_of(arrays, counts[holds])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(crowded(), st.sampled_from([1, 6]))
def test_branches_that_are_pruned_hold_nothing_better(asked: FleetProblem, block: int) -> None:
    every = {(fleet.run_s, fleet.run_usd) for fleet in all_fleets(asked)}
    corners = {pair for pair in every if not any(p != pair and p[0] <= pair[0] and p[1] <= pair[1] for p in every)}
    with mock.patch.object(search, "BLOCK", block):
        front = fleet_front(asked).fleets
    assert {(fleet.run_s, fleet.run_usd) for fleet in front} == corners


# What a user would miss


def text_of(fleet: Fleet) -> str:
    return " + ".join(
        f"{hire.num_vms} {hire.vm}@{'/'.join(str(batch.num_samples) for batch in hire.local_batches)}"
        for hire in fleet.hires
    )


def test_faster_machines_compute_more_so_that_all_end_together() -> None:
    asked = problem(vm("fast", 3, quota=2, s_per_sample=0.1), vm("slow", 1, quota=2, s_per_sample=0.3), batch_size=16)
    fastest = fleet_front(asked).fleets[0]
    assert text_of(fastest) == "2 fast@6 + 2 slow@2"
    assert fastest.step_s == pytest.approx(0.6)


def test_what_a_library_measured_replaces_the_ring_and_the_slowest_type_governs() -> None:
    one, other = vm("one"), vm("other")
    batches = (LocalBatch(num_members=2, num_samples=4),)
    hires = [Hire(vm=name, num_vms=2, local_batches=batches) for name in ("one", "other")]
    measured = {"one": 0.2, "other": 0.5}
    fleet = appraise(problem(one, other), hires, lambda num, kind: measured[kind.name] * num)
    assert fleet.all_reduce_s == pytest.approx(2.0)
    assert fleet.step_s == pytest.approx(0.4 + 2.0)


def test_spot_is_chosen_until_interruptions_cost_more_than_they_save() -> None:
    def chosen(interruptions_per_hour: float) -> str:
        spot = vm("p3", 1.0, market="spot", interruptions_per_hour=interruptions_per_hour, restart_s=150)
        best = fleet_front(problem(vm("p3", 3.0), spot, lost_s=30, num_steps=10_000)).fleets[-1]
        assert best.interruptions == pytest.approx(
            interruptions_per_hour * 10_000 * best.step_s / 3600 * sum(hire.num_vms for hire in best.hires)
            if best.hires[0].market == "spot"
            else 0
        )
        return best.hires[0].market

    assert chosen(1.0) == "spot"
    assert chosen(60.0) == "on_demand"


def test_a_batch_that_no_quota_holds_has_no_fleet() -> None:
    small, large = vm("small", quota=2, max_samples=4), vm("large", quota=0, max_samples=8)
    front = fleet_front(problem(small, large))
    assert (front.fleets, front.proof.status) == ((), "optimal")


def test_a_search_that_is_cut_short_proves_nothing() -> None:
    kinds = [vm(f"type-{at}", 1 + at / 7, quota=30, s_per_sample=0.1 / (1 + at / 5)) for at in range(6)]
    cut = fleet_front(problem(*kinds, batch_size=2048, gradient_bytes=30 * MB), limit_s=0.0)
    assert (cut.proof.status, cut.proof.gap) == ("bounded", 1)


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
        (lambda: vm("a", max_samples=2, min_samples=4), "at least `min_samples`, 4"),
        (lambda: problem(), "at least one type"),
        (lambda: problem(vm("a"), vm("a")), "twice"),
        (lambda: problem(vm("a"), batch_size=10, grain_size=4), "a grain that divides it"),
        (lambda: problem(vm("a"), batch_size=10**7), "give a larger `grain_size`"),
        (lambda: problem(vm("a"), overlap=1.5), "from 0 to 1"),
        (lambda: fleet_front(problem(vm("a")), all_reduce_s=lambda num, kind: -1.0), "a finite number of at least 0"),
        (lambda: appraise(problem(vm("a")), []), "sum to the batch, 16"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        wrong()  # type: ignore[operator]

"""FuncPipe's co-optimisation equals brute force over every partition, size and degree, scored by the closed form."""

from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.funcpipe_memory import funcpipe_memory_bytes
from benchmarks.baselines.simulated import three_phase_s
from tests.unit.paper_formulas import step_usd
from zooid.core.errors import InputError, PlanError
from zooid.planner.front import Point, pareto, recommended, worth
from zooid.planner.stage_sizes import (
    Aim,
    Allocation,
    Degree,
    FittedSizes,
    LayerCosts,
    MemberSizes,
    StageSizesProblem,
    StageSizesSearch,
)
from zooid.planner.stage_sizes import search as search_module
from zooid.predictor.equations import Pipeline, funcpipe_step_s
from zooid.predictor.equations.array_checks import Array

exact = settings(max_examples=100, deadline=None, derandomize=True)

times_s = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0]) | st.floats(0.01, 9, allow_subnormal=False)
amounts = st.sampled_from([0.0, 1.0, 2.0, 4.0]) | st.floats(0.1, 20, allow_subnormal=False)


@st.composite
def problems(draw: st.DrawFn, max_layers: int = 5) -> StageSizesProblem:
    num_layers, num_sizes = draw(st.integers(1, max_layers)), draw(st.integers(1, 3))

    def numbers(values: st.SearchStrategy[float], *shape: int) -> Array:
        count = int(np.prod(shape))
        return np.array(draw(st.lists(values, min_size=count, max_size=count))).reshape(shape)

    pairs = draw(
        st.lists(st.sampled_from([(1, 8), (2, 4), (4, 2), (8, 1), (3, 3)]), min_size=1, max_size=2, unique=True)
    )
    degrees = tuple(Degree(num_replicas=d, num_grains=mu) for d, mu in pairs)
    forward_s, backward_s = numbers(times_s, num_layers, num_sizes), numbers(times_s, num_layers, num_sizes)
    parameter_bytes, activation_bytes = numbers(amounts, num_layers), numbers(amounts, num_layers)
    spans = (len(degrees), num_layers, num_layers + 1, num_sizes)
    fitted = None
    if draw(st.booleans()):
        slowness = numbers(st.sampled_from([1.0, 0.5]) | st.floats(0.2, 1), *spans)
        fitted = FittedSizes(slowness, numbers(st.sampled_from([1.0, 2.0]) | st.floats(1, 9), *spans))
    return StageSizesProblem(
        layers=LayerCosts(forward_s, backward_s, parameter_bytes, numbers(amounts, num_layers)),
        sizes=MemberSizes(
            numbers(st.floats(20, 300), num_sizes),
            numbers(st.sampled_from([1.0, 2.0]) | st.floats(0.5, 20), num_sizes),
            numbers(st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0.1, 9), num_sizes),
        ),
        degrees=degrees,
        latency_s=draw(st.sampled_from([0.0, 0.1, 1.0])),
        slowdown=draw(st.sampled_from([1.0, 1.2])),
        needed_bytes=funcpipe_memory_bytes(
            parameter_bytes, activation_bytes, degrees, base_bytes=draw(st.sampled_from([0.0, 10.0]))
        ),
        fitted=fitted,
    )


@dataclass(frozen=True)
class Scored:
    time_s: float
    usd: float


def every_allocation(problem: StageSizesProblem) -> list[Scored]:
    """All there are that fit, padded to the same number of stages, in one call of the closed form for each degree."""
    layers, sizes = problem.layers, problem.sizes
    found: list[Scored] = []
    count = len(layers)
    partitions = [
        list(pairwise((0, *cuts, count))) for number in range(count) for cuts in combinations(range(1, count), number)
    ]
    ways = [(stages, chosen) for stages in partitions for chosen in product(range(len(sizes)), repeat=len(stages))]
    for number, (degree, needed_bytes) in enumerate(zip(problem.degrees, problem.needed_bytes, strict=True)):
        columns = np.zeros((5, len(ways), count))
        columns[4] = 1.0
        prices = np.zeros((len(ways), count))
        fits = np.ones(len(ways), bool)
        for row, (stages, chosen) in enumerate(ways):
            for at, ((first, end), size) in enumerate(zip(stages, chosen, strict=True)):
                slowness, usd_per_s = 1.0, sizes.usd_per_s[size]
                if problem.fitted is not None:
                    slowness = problem.fitted.slowness[number, first, end, size]
                    usd_per_s *= problem.fitted.dearness[number, first, end, size]
                columns[:, row, at] = (
                    slowness * layers.forward_s[first:end, size].sum(),
                    slowness * layers.backward_s[first:end, size].sum(),
                    layers.out_bytes[end - 1] if end < count else 0.0,
                    layers.parameter_bytes[first:end].sum(),
                    sizes.bytes_per_s[size],
                )
                prices[row, at] = usd_per_s
                fits[row] &= bool(needed_bytes[first, end] <= sizes.memory_bytes[size])
        time_s = funcpipe_step_s(
            Pipeline(*columns),
            degree.num_grains,
            degree.num_replicas,
            latency_s=problem.latency_s,
            slowdown=problem.slowdown,
            all_reduce=problem.all_reduce,
        )
        usd = step_usd(time_s, prices * 3600, degree.num_replicas)
        found += [Scored(float(t), float(c)) for t, c in zip(time_s[fits], usd[fits], strict=True)]
    return found


def is_near_the_edge(problem: StageSizesProblem) -> bool:
    """Whether rounding decides if some stage fits."""
    return bool(abs(problem.needed_bytes[..., None] - problem.sizes.memory_bytes).min() < 1e-9)


def covers(front: list[Allocation] | list[Scored], point: Point) -> bool:
    more = 1 + 1e-9
    return any(each.time_s <= point.time_s * more + 1e-12 and each.usd <= point.usd * more + 1e-12 for each in front)


def assert_fits_and_is_whole(problem: StageSizesProblem, found: Allocation) -> None:
    assert [first for first, _ in found.stages] == [0, *(end for _, end in found.stages[:-1])]
    assert found.stages[-1][1] == len(problem.layers)
    needed = problem.needed_bytes[problem.degrees.index(found.degree)]
    for (first, end), size in zip(found.stages, found.sizes, strict=True):
        assert needed[first, end] <= problem.sizes.memory_bytes[size]


@exact
@given(problems(), st.sampled_from([(1.0, 0.0), (1.0, 0.5), (1.0, 4.0), (1.0, 64.0), (0.0, 1.0)]))
def test_the_pick_of_any_weights_is_that_of_brute_force(
    problem: StageSizesProblem, weights: tuple[float, float]
) -> None:
    if is_near_the_edge(problem):
        return
    everything = every_allocation(problem)
    if not everything:
        with pytest.raises(PlanError, match="has room for layer"):
            StageSizesSearch(problem)
        return
    alpha = Aim(usd=weights[0], s=weights[1])
    pick = StageSizesSearch(problem).best(alpha)
    least = min(alpha.usd * each.usd + alpha.s * each.time_s for each in everything)
    assert pick.value == pytest.approx(least, rel=1e-9, abs=1e-12)
    assert alpha.usd * pick.allocation.usd + alpha.s * pick.allocation.time_s == pytest.approx(pick.value, rel=1e-12)
    assert (pick.proof.status, pick.proof.gap) == ("optimal", 0.0)
    assert_fits_and_is_whole(problem, pick.allocation)


@exact
@given(problems(max_layers=4))
def test_the_whole_front_is_that_of_brute_force(problem: StageSizesProblem) -> None:
    everything = every_allocation(problem)
    if not everything or is_near_the_edge(problem):
        return
    found = StageSizesSearch(problem).front()
    wanted = pareto(everything)
    assert all(covers(list(found.points), point) for point in wanted), "nothing of the front is missing"
    assert all(covers(wanted, point) for point in found.points), "nothing is on it that does not exist"
    assert list(found.points) == pareto(found.points)
    assert (found.proof.status, found.proof.gap) == ("optimal", 0.0)
    for point in found.points:
        assert_fits_and_is_whole(problem, point)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(problems(), st.sampled_from([(1.0, 0.0), (1.0, 4.0), (0.0, 1.0)]))
def test_closer_bounds_and_a_limit_of_time_change_no_answer(
    problem: StageSizesProblem, weights: tuple[float, float]
) -> None:
    """What large problems add is made to run on small ones, too."""
    everything = every_allocation(problem)
    if not everything or is_near_the_edge(problem):
        return
    alpha = Aim(usd=weights[0], s=weights[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "FEW_STAGES", 0)
        patch.setattr(search_module, "MANY_LAYERS", 0)
        search = StageSizesSearch(problem)
        pick = search.best(alpha, search_limit_s=60)
        front = search.front()
    least = min(alpha.usd * each.usd + alpha.s * each.time_s for each in everything)
    assert pick.value == pytest.approx(least, rel=1e-9, abs=1e-12)
    assert pick.proof.status == "optimal"
    assert all(covers(list(front.points), point) for point in pareto(everything))


def uneven(num_layers: int, seed: int = 0) -> StageSizesProblem:
    generator = np.random.default_rng(seed)
    forward_s = (
        generator.lognormal(0, 0.8, (num_layers, 1))
        / np.array([1, 1.8, 3, 5])
        * (1 + 0.1 * generator.random((num_layers, 4)))
    )
    backward_s = forward_s * generator.uniform(1.5, 2.5, (num_layers, 1))
    parameter_bytes, activation_bytes = generator.lognormal(0, 1, num_layers), generator.lognormal(0, 0.5, num_layers)
    degrees = tuple(Degree(num_replicas=d, num_grains=16 // d) for d in (1, 2, 4))
    return StageSizesProblem(
        layers=LayerCosts(forward_s, backward_s, parameter_bytes, generator.lognormal(0, 1, num_layers)),
        sizes=MemberSizes([60.0, 120.0, 240.0, 480.0], [4.0, 6.0, 8.0, 8.0], [1.0, 2.1, 4.0, 8.3]),  # type: ignore[arg-type]
        degrees=degrees,
        needed_bytes=funcpipe_memory_bytes(parameter_bytes, activation_bytes, degrees),
        latency_s=0.05,
        slowdown=1.1,
    )


def test_a_search_that_is_stopped_says_how_far_it_may_be_from_the_best() -> None:
    problem, alpha = uneven(70), Aim(usd=1.0, s=10.0)
    best = StageSizesSearch(problem).best(alpha)
    stopped = StageSizesSearch(problem).best(alpha, search_limit_s=0.0)
    assert (best.proof.status, best.proof.gap) == ("optimal", 0.0)
    assert stopped.proof.status == "bounded"
    assert stopped.value * (1 - stopped.proof.gap) <= best.value <= stopped.value
    assert 0 < stopped.proof.gap < 0.5


def test_a_front_that_is_stopped_is_whole_up_to_its_gap() -> None:
    problem = uneven(14)
    front = StageSizesSearch(problem).front()
    stopped = StageSizesSearch(problem).front(search_limit_s=0.0)
    assert front.proof.status == "optimal"
    assert stopped.proof.status == "bounded"
    fastest_s = min(point.time_s for point in stopped.points)
    assert fastest_s * (1 - stopped.proof.gap) <= min(point.time_s for point in front.points)
    for point in front.points:
        if point.time_s >= fastest_s:
            near = min(each.usd for each in stopped.points if each.time_s <= point.time_s * (1 + 1e-9))
            assert near * (1 - stopped.proof.gap) <= point.usd * (1 + 1e-9)


def test_every_pick_is_on_the_front_and_the_recommendation_is_worth_its_cost() -> None:
    search = StageSizesSearch(uneven(14))
    front = search.front()
    for s in (0.0, 1.0, 10.0, 100.0, 1e4):
        pick = search.best(Aim(usd=1.0, s=s))
        assert pick.value == pytest.approx(min(point.usd + s * point.time_s for point in front.points), rel=1e-9)
    cheapest, chosen = front.points[-1], recommended(front.points)
    assert worth(chosen, cheapest) >= 0.8
    faster = [point for point in front.points if point.time_s < chosen.time_s]
    assert all(worth(point, cheapest) < 0.8 for point in faster)


def test_another_memory_model_and_another_all_reduce_are_the_callers_to_give() -> None:
    plain = uneven(5)
    alpha = Aim(usd=1.0, s=1.0)
    slower = replace(
        plain,
        all_reduce=three_phase_s,
        degrees=(Degree(num_replicas=4, num_grains=4),),
        needed_bytes=plain.needed_bytes[2:],
    )
    least = min(each.usd + each.time_s for each in every_allocation(slower))
    assert StageSizesSearch(slower).best(alpha).value == pytest.approx(least, rel=1e-9)

    alone = np.full((3, 5, 6), 1e9)
    alone[:, range(5), range(1, 6)] = 50.0  # no two layers together, and any layer on any size
    pick = StageSizesSearch(replace(plain, needed_bytes=alone)).best(Aim(usd=1.0, s=0.0))
    assert pick.allocation.stages == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))


def test_what_cannot_be_searched_is_refused() -> None:
    plain = uneven(3)
    layers, sizes = plain.layers, plain.sizes
    with pytest.raises(InputError, match="`out_bytes` is -1; it must be at least 0"):
        replace(layers, out_bytes=-np.ones(3))
    with pytest.raises(InputError, match=r"`forward_s` has the shape \(3, 4\); .*give it \(2, 4\)"):
        replace(layers, parameter_bytes=np.ones(2))
    with pytest.raises(InputError, match=r"`forward_s` has the shape \(3,\)"):
        replace(layers, forward_s=np.ones(3))
    with pytest.raises(InputError, match="1 to 400 can be searched"):
        LayerCosts(np.ones((500, 1)), np.ones((500, 1)), np.ones(500), np.ones(500))
    with pytest.raises(InputError, match="times on 4 sizes, but 1 sizes are given"):
        replace(plain, sizes=MemberSizes(np.ones(1), np.ones(1), np.ones(1)))
    with pytest.raises(InputError, match="`usd_per_s` must be finite"):
        replace(sizes, usd_per_s=np.full(4, np.inf))
    with pytest.raises(InputError, match="no degree of replication"):
        replace(plain, degrees=())
    with pytest.raises(InputError, match=r"`needed_bytes` has the shape \(3, 3\); .*give it \(3, 3, 4\)"):
        replace(plain, needed_bytes=np.ones((3, 3)))
    with pytest.raises(InputError, match="`num_grains` is 0; it must be at least 1"):
        Degree(num_replicas=1, num_grains=0)
    with pytest.raises(InputError, match="not both 0"):
        Aim(usd=0.0, s=0.0)
    degrees = (Degree(num_replicas=4, num_grains=4),)
    heavy = funcpipe_memory_bytes(np.array([1.0, 500.0, 1.0]), np.zeros(3), degrees)
    too_large = replace(plain, degrees=degrees, needed_bytes=heavy)
    with pytest.raises(PlanError, match="has room for layer 1: alone, with 4 replicas of 4 grains, it needs 2 kB"):
        StageSizesSearch(too_large)

"""FuncPipe's co-optimisation equals brute force over every partition, size and degree, scored by the closed form."""

from dataclasses import dataclass
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.errors import PlanError
from zooid.planner.front import Point, pareto, recommended
from zooid.planner.resources import Allocation, Degree, Layers, Problem, ResourceSearch, Sizes, Weights
from zooid.predictor.closed_forms import Pipeline, funcpipe_step_s, step_usd

exact = settings(max_examples=300, deadline=None, derandomize=True)

times_s = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0]) | st.floats(0.01, 9, allow_subnormal=False)
amounts = st.sampled_from([0.0, 1.0, 2.0, 4.0]) | st.floats(0.1, 20, allow_subnormal=False)


@st.composite
def problems(draw: st.DrawFn, max_layers: int = 5) -> Problem:
    num_layers, num_sizes = draw(st.integers(1, max_layers)), draw(st.integers(1, 3))

    def numbers(values: st.SearchStrategy[float], *shape: int) -> np.ndarray:  # type: ignore[type-arg]
        count = int(np.prod(shape))
        return np.array(draw(st.lists(values, min_size=count, max_size=count))).reshape(shape)

    degrees = draw(
        st.lists(st.sampled_from([(1, 8), (2, 4), (4, 2), (8, 1), (3, 3)]), min_size=1, max_size=2, unique=True)
    )
    return Problem(
        layers=Layers(
            numbers(times_s, num_layers, num_sizes),
            numbers(times_s, num_layers, num_sizes),
            numbers(amounts, num_layers),
            numbers(amounts, num_layers),
            numbers(amounts, num_layers),
        ),
        sizes=Sizes(
            numbers(st.floats(20, 300), num_sizes),
            numbers(st.sampled_from([1.0, 2.0]) | st.floats(0.5, 20), num_sizes),
            numbers(st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0.1, 9), num_sizes),
        ),
        degrees=tuple(Degree(num_replicas=d, num_grains=mu) for d, mu in degrees),
        latency_s=draw(st.sampled_from([0.0, 0.1, 1.0])),
        slowdown=draw(st.sampled_from([1.0, 1.2])),
        base_bytes=draw(st.sampled_from([0.0, 10.0])),
    )


@dataclass(frozen=True)
class Scored:
    time_s: float
    usd: float


def every_allocation(problem: Problem) -> list[Scored]:
    """All there are that fit, padded to the same number of stages, in one call of the closed form for each degree."""
    layers, sizes = problem.layers, problem.sizes
    found: list[Scored] = []
    count = len(layers)
    partitions = [
        list(pairwise((0, *cuts, count))) for number in range(count) for cuts in combinations(range(1, count), number)
    ]
    ways = [(stages, chosen) for stages in partitions for chosen in product(range(len(sizes)), repeat=len(stages))]
    for degree in problem.degrees:
        copies = 2 if degree.num_replicas == 1 else 4
        columns = np.zeros((5, len(ways), count))
        columns[4] = 1.0
        prices = np.zeros((len(ways), count))
        fits = np.ones(len(ways), bool)
        for row, (stages, chosen) in enumerate(ways):
            for at, ((first, end), size) in enumerate(zip(stages, chosen, strict=True)):
                columns[:, row, at] = (
                    layers.forward_s[first:end, size].sum(),
                    layers.backward_s[first:end, size].sum(),
                    layers.out_bytes[end - 1] if end < count else 0.0,
                    layers.parameter_bytes[first:end].sum(),
                    sizes.bytes_per_s[size],
                )
                prices[row, at] = sizes.usd_per_s[size]
                kept = degree.num_grains * layers.activation_bytes[first:end].sum()
                needed = kept + copies * layers.parameter_bytes[first:end].sum() + problem.base_bytes
                fits[row] &= bool(needed <= sizes.memory_bytes[size])
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


def is_near_the_edge(problem: Problem) -> bool:
    """Whether rounding decides if some stage fits."""
    edges = [
        abs(problem.stage_bytes(degree)[..., None] - problem.sizes.memory_bytes).min()
        for degree in range(len(problem.degrees))
    ]
    return bool(min(edges) < 1e-9)


def covers(front: list[Allocation] | list[Scored], point: Point) -> bool:
    more = 1 + 1e-9
    return any(each.time_s <= point.time_s * more + 1e-12 and each.usd <= point.usd * more + 1e-12 for each in front)


def assert_fits_and_is_whole(problem: Problem, found: Allocation) -> None:
    assert [first for first, _ in found.stages] == [0, *(end for _, end in found.stages[:-1])]
    assert found.stages[-1][1] == len(problem.layers)
    needed = problem.stage_bytes(problem.degrees.index(found.degree))
    for (first, end), size in zip(found.stages, found.sizes, strict=True):
        assert needed[first, end] <= problem.sizes.memory_bytes[size]


@exact
@given(problems(), st.sampled_from([(1.0, 0.0), (1.0, 0.5), (1.0, 4.0), (1.0, 64.0), (0.0, 1.0)]))
def test_the_pick_of_any_weights_is_that_of_brute_force(problem: Problem, weights: tuple[float, float]) -> None:
    if is_near_the_edge(problem):
        return
    everything = every_allocation(problem)
    if not everything:
        with pytest.raises(PlanError, match="has room for layer"):
            ResourceSearch(problem)
        return
    alpha = Weights(usd=weights[0], s=weights[1])
    pick = ResourceSearch(problem).best(alpha)
    least = min(alpha.usd * each.usd + alpha.s * each.time_s for each in everything)
    assert pick.value == pytest.approx(least, rel=1e-9, abs=1e-12)
    assert alpha.usd * pick.allocation.usd + alpha.s * pick.allocation.time_s == pytest.approx(pick.value, rel=1e-12)
    assert (pick.proof.status, pick.proof.gap) == ("optimal", 0.0)
    assert_fits_and_is_whole(problem, pick.allocation)


@exact
@given(problems(max_layers=4))
def test_the_whole_front_is_that_of_brute_force(problem: Problem) -> None:
    everything = every_allocation(problem)
    if not everything or is_near_the_edge(problem):
        return
    found = ResourceSearch(problem).front()
    wanted = pareto(everything)
    assert all(covers(list(found.points), point) for point in wanted), "nothing of the front is missing"
    assert all(covers(wanted, point) for point in found.points), "nothing is on it that does not exist"
    assert list(found.points) == pareto(found.points)
    assert (found.proof.status, found.proof.gap) == ("optimal", 0.0)
    assert found.recommended == recommended(found.points)
    for point in found.points:
        assert_fits_and_is_whole(problem, point)

"""FuncPipe's co-optimisation of partition, member sizes and replicas, exactly (§3.4), where FuncPipe asks a solver.

Time falls and the rate (dollars a second) rises along what is worth having, and α₁ · cost + α₂ · time is
time · (α₁ · rate + α₂). So for every degree of replication: bounds over all pipelines, good pipelines from the bounds'
own shortest paths, closer bounds where something better may be left, and a search of just that.
"""

import time
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from zooid.core.errors import PlanError
from zooid.core.plans.search_result import Proof
from zooid.core.records import Record
from zooid.core.units import format_bytes
from zooid.planner.front import pareto, recommended
from zooid.planner.resources.bounds import Aim, Bounds
from zooid.planner.resources.improving import improved
from zooid.planner.resources.problem import Degree, Problem, Sizes, Weights
from zooid.planner.resources.searching import TOLERANCE, Built, search, walked
from zooid.planner.resources.stages import Ints, Stages, stages_of
from zooid.planner.resources.windows import least_height_s, narrower, wide_window
from zooid.predictor.equations import Pipeline, funcpipe_step_s
from zooid.predictor.equations.array_checks import Array

FEW_STAGES = 500
"""Up to so many possible stages the search alone is faster than closer bounds."""
MANY_LAYERS = 64
"""Beyond, more pipelines are made better; and where time is limited, a small gap is proven before none."""
FIRST_SHARE = 0.019
NEARLY = 1.1
ROUNDS, MANY_LAYERS_ROUNDS = ((16, 8), (24, 10)), ((12, 10), (32, 12))
"""Numbers of cells and of prices of time, closer each time; more where the search itself takes longer."""


class Allocation(Record, frozen=True, kw_only=True):
    """Who does what: [first, end) of every stage, the number of its size, and how many replicas of that."""

    stages: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]
    degree: Degree
    time_s: float
    """Of a step, by FuncPipe's closed form."""
    usd: float


class Pick(Record, frozen=True, kw_only=True):
    """The allocation with the least α₁ · cost + α₂ · time."""

    allocation: Allocation
    value: float
    proof: Proof


class AllocationFront(Record, frozen=True, kw_only=True):
    """Allocations that nothing beats in both time and cost, fastest first."""

    points: tuple[Allocation, ...]
    recommended: Allocation
    """The fastest that is worth its cost (FuncPipe §5.1)."""
    proof: Proof
    """The gap is the largest share by which a cost on the front, or its least time, may be above what is possible."""


@dataclass(frozen=True, eq=False)
class _Way:
    """One degree of replication, with bounds over all of its pipelines."""

    degree: int
    stages: Stages
    heights_s: Array
    bounds: Bounds


@dataclass(frozen=True)
class _Answer:
    best: Built | None
    value: float
    lower: float
    is_proven: bool


class ResourceSearch:
    """Prepared once for a problem; then any weights, and the whole front."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._known: dict[tuple[int, tuple[tuple[int, int, int], ...]], Built] = {}
        self._ways = [way for degree in range(len(problem.degrees)) if (way := self._prepared(degree))]
        if not self._ways:
            raise PlanError(_does_not_fit(problem))

    def best(self, weights: Weights, limit_s: float = float("inf")) -> Pick:
        """The pick of one pair of weights; what is proven after `limit_s` of searching, if it is not done by then."""
        begin_s = time.perf_counter()
        answer = self._least(Aim(weights.usd, weights.s), begin_s + limit_s)
        assert answer.best is not None, "shortest paths are pipelines"
        return Pick(
            allocation=self._allocation(answer.best),
            value=answer.value,
            proof=_proof(answer.value, answer.lower, begin_s),
        )

    def front(self, limit_s: float = float("inf")) -> AllocationFront:
        """From the cheapest on, each time the cheapest of all that are faster: every point of the front, once."""
        begin_s = time.perf_counter()
        points = self._free()
        within_s = points[0].time_s * (1 - TOLERANCE) if points else float("inf")
        gap = 0.0
        while True:
            answer = self._least(Aim(1.0, 0.0, within_s), begin_s + limit_s)
            if not answer.is_proven:
                rest, gap = self._unproven(within_s)
                points += rest
                break
            if answer.best is None:
                break
            points.append(self._allocation(answer.best))
            within_s = answer.best.time_s * (1 - TOLERANCE)
        kept = pareto(points, TOLERANCE)
        return AllocationFront(
            points=tuple(kept),
            recommended=recommended(kept),
            proof=Proof(status="bounded" if gap else "optimal", gap=gap, wall_s=time.perf_counter() - begin_s),
        )

    def _prepared(self, degree: int) -> _Way | None:
        stages = stages_of(self.problem, degree)
        least_s = least_height_s(stages)
        if not np.isfinite(least_s):
            return None
        heights_s = np.unique(stages.height_s[stages.height_s >= least_s])
        num_cells, num_prices = (4, 4) if len(stages) <= FEW_STAGES else (8, 8)
        bounds = wide_window(stages, heights_s, num_cells, num_prices).bounds(stages)
        self._walk(degree, bounds, np.arange(len(bounds.low_s)))
        return _Way(degree, stages, heights_s, bounds)

    def _walk(self, degree: int, bounds: Bounds, cells: Ints) -> None:
        """Remember the pipelines of the shortest paths."""
        is_wanted = np.zeros(bounds.whole.lines.shape, bool)
        is_wanted[cells] = np.isfinite(bounds.whole.lines[cells])
        for built in walked(bounds, degree, np.flatnonzero(is_wanted)):
            self._known[degree, built.stages] = built

    def _best_known(self, aim: Aim) -> tuple[Built | None, float]:
        fitting = [built for built in self._known.values() if built.time_s < aim.limit_s]
        best = min(fitting, key=lambda built: (self._value(aim, built), built.time_s), default=None)
        return best, float("inf") if best is None else self._value(aim, best)

    def _least(self, aim: Aim, deadline: float) -> _Answer:
        """The least value of the aim, from bounds that get closer, then from the search of what is left."""
        ways = [(way, way.bounds) for way in self._ways]
        self._improve(ways, aim)
        best, value = self._best_known(aim)
        has_many = len(self.problem.layers) > MANY_LAYERS
        for num_cells, num_prices in MANY_LAYERS_ROUNDS if has_many else ROUNDS:
            closer: list[tuple[_Way, Bounds]] = []
            for way, bounds in ways:
                if len(way.stages) <= FEW_STAGES or time.perf_counter() > deadline:
                    closer.append((way, bounds))
                    continue
                window = narrower(bounds, aim, value * (1 - TOLERANCE), way.heights_s, num_cells, num_prices)
                if window is not None:
                    found = window.bounds(way.stages)
                    cells = np.flatnonzero((found.roots(aim) < value).any(axis=1))
                    self._walk(way.degree, found, cells)
                    best, value = self._best_known(aim)
                    closer.append((way, found))
            ways = closer
            self._improve(ways, aim)
            best, value = self._best_known(aim)
        lowers = [float(bounds.roots(aim).min()) for _, bounds in ways]
        order = sorted(range(len(ways)), key=lambda at: lowers[at])
        ceiling = max((self._ceiling(way, aim) for way, _ in ways), default=0.0)

        def look(at: int, share: float) -> bool:
            """Whether it was looked through to the end."""
            nonlocal best, value
            way, bounds = ways[at]
            known = min(value, ceiling)
            if lowers[at] >= known * (1 - share) * (1 - TOLERANCE):
                return True
            outcome = search(bounds, way.degree, aim, known, share=share, deadline=deadline)
            if outcome.best is not None:
                self._known[way.degree, outcome.best.stages] = outcome.best
                best, value = outcome.best, outcome.value
            lowers[at] = max(lowers[at], outcome.lower)
            return outcome.is_complete

        shares = (FIRST_SHARE, 0.0) if np.isfinite(deadline) else (0.0,)
        for share in shares if has_many else shares[-1:]:
            if not all(look(at, share) for at in order):
                break
        else:
            return _Answer(best, value, value, is_proven=True)
        lower = min(lowers, default=value)
        return _Answer(best, value, min(lower, value), is_proven=lower >= value * (1 - 2 * TOLERANCE))

    def _improve(self, ways: list[tuple[_Way, Bounds]], aim: Aim) -> None:
        """Remember something better, where a degree has something nearly as good as the best."""
        _, value = self._best_known(aim)
        for way, _ in ways:
            known = sorted(
                (built for built in self._known.values() if built.degree == way.degree),
                key=lambda each: self._value(aim, each),
            )
            for best in known[: 1 if len(self.problem.layers) <= MANY_LAYERS else 3]:
                if self._value(aim, best) < value * NEARLY:
                    found = improved(way.stages, aim, best)
                    self._known[found.degree, found.stages] = found

    def _value(self, aim: Aim, built: Built) -> float:
        if built.time_s >= aim.limit_s:
            return float("inf")
        num_replicas = self.problem.degrees[built.degree].num_replicas
        return built.time_s * (aim.usd * num_replicas * built.rate + aim.s)

    def _ceiling(self, way: _Way, aim: Aim) -> float:
        """Above the value of anything that keeps the aim's time limit."""
        if not np.isfinite(aim.limit_s):
            return float("inf")
        most_rate = len(self.problem.layers) * float(way.stages.usd_per_s.max())
        return 1.01 * aim.limit_s * (aim.usd * way.stages.num_replicas * most_rate + aim.s)

    def _free(self) -> list[Allocation]:
        """The fastest that costs nothing, where there is any: nothing is cheaper, so the front begins there."""
        problem = self.problem
        free = np.flatnonzero(problem.sizes.usd_per_s == 0)
        if not len(free):
            return []
        sizes, layers = problem.sizes, problem.layers
        among = replace(
            problem,
            layers=replace(layers, forward_s=layers.forward_s[:, free], backward_s=layers.backward_s[:, free]),
            sizes=Sizes(sizes.memory_bytes[free], sizes.bytes_per_s[free], sizes.usd_per_s[free]),
        )
        try:
            found = ResourceSearch(among).best(Weights(usd=0.0, s=1.0)).allocation
        except PlanError:
            return []
        return [msgspec.structs.replace(found, sizes=tuple(int(free[size]) for size in found.sizes))]

    def _unproven(self, within_s: float) -> tuple[list[Allocation], float]:
        """What is known to be faster, and how far from the best it can be."""
        known = [self._allocation(built) for built in self._known.values() if built.time_s < within_s]
        rest = pareto(known, TOLERANCE)[::-1]
        gap = 0.0
        for slower_s, point in zip([within_s, *(point.time_s for point in rest)], rest, strict=False):
            lower = self._root(Aim(1.0, 0.0, slower_s))
            gap = max(gap, 1 - lower / point.usd)
        fastest_s = rest[-1].time_s if rest else within_s
        gap = max(gap, 1 - self._root(Aim(0.0, 1.0)) / fastest_s)
        return rest, max(gap, TOLERANCE)

    def _root(self, aim: Aim) -> float:
        return min(float(way.bounds.roots(aim).min()) for way in self._ways)

    def _allocation(self, built: Built) -> Allocation:
        """With the time of the closed form itself."""
        problem = self.problem
        layers, sizes = problem.layers, problem.sizes
        first, end, size = np.array(built.stages[::-1]).T

        def summed(values: Array) -> Array:
            return np.array([values[a:b].sum() for a, b in zip(first, end, strict=True)])

        def timed(values: Array) -> Array:
            return np.array([values[a:b, at].sum() for a, b, at in zip(first, end, size, strict=True)])

        pipeline = Pipeline(
            forward_s=timed(layers.forward_s),
            backward_s=timed(layers.backward_s),
            out_bytes=layers.out_bytes[end - 1],
            parameter_bytes=summed(layers.parameter_bytes),
            bytes_per_s=sizes.bytes_per_s[size],
        )
        degree = problem.degrees[built.degree]
        time_s = funcpipe_step_s(
            pipeline,
            degree.num_grains,
            degree.num_replicas,
            latency_s=problem.latency_s,
            slowdown=problem.slowdown,
            all_reduce=problem.all_reduce,
        )
        return Allocation(
            stages=tuple(zip(first.tolist(), end.tolist(), strict=True)),
            sizes=tuple(size.tolist()),
            degree=degree,
            time_s=float(time_s),
            usd=float(time_s) * degree.num_replicas * float(sizes.usd_per_s[size].sum()),
        )


def _proof(value: float, lower: float, begin_s: float) -> Proof:
    gap = 1 - lower / value if value > 0 else 0.0
    is_optimal = gap <= 2 * TOLERANCE
    wall_s = time.perf_counter() - begin_s
    return Proof(status="optimal" if is_optimal else "bounded", gap=0.0 if is_optimal else gap, wall_s=wall_s)


def _does_not_fit(problem: Problem) -> str:
    """The layer that stands in the way, at the degree that asks the least of it."""
    num_layers = len(problem.layers)
    alone = np.array(
        [
            problem.stage_bytes(degree)[range(num_layers), range(1, num_layers + 1)]
            for degree in range(len(problem.degrees))
        ]
    )
    largest = float(problem.sizes.memory_bytes.max())
    degree = int(alone.max(axis=1).argmin())
    layer = int(alone[degree].argmax())
    tried = problem.degrees[degree]
    return (
        f"no size of a member has room for layer {layer}: alone, with {tried.num_replicas} replicas of "
        f"{tried.num_grains} grains, it needs {format_bytes(alone[degree, layer])} and the largest size has "
        f"{format_bytes(largest)}; give larger sizes, smaller grains or more replicas"
    )

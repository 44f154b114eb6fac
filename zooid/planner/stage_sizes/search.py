"""FuncPipe's co-optimisation of partition, member sizes and replicas (§3.4), exact where FuncPipe asks a solver.

Along the Pareto front time falls and the rate (dollars per second) rises, and α₁ · cost + α₂ · time is
time · (α₁ · rate + α₂). So for every degree of replication: compute bounds over all pipelines, take the bounds' own
shortest paths as incumbents, compute closer bounds where something better may be left, and search just that.
"""

import math
import time
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from zooid.core.errors import PlanError
from zooid.core.plans.search_result import Proof
from zooid.core.units import format_bytes
from zooid.planner.front import Mask, pareto
from zooid.planner.stage_sizes.answer import (
    Allocation,
    AllocationFront,
    AllocationPick,
    BuiltPipeline,
    SearchOutcome,
    allocation_of,
)
from zooid.planner.stage_sizes.arrays import SizedStages
from zooid.planner.stage_sizes.bounds import PipelineBounds, closer_bounds, min_over_pipelines, wide_bounds
from zooid.planner.stage_sizes.label_search import TOLERANCE, improved, search_degree, shortest_paths
from zooid.planner.stage_sizes.problem import Aim, FittedSizes, MemberSizes, StageSizesProblem
from zooid.predictor.equations.array_checks import Array

FEW_STAGES = 500
"""Up to so many possible stages, the search alone is faster than closer bounds."""
MANY_LAYERS = 64
"""Beyond, more incumbents are improved; and where time is limited, `FIRST_GAP` is proven before optimality."""
FIRST_GAP = 0.019
NEARLY = 1.1
"""The incumbent of a degree is improved only where its value is within this factor of the best."""
ROUNDS, MANY_LAYERS_ROUNDS = ((16, 8), (24, 10)), ((12, 10), (32, 12))
"""Numbers of cells and of prices of time in each round of closer bounds."""


@dataclass(frozen=True, eq=False)
class _BoundedDegree:
    """One degree of replication, with bounds over its pipelines."""

    degree: int
    heights_s: Array
    bounds: PipelineBounds


class StageSizesSearch:
    """Prepares a problem once, and then answers for any weights, or with the whole front."""

    def __init__(self, problem: StageSizesProblem) -> None:
        self.problem = problem
        self._known: dict[tuple[int, tuple[tuple[int, int, int], ...]], BuiltPipeline] = {}
        degrees = range(len(problem.degrees))
        self._degrees = [bounded for degree in degrees if (bounded := self._bounded(degree)) is not None]
        if not self._degrees:
            raise PlanError(_infeasible(problem))

    def best(self, aim: Aim, search_limit_s: float = math.inf) -> AllocationPick:
        """The allocation with the least value of the aim. After `search_limit_s`, the proof says what is proven."""
        begin_s = time.perf_counter()
        outcome = self._minimise(aim, begin_s + search_limit_s)
        assert outcome.best is not None, "shortest paths are pipelines"
        gap = 1 - outcome.lower_bound / outcome.value if outcome.value > 0 else 0.0
        is_optimal = gap <= 2 * TOLERANCE
        wall_s = time.perf_counter() - begin_s
        return AllocationPick(
            allocation=allocation_of(self.problem, outcome.best),
            value=outcome.value,
            proof=Proof(status="optimal" if is_optimal else "bounded", gap=0.0 if is_optimal else gap, wall_s=wall_s),
        )

    def front(self, search_limit_s: float = math.inf) -> AllocationFront:
        """The Pareto front: first the cheapest point, then each time the cheapest of all that are faster."""
        begin_s = time.perf_counter()
        points = self._free()
        max_time_s = points[0].time_s * (1 - TOLERANCE) if points else math.inf
        gap = 0.0
        while True:
            outcome = self._minimise(Aim(1.0, 0.0, max_time_s), begin_s + search_limit_s)
            if not outcome.is_proven:
                rest, gap = self._unproven(max_time_s)
                points += rest
                break
            if outcome.best is None:
                break
            points.append(allocation_of(self.problem, outcome.best))
            max_time_s = outcome.best.time_s * (1 - TOLERANCE)
        return AllocationFront(
            points=tuple(pareto(points, TOLERANCE)),
            proof=Proof(status="bounded" if gap else "optimal", gap=gap, wall_s=time.perf_counter() - begin_s),
        )

    def _bounded(self, degree: int) -> _BoundedDegree | None:
        """Compute wide bounds of a degree; None where its layers do not fit."""
        stages = SizedStages(self.problem, degree)
        min_height_s = min_over_pipelines(stages, np.maximum, stages.height_s)
        if not math.isfinite(min_height_s):
            return None
        heights_s = np.unique(stages.height_s[stages.height_s >= min_height_s])
        num_cells, num_prices = (4, 4) if len(stages) <= FEW_STAGES else (8, 8)
        bounds = wide_bounds(stages, heights_s, num_cells, num_prices)
        self._add_shortest_paths(degree, bounds, np.ones(len(bounds.low_s), bool))
        return _BoundedDegree(degree, heights_s, bounds)

    def _add_shortest_paths(self, degree: int, bounds: PipelineBounds, is_wanted: Mask) -> None:
        """Add the shortest paths of the wanted cells to the known pipelines."""
        for built in shortest_paths(bounds, degree, is_wanted[:, None] & np.isfinite(bounds.whole.lines)):
            self._known[degree, built.stages] = built

    def _incumbent(self, aim: Aim) -> tuple[BuiltPipeline | None, float]:
        fast = [built for built in self._known.values() if built.time_s < aim.max_time_s]
        best = min(fast, key=lambda built: (self._value(aim, built), built.time_s), default=None)
        return best, math.inf if best is None else self._value(aim, best)

    def _value(self, aim: Aim, built: BuiltPipeline) -> float:
        if built.time_s >= aim.max_time_s:
            return math.inf
        num_replicas = self.problem.degrees[built.degree].num_replicas
        return built.time_s * (aim.usd * num_replicas * built.usd_per_s + aim.s)

    def _minimise(self, aim: Aim, deadline: float) -> SearchOutcome:
        """Find the least value of the aim: first with ever closer bounds, then by searching what these leave."""
        has_many = len(self.problem.layers) > MANY_LAYERS
        degrees = self._degrees
        self._improve(degrees, aim)
        best, value = self._incumbent(aim)
        for num_cells, num_prices in MANY_LAYERS_ROUNDS if has_many else ROUNDS:
            closer: list[_BoundedDegree] = []
            for bounded in degrees:
                if len(bounded.bounds.stages) <= FEW_STAGES or time.perf_counter() > deadline:
                    closer.append(bounded)
                    continue
                below = value * (1 - TOLERANCE)
                bounds = closer_bounds(bounded.bounds, aim, below, bounded.heights_s, num_cells, num_prices)
                if bounds is not None:
                    is_open = np.any(bounds.roots(aim) < value, axis=1)
                    self._add_shortest_paths(bounded.degree, bounds, is_open)
                    best, value = self._incumbent(aim)
                    closer.append(replace(bounded, bounds=bounds))
            degrees = closer
            self._improve(degrees, aim)
            best, value = self._incumbent(aim)
        lower_bounds = [float(bounded.bounds.roots(aim).min()) for bounded in degrees]
        order = sorted(range(len(degrees)), key=lambda index: lower_bounds[index])
        ceiling = max((self._ceiling(bounded, aim) for bounded in degrees), default=0.0)

        def search_one(index: int, gap: float) -> bool:
            """Search a degree; returns whether it is searched to the end."""
            nonlocal best, value
            bounded = degrees[index]
            limit = min(value, ceiling)
            if lower_bounds[index] >= limit * (1 - gap) * (1 - TOLERANCE):
                return True
            outcome = search_degree(bounded.bounds, bounded.degree, aim, limit, gap=gap, deadline=deadline)
            if outcome.best is not None:
                self._known[bounded.degree, outcome.best.stages] = outcome.best
                best, value = outcome.best, outcome.value
            lower_bounds[index] = max(lower_bounds[index], outcome.lower_bound)
            return outcome.is_proven

        for gap in (FIRST_GAP, 0.0) if has_many and math.isfinite(deadline) else (0.0,):
            if not all(search_one(index, gap) for index in order):
                break
        else:
            return SearchOutcome(best, value, value, is_proven=True)
        lower_bound = min(lower_bounds, default=value)
        is_proven = lower_bound >= value * (1 - 2 * TOLERANCE)
        return SearchOutcome(best, value, min(lower_bound, value), is_proven)

    def _improve(self, degrees: list[_BoundedDegree], aim: Aim) -> None:
        """Improve the best known pipelines of every degree that comes near the incumbent."""
        _, value = self._incumbent(aim)
        max_improved = 1 if len(self.problem.layers) <= MANY_LAYERS else 3
        for bounded in degrees:
            known = [built for built in self._known.values() if built.degree == bounded.degree]
            for built in sorted(known, key=lambda built: self._value(aim, built))[:max_improved]:
                if self._value(aim, built) < value * NEARLY:
                    better = improved(bounded.bounds.stages, aim, built)
                    self._known[better.degree, better.stages] = better

    def _ceiling(self, bounded: _BoundedDegree, aim: Aim) -> float:
        """A value above that of any pipeline that keeps the aim's time limit."""
        if not math.isfinite(aim.max_time_s):
            return math.inf
        max_usd_per_s = len(self.problem.layers) * float(bounded.bounds.stages.usd_per_s.max())
        return 1.01 * aim.max_time_s * (aim.usd * bounded.bounds.stages.num_replicas * max_usd_per_s + aim.s)

    def _free(self) -> list[Allocation]:
        """The fastest allocation that costs nothing, where there is one. It is the cheapest point of the front."""
        problem, layers, sizes, fitted = self.problem, self.problem.layers, self.problem.sizes, self.problem.fitted
        free = np.flatnonzero(sizes.usd_per_s == 0)
        if not len(free):
            return []
        free_problem = replace(
            problem,
            layers=replace(layers, forward_s=layers.forward_s[:, free], backward_s=layers.backward_s[:, free]),
            sizes=MemberSizes(sizes.memory_bytes[free], sizes.bytes_per_s[free], sizes.usd_per_s[free]),
            fitted=fitted and FittedSizes(fitted.slowness[..., free], fitted.dearness[..., free]),
        )
        try:
            fastest = StageSizesSearch(free_problem).best(Aim(usd=0.0, s=1.0)).allocation
        except PlanError:
            return []
        return [msgspec.structs.replace(fastest, sizes=tuple(int(free[size]) for size in fastest.sizes))]

    def _unproven(self, max_time_s: float) -> tuple[list[Allocation], float]:
        """The known allocations that are faster than `max_time_s`, and how far they can be from the front."""
        known = [built for built in self._known.values() if built.time_s < max_time_s]
        points = pareto([allocation_of(self.problem, built) for built in known], TOLERANCE)[::-1]
        gap = 0.0
        for slower_s, point in zip([max_time_s, *(point.time_s for point in points)], points, strict=False):
            gap = max(gap, 1 - self._root(Aim(1.0, 0.0, slower_s)) / point.usd)
        fastest_s = points[-1].time_s if points else max_time_s
        gap = max(gap, 1 - self._root(Aim(0.0, 1.0)) / fastest_s)
        return points, max(gap, TOLERANCE)

    def _root(self, aim: Aim) -> float:
        """Lower bound of all pipelines."""
        return min(float(bounded.bounds.roots(aim).min()) for bounded in self._degrees)


def _infeasible(problem: StageSizesProblem) -> str:
    """The message about the layer that fits no member, at the degree that needs the least memory for it."""
    layers = np.arange(len(problem.layers))
    alone = problem.needed_bytes[:, layers, layers + 1]
    degree = int(alone.max(axis=1).argmin())
    layer = int(alone[degree].argmax())
    replication = problem.degrees[degree]
    return (
        f"no size of a member has room for layer {layer}: alone, with {replication.num_replicas} replicas of "
        f"{replication.num_grains} grains, it needs {format_bytes(alone[degree, layer])} and the largest size has "
        f"{format_bytes(float(problem.sizes.memory_bytes.max()))}; give larger sizes, smaller grains or more replicas"
    )

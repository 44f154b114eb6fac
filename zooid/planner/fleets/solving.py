"""The best fleets for a goal, and all of which none is both slower and dearer than another."""

import math
import time
from collections.abc import Sequence

import numpy as np

from zooid.core.errors import InputError
from zooid.core.plans.search_result import Proof
from zooid.planner.fleets.explaining import explain
from zooid.planner.fleets.fleet import Fleet, FleetAnswer, FleetFront, make_fleet, share_out
from zooid.planner.fleets.keeping import Best, Front
from zooid.planner.fleets.problem import FleetProblem
from zooid.planner.fleets.searching import search
from zooid.planner.fleets.tables import AllReduceOfVm, Tables


def find_fleets(
    problem: FleetProblem,
    *,
    num_best: int = 1,
    all_reduce_s: AllReduceOfVm | None = None,
    limit_s: float = math.inf,
    is_explained: bool = True,
) -> FleetAnswer:
    """The best fleet within the limits and, where asked for, the next best ones; or which limit stands in the way.

    `all_reduce_s` is a ring over `gradient_bytes` unless given. A search that takes longer than `limit_s` ends with the
    best it has met, and says how much better another could be. Explaining what no fleet meets takes some searches more.
    """
    if num_best < 1:
        raise InputError(f"{num_best} fleets are asked for; ask for at least 1")
    begin_s = time.perf_counter()
    tables = Tables.of(problem, all_reduce_s)
    keeper = Best(problem, num_best)
    left = search(tables, keeper, begin_s + limit_s)
    fleets = _fleets(tables, keeper.counts)
    proof = _proof(keeper.kept[0][0] if keeper.kept else math.inf, left, begin_s)
    shortfall = None
    if not fleets and is_explained and proof.status == "optimal":
        shortfall = explain(problem, all_reduce_s)
        proof = _proof(math.inf, left, begin_s)
    return FleetAnswer(best=fleets[0] if fleets else None, others=tuple(fleets[1:]), shortfall=shortfall, proof=proof)


def fleet_front(
    problem: FleetProblem, *, all_reduce_s: AllReduceOfVm | None = None, limit_s: float = math.inf
) -> FleetFront:
    """Every fleet within the limits to which no other is both as fast and as cheap; the problem's goal is ignored."""
    begin_s = time.perf_counter()
    tables = Tables.of(problem, all_reduce_s)
    keeper = Front(problem)
    left = search(tables, keeper, begin_s + limit_s)
    fleets = _fleets(tables, keeper.counts)
    return FleetFront(fleets=tuple(fleets), proof=_proof(fleets[0].run_s if fleets else math.inf, left, begin_s))


def _fleets(tables: Tables, found: Sequence[tuple[int, ...]]) -> list[Fleet]:
    if not found:
        return []
    counts = np.array(found)
    makespans_s = tables.makespan_s(counts)
    exact = tables.evaluate(counts, makespans_s)
    return [
        make_fleet(tables, row, share_out(tables, row, float(makespan_s)), exact, at)
        for at, (row, makespan_s) in enumerate(zip(counts, makespans_s, strict=True))
    ]


def _proof(found: float, left: float, begin_s: float) -> Proof:
    wall_s = time.perf_counter() - begin_s
    if left == math.inf or left >= found:
        return Proof(status="optimal", gap=0.0, wall_s=wall_s)
    return Proof(status="bounded", gap=1 - left / found, wall_s=wall_s)

"""What Srifty compares itself with (§5.1), on whole models on VMs that reach one another: greedy choices of GPUs, and
an analytical model. They say nothing about grains, so that each gets the size with which its fleet turns out best."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.baselines.analytical import analytical
from benchmarks.baselines.appraisal import appraise
from benchmarks.baselines.cheapest_gpu_first import cheapest_gpu_first
from benchmarks.baselines.fastest_gpu_first import fastest_gpu_first
from zooid.core.plans.plan import Plan
from zooid.core.plans.search_result import Goal
from zooid.planner import Market
from zooid.planner.families import grain_sizes
from zooid.planner.fleets import FleetProblem, Hire, fleet_front
from zooid.planner.mixed import fleet_problem, hired, holding, whole_models

Choose = Callable[[FleetProblem], list[Hire] | None]


@dataclass(frozen=True)
class ChosenFleet:
    """Members, and what Srifty's closed form says of their step."""

    proposal: Plan
    closed_form_s: float


def by_cheapest(market: Market, max_members: int) -> Iterator[ChosenFleet]:
    """CGF."""
    return _chosen(market, max_members, cheapest_gpu_first)


def by_fastest(market: Market, max_members: int) -> Iterator[ChosenFleet]:
    """FGF."""
    return _chosen(market, max_members, fastest_gpu_first)


def by_analytical_model(market: Market, max_members: int, goal: Goal) -> Iterator[ChosenFleet]:
    """APM."""

    def choose(problem: FleetProblem) -> list[Hire] | None:
        fleets = fleet_front(analytical(problem)).fleets
        return list(fleets[0 if goal == "fastest" else -1].hires) if fleets else None

    return _chosen(market, max_members, choose)


def _chosen(market: Market, max_members: int, choose: Choose) -> Iterator[ChosenFleet]:
    profile = market.profile
    for grain_size in grain_sizes(profile):
        if profile.batch_size % grain_size:
            continue
        offers = holding(market, market.offers, grain_size)
        if not offers:
            continue
        problem, all_reduce_s = fleet_problem(market, offers, max_members, grain_size, "tcp")
        hires = choose(problem)
        if hires is None or sum(hire.num_vms for hire in hires) > max_members or not _is_whole(hires, grain_size):
            continue
        made = whole_models(market, grain_size, "tcp", hired(hires, offers, grain_size))
        yield ChosenFleet(made, appraise(problem, hires, all_reduce_s).step_s)


def _is_whole(hires: list[Hire], grain_size: int) -> bool:
    """Whether everybody has whole grains."""
    return all(batch.num_samples % grain_size == 0 for hire in hires for batch in hire.local_batches)

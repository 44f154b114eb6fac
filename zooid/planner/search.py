"""From profile, offer and limits to the plan: closed forms propose, the simulator decides."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from zooid.core.errors import PlanError
from zooid.core.link import STORE_SITE, Link
from zooid.core.offer import Offer
from zooid.core.plan import AllReduceName, Limits, Plan, ScheduleName, StagePlan, TransportName
from zooid.core.profile import Profile
from zooid.planner.partition import Partition, best_partitions
from zooid.planner.refusals import missing_bytes, no_layout, what_binds
from zooid.predictor import Proposal, World, lay_out, predict, stage_memory_bytes, ways_from
from zooid.schedule.pipelines import most_kept

Goal = Literal["fastest", "cheapest"]
GOALS: tuple[Goal, ...] = get_args(Goal)

ALL_REDUCE: AllReduceName = "auto"

SIMULATED_PARTITIONS = 3
"""Of each layout and grain size, so many of the closed form's best are simulated."""


def find_plan(profile: Profile, offer: Offer, limits: Limits, goal: Goal, peers: Sequence[Link] = ()) -> Plan:
    """The best plan on this offer; ties go to fewer members, then to less memory. PlanError says which limit nothing
    can meet. `peers` are links between members, which are needed where they are to be connected."""
    if limits.transport == "nccl" and profile.device.kind != "cuda":
        raise PlanError(
            f"the transport nccl is for GPUs, but {profile.job} was measured on {profile.device.name}; give tcp or gloo"
        )
    plans = list(_candidates(profile, offer, limits, peers))
    if not plans:
        raise PlanError(no_layout(profile, limits, min(_grain_sizes(profile))))
    fitting = [plan for plan in plans if _meets(plan, limits)]
    if not fitting:
        raise PlanError(what_binds(plans, limits))

    def objective(plan: Plan) -> tuple[float, float, int, int]:
        time_s, usd = plan.prediction.run_s, plan.prediction.run_usd
        first, second = (time_s, usd) if goal == "fastest" else (usd, time_s)
        return first, second, plan.num_members, sum(stage.memory_bytes for stage in plan.stages)

    return min(fitting, key=objective)


def _candidates(profile: Profile, offer: Offer, limits: Limits, peers: Sequence[Link]) -> Iterator[Plan]:
    transport = limits.transport or "store"
    links = _peer_links(peers, offer, transport) if limits.is_direct else _store_links(profile, offer)
    for num_replicas in _counts(limits.num_replicas, limits.max_members):
        for num_stages in _counts(limits.num_stages, limits.max_members // num_replicas):
            for grain_size in _grain_sizes(profile):
                num_grains = math.ceil(profile.batch_size / grain_size)
                if num_grains < num_replicas:
                    continue
                own_grains = math.ceil(num_grains / num_replicas)
                for partition in best_partitions(
                    profile, num_stages, grain_size, own_grains, links, most=SIMULATED_PARTITIONS
                ):
                    for schedule, ahead in _schedules(limits.schedule, num_stages):
                        way = Way(schedule, ahead, transport, links)
                        yield evaluate(profile, offer, way, num_replicas, partition, grain_size)


@dataclass(frozen=True)
class Way:
    """How a pipeline works, apart from who does what."""

    schedule: ScheduleName
    ahead: int
    transport: TransportName
    links: tuple[Link, Link]


def _schedules(pinned: ScheduleName | None, num_stages: int) -> list[tuple[ScheduleName, int]]:
    """A single stage needs no pipeline: one grain after the other keeps the least. 1F1B comes in both kinds."""
    if num_stages == 1:
        return [("1f1b", 0)]
    both: list[tuple[ScheduleName, int]] = [("1f1b", 0), ("1f1b", 1), ("gpipe", 0)]
    return [(name, ahead) for name, ahead in both if pinned in (None, name)]


def evaluate(
    profile: Profile, offer: Offer, way: Way, num_replicas: int, partition: Partition, grain_size: int
) -> Plan:
    """A complete plan, with the simulated step and everything that follows from it."""
    proposal = Proposal(
        partition=partition,
        offers=(offer,) * len(partition),
        num_replicas=num_replicas,
        grain_size=grain_size,
        schedule=way.schedule,
        ahead=way.ahead,
        transport=way.transport,
        all_reduce=ALL_REDUCE,
    )
    world = World({offer.name: profile}, ways_from(way.links), looks="folder" if offer.platform == "local" else "store")
    prediction, _ = predict(proposal, world)
    schedule, _ = lay_out(proposal, world)
    return Plan(
        job=profile.job,
        model_fingerprint=profile.model_fingerprint,
        autocast=profile.autocast,
        batch_size=profile.batch_size,
        grain_size=grain_size,
        num_replicas=num_replicas,
        stages=tuple(
            StagePlan(
                first_layer=first,
                end_layer=end,
                offer=offer.name,
                memory_bytes=stage_memory_bytes(
                    profile, first, end, grain_size, most_kept(schedule.lists[0][number]), num_replicas=num_replicas
                ),
            )
            for number, (first, end) in enumerate(partition)
        ),
        schedule=way.schedule,
        ahead=way.ahead,
        transport=way.transport,
        all_reduce=ALL_REDUCE,
        offers=(offer,),
        prediction=prediction,
    )


def _store_links(profile: Profile, offer: Offer) -> tuple[Link, Link]:
    """To the store and from it, as measured where the members will stand."""
    to_store = [link for link in profile.links if link.from_site == offer.site and link.to_site == STORE_SITE]
    from_store = [link for link in profile.links if link.from_site == STORE_SITE and link.to_site == offer.site]
    if not to_store or not from_store:
        raise PlanError(
            f"the profile holds no links between site {offer.site!r} and the store; profile on that site first"
        )
    return to_store[0], from_store[0]


def _peer_links(peers: Sequence[Link], offer: Offer, transport: str) -> tuple[Link, Link]:
    """Between members where they will stand, as measured with as few streams and members at once as there are."""
    between = [link for link in peers if link.from_site == link.to_site == offer.site]
    if not between:
        raise PlanError(
            f"members are to be connected over {transport}, but no link between members at {offer.site!r} is known; "
            "measure it with `zooid probe --only peers` and give the file with --links"
        )
    return between[0], between[0]


def _grain_sizes(profile: Profile) -> list[int]:
    """Those that were measured, and even parts of the batch, as far as they fit; a job's own grain size alone."""
    measured = [point.num_samples for point in profile.layers[0].points]
    if len(measured) == 1:
        return measured
    parts = [profile.batch_size // 2**halvings for halvings in range(6)]
    return sorted({size for size in (*measured, *parts) if 1 <= size <= profile.largest_grain})


def _counts(pinned: int | None, most: int) -> range:
    return range(pinned or 1, min(pinned or most, most) + 1)


def _meets(plan: Plan, limits: Limits) -> bool:
    prediction = plan.prediction
    in_time = limits.deadline_s is None or prediction.run_s <= limits.deadline_s
    in_budget = limits.budget_usd is None or prediction.run_usd <= limits.budget_usd
    return in_time and in_budget and missing_bytes(plan) <= 0

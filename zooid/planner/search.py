"""From profile, offer and limits to the plan: closed forms propose, the simulator decides."""

import math
from collections.abc import Iterator
from typing import Literal, get_args

from zooid.core.errors import PlanError
from zooid.core.link import STORE_SITE, Link
from zooid.core.offer import Offer
from zooid.core.plan import AllReduceName, Limits, Plan, Prediction, StagePlan
from zooid.core.profile import Profile
from zooid.planner.partition import Partition, best_partitions
from zooid.planner.refusals import missing_bytes, no_layout, what_binds
from zooid.predictor import Layout, run_cost, simulate_step, stage_memory_bytes, stage_times, ties_between
from zooid.schedule.pipelines import schedule_step
from zooid.schedule.samples import SamplePlan, even_shares, split_grains

Goal = Literal["fastest", "cheapest"]
GOALS: tuple[Goal, ...] = get_args(Goal)

ALL_REDUCE: AllReduceName = "auto"

SIMULATED_PARTITIONS = 3
"""Of each layout and grain size, so many of the closed form's best are simulated."""


def find_plan(profile: Profile, offer: Offer, limits: Limits, goal: Goal) -> Plan:
    """The best plan on this offer; ties go to fewer members. PlanError says which limit nothing can meet."""
    plans = list(_candidates(profile, offer, limits))
    if not plans:
        raise PlanError(no_layout(profile, limits, min(_grain_sizes(profile))))
    fitting = [plan for plan in plans if _meets(plan, limits)]
    if not fitting:
        raise PlanError(what_binds(plans, limits))

    def objective(plan: Plan) -> tuple[float, float, int]:
        time_s, usd = plan.prediction.run_s, plan.prediction.run_usd
        return (time_s, usd, plan.num_members) if goal == "fastest" else (usd, time_s, plan.num_members)

    return min(fitting, key=objective)


def _candidates(profile: Profile, offer: Offer, limits: Limits) -> Iterator[Plan]:
    links = _store_links(profile, offer)
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
                    yield _evaluate(profile, offer, links, num_replicas, partition, grain_size)


def _evaluate(
    profile: Profile, offer: Offer, links: tuple[Link, Link], num_replicas: int, partition: Partition, grain_size: int
) -> Plan:
    """A complete plan, with the simulated step and everything that follows from it."""
    num_grains = math.ceil(profile.batch_size / grain_size)
    shares = even_shares(num_grains, num_replicas)
    num_members = num_replicas * len(partition)
    # in cores of a member's size: two cores serve eight members that are held to a quarter of one
    host_cores = max(1.0, profile.device.num_cores / offer.vcpus) if offer.platform == "local" else None
    crowded = host_cores is not None and num_members > 1
    layout = Layout(
        stages=tuple(stage_times(profile, *stage, grain_size, crowded=crowded) for stage in partition),
        upload=links[0],
        download=links[1],
        host_cores=host_cores,
        all_reduce=ALL_REDUCE,
        ties=ties_between(profile, partition),
    )
    timeline = simulate_step(schedule_step("gpipe", len(partition), split_grains(num_grains, shares)), layout)
    samples = SamplePlan(
        num_samples=profile.num_samples,
        batch_size=profile.batch_size,
        grain_size=grain_size,
        epochs=profile.epochs,
        seed=0,
    )
    if offer.startup_s is None:
        raise PlanError(f"the catalog does not say how long {offer.name} takes to start; give it a `startup_s`")
    own_startup_s = profile.startup_cpu_s / min(1.0, offer.vcpus)
    startup_s = offer.startup_s + own_startup_s * max(1.0, num_members / (host_cores or num_members))
    run_s = startup_s + timeline.step_s * profile.num_samples * profile.epochs / profile.batch_size
    terms = run_cost([offer] * num_members, run_s)
    prediction = Prediction(
        step_s=timeline.step_s,
        num_steps=samples.num_steps,
        startup_s=startup_s,
        run_s=run_s,
        run_usd=math.fsum(term.usd for term in terms),
        cost_terms=terms,
        estimated_from=profile.estimated_from,
    )
    return Plan(
        job=profile.job,
        model_fingerprint=profile.model_fingerprint,
        batch_size=profile.batch_size,
        grain_size=grain_size,
        num_replicas=num_replicas,
        stages=tuple(
            StagePlan(
                first_layer=first,
                end_layer=end,
                offer=offer.name,
                memory_bytes=stage_memory_bytes(profile, first, end, grain_size, max(shares)),
            )
            for first, end in partition
        ),
        schedule="gpipe",
        transport="store",
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

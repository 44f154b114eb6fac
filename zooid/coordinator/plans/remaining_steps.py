"""The plan for the remaining steps of a run: any layout, but with the grain size of the run."""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from zooid.coordinator.plans.markets import market_for
from zooid.coordinator.plans.offer_names import largest_of
from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import LayerProfile, Profile, TimePoint
from zooid.core.plans.search_result import Goal
from zooid.core.resources.link import Link
from zooid.core.resources.offer import Offer
from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.planner import search, single
from zooid.predictor import run_cost
from zooid.schedule.samples import SamplePlan, samples_of


def plan_the_rest(
    profile: Profile,
    manifest: CheckpointManifest,
    offers: Sequence[Offer],
    limits: Limits,
    goal: Goal,
    peers: Sequence[Link] = (),
) -> Plan:
    """Return the best plan for the remaining steps, to which deadline and budget apply.

    `offers` are one, or the sizes from which the planner chooses; then the profile is of the largest. The prediction is
    for the whole run in this layout, as in any plan.
    """
    samples = samples_of(manifest)
    num_grains = samples.num_grains(0)
    if limits.num_replicas is not None and limits.num_replicas > num_grains:
        raise PlanError(
            f"{limits.num_replicas} replicas are asked for, but a step of this run has {num_grains} grain(s) of "
            f"{samples.grain_size} samples, which is fixed for a run; give at most {num_grains}"
        )
    rest = rest_of(profile, samples, manifest.step)
    if len(offers) == 1:
        market = single(rest, offers[0], peers)
    else:
        market, _ = market_for(offers, {largest_of(offers[0]).name: rest}, links=peers, transport=limits.transport)
    pick = search(market, limits, goal).pick
    return as_whole_run(pick, samples, manifest.step)


def as_whole_run(plan: Plan, samples: SamplePlan, step: int) -> Plan:
    """Return a plan that was predicted for the steps from this one on, with a prediction for the whole run."""
    assert plan.grain_size == samples.grain_size, "a profile with one grain size leaves no other"
    remaining = plan.prediction
    num_steps = replace(samples, batches=()).num_steps  # with the job's own batch size, as in any plan
    num_remaining = remaining.num_steps if samples.batches else samples.num_steps - step
    longer = num_steps / num_remaining
    run_s = remaining.startup_s + (remaining.run_s - remaining.startup_s) * longer
    terms = run_cost(plan.member_offers, run_s)
    whole = structs.replace(
        remaining,
        num_steps=num_steps,
        run_s=run_s,
        run_usd=sum(term.usd for term in terms),
        cost_terms=terms,
        losses=None if remaining.losses is None else remaining.losses.in_longer_run(longer),
    )
    return structs.replace(plan, predicted=whole)


def rest_of(profile: Profile, samples: SamplePlan, step: int) -> Profile:
    """Return the profile as if the job had one epoch of the remaining samples, and one measured grain size."""
    grain_size = samples.grain_size
    num_left = samples.epochs * samples.num_samples - samples.num_samples_before(step)
    return structs.replace(
        profile,
        num_samples=num_left,
        epochs=1,
        layers=tuple(_at(layer, grain_size) for layer in profile.layers),
        largest_grain=max(profile.largest_grain, grain_size),
    )


def _at(layer: LayerProfile, grain_size: int) -> LayerProfile:
    def point(*, crowded: bool) -> TimePoint:
        return TimePoint(
            num_samples=grain_size,
            forward_s=layer.forward_s(grain_size, crowded=crowded),
            backward_s=layer.backward_s(grain_size, crowded=crowded),
        )

    crowded = (point(crowded=True),) if layer.crowded_points else ()
    return structs.replace(layer, points=(point(crowded=False),), crowded_points=crowded)

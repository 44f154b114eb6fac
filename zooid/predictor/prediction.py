"""The prediction of a plan: its simulated step with its spread, and the time and the bill of the whole run."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.plans.loss_forecast import LossForecast
from zooid.core.plans.plan import Plan, Prediction
from zooid.core.plans.profile import Profile
from zooid.core.plans.stage import StageTimes
from zooid.core.resources.machine_sites import outer_site
from zooid.core.resources.offer import Offer
from zooid.core.resources.prices import FREE, Prices
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.runs.step_parts import parts_of_step
from zooid.core.runs.timeline import Timeline
from zooid.predictor.costs.bill import run_cost, total_usd
from zooid.predictor.costs.traffic import step_traffic
from zooid.predictor.costs.usage import Checkpoints, DataSet, RunUsage, num_checkpoints, run_usage
from zooid.predictor.losses.plan_losses import checkpoint_timing, is_at_risk, run_risk, seat_risks, unknown_offers
from zooid.predictor.losses.risky_prediction import UsageOf, predict_risky
from zooid.predictor.losses.run_losses import RunRisk
from zooid.predictor.machine_links import member_sites, with_machines
from zooid.predictor.simulation.layout import AllReduceTime, DirectedLinks, Layout, Looks
from zooid.predictor.simulation.step import Noise, simulate_step, simulate_steps
from zooid.predictor.stage_memory import more_gradients_of_tree
from zooid.predictor.stage_times import stage_times, ties_between
from zooid.schedule.pipelines import StepSchedule, StepShape
from zooid.schedule.samples import SamplePlan, even_shares, split_grains

P95 = 1.645
"""The 95th percentile of a normal distribution, in standard deviations above its mean."""


_ENDING_S = 0.08
"""Time in which a member writes the last checkpoint of a small model and its process ends, on one ARM core."""
_FEW_STEPS = 50
"""Of an epoch with more full steps, the short one is not simulated, since it hardly matters."""


@dataclass(frozen=True)
class World:
    """Everything known about where plans would run."""

    profiles: Mapping[str, Profile]
    """The model's profile on each offer, by the offer's name."""
    links: DirectedLinks
    looks: Looks = "store"
    library: AllReduceTime | None = None
    prices: Prices = FREE
    estimate: Callable[[Offer], Profile] | None = field(default=None, compare=False)
    """Estimates the profile on a size of an offer that `profiles` does not have."""
    _stages: dict[Hashable, StageTimes] = field(default_factory=dict, init=False, repr=False, compare=False)
    _estimates: dict[str, Profile] = field(default_factory=dict, init=False, repr=False, compare=False)

    def stage_times(self, offer: Offer, span: tuple[int, int], grain_size: int, **how: bool) -> StageTimes:
        """Times of the layers [first, end) on an offer. They are cached, since many plans share stages."""
        key = (offer.name, span, grain_size, *how.items())
        if key not in self._stages:
            self._stages[key] = stage_times(self.profile_of(offer), *span, grain_size, **how)
        return self._stages[key]

    def profile_of(self, offer: Offer) -> Profile:
        if offer.name in self._estimates:
            return self._estimates[offer.name]
        if offer.name not in self.profiles and self.estimate is not None:
            self._estimates[offer.name] = self.estimate(offer)
            return self._estimates[offer.name]
        if offer.name not in self.profiles:
            raise PlanError(
                f"there is no profile of {offer.name}, only of {', '.join(self.profiles)}; measure it with `zooid "
                f"profile --on {offer.name}`"
            )
        return self.profiles[offer.name]


class GradientCopies(TypedDict):
    """Arguments of `stage_memory_bytes` that determine how many sets of gradients a member holds."""

    num_replicas: int
    more_gradients: float


def gradient_copies(plan: Plan, shares: Sequence[int]) -> GradientCopies:
    """The sets of gradients that each member holds, given the number of grains of each replica."""
    more = more_gradients_of_tree(split_grains(sum(shares), shares)) if plan.reproducible else 0.0
    more += plan.num_holders > plan.num_replicas  # gradients in flight to the copy
    return {"num_replicas": plan.num_replicas, "more_gradients": more}


def lay_out(plan: Plan, world: World, num_samples: int | None = None) -> tuple[StepSchedule, Layout]:
    """The schedule of a step of so many samples, or of a full one, and the layout of members that runs it."""
    layout, shares = layout_of(plan, world)
    num_grains = sum(shares) if num_samples is None else math.ceil(num_samples / plan.grain_size)
    shape = StepShape(
        plan.schedule,
        len(plan.stages),
        plan.ahead,
        buckets=tuple(len(stage.buckets) for stage in layout.stages[0]),
        ties=tuple(tie.stages for tie in layout.ties),
    )
    return shape.step(split_grains(num_grains, shares)), layout


def layout_of(plan: Plan, world: World) -> tuple[Layout, tuple[int, ...]]:
    """The layout of members that runs a full step, and the number of grains of each replica."""
    rows, partition = plan.offer_rows, plan.partition
    first_profile = world.profile_of(rows[0][0])
    cores = host_cores(plan, world)
    crowded = cores is not None and plan.num_members > 1
    sites = member_sites(plan)
    layout = Layout(
        stages=tuple(
            tuple(
                world.stage_times(offer, span, plan.grain_size, crowded=crowded, is_direct=plan.is_direct)
                for offer, span in zip(row, partition, strict=True)
            )
            for row in rows
        ),
        sites=sites,
        links=with_machines(world.links, sites),
        transport=plan.transport,
        all_reduce=plan.all_reduce,
        reproducible=plan.reproducible,
        has_copies=plan.num_holders > plan.num_replicas,
        host_cores=cores,
        ties=ties_between(first_profile, partition),
        library=world.library,
        looks=world.looks,
    )
    num_grains = math.ceil(first_profile.batch_size / plan.grain_size)
    return layout, plan.shares or even_shares(num_grains, plan.num_replicas)


def predict(
    plan: Plan,
    world: World,
    rule: CheckpointRule = DEFAULT_RULE,
    data: DataSet | None = None,
    *,
    num_noisy_steps: int = 0,
) -> tuple[Prediction, Timeline]:
    """Predict the time and the bill of the whole run, and return them with the timeline of a step.

    The mean and the 95th percentile of a step come from `num_noisy_steps` simulated steps. Without noisy steps, they
    come from the spread of the measurements. `rule` says when checkpoints are written, and `data` which data set
    members load, if loading it is charged.
    """
    schedule, layout = lay_out(plan, world)
    offers = plan.member_offers
    profile = world.profile_of(offers[0])
    spread = profile.spread
    if num_noisy_steps:
        link_spread = max((way.spread for way in world.links.values()), default=0.0)
        noise = Noise(compute=spread.of_steps, links=link_spread / 2)
        steps = simulate_steps(schedule, layout, num_noisy_steps, noise)
        step_s, step_p95_s = steps.mean_s, max(steps.mean_s, steps.quantile_s(0.95))
    else:
        steps = simulate_steps(schedule, layout, 1, Noise())
        step_s = steps.mean_s
        step_p95_s = step_s * (1 + P95 * spread.of_steps)
    samples = SamplePlan(
        num_samples=profile.num_samples,
        batch_size=profile.batch_size,
        grain_size=plan.grain_size,
        epochs=profile.epochs,
        seed=0,
    )
    full_steps = _full_steps(plan, world, step_s)
    starting_s = startup_s(plan, world)
    run_s = starting_s + step_s * full_steps + _ending_s(plan, world)
    # differences between steps average out over a run; differences of a run from what was measured do not
    unsure_s = P95 * math.hypot(spread.of_runs * step_s * full_steps, (step_p95_s - step_s) / P95 * full_steps**0.5)
    checkpoints = _checkpoints(plan, profile, num_checkpoints(rule, samples.num_steps, run_s - starting_s), rule)
    usage_of = _usage_of(schedule, layout, step_s, data)
    usage = usage_of(full_steps, run_s, checkpoints)
    terms = run_cost(offers, run_s, starting_s, usage, world.prices)
    late_terms = run_cost(offers, run_s + unsure_s, starting_s, usage, world.prices)
    unknown = unknown_offers(plan.offers)
    prediction = Prediction(
        step_s=step_s,
        step_p95_s=step_p95_s,
        num_steps=samples.num_steps,
        startup_s=starting_s,
        run_s=run_s,
        run_p95_s=run_s + unsure_s,
        run_usd=total_usd(terms),
        run_p95_usd=total_usd(late_terms),
        cost_terms=terms,
        parts=parts_of_step(steps.timeline),
        losses=LossForecast(unknown=unknown) if unknown else None,
        estimated_from=next(filter(None, (world.profile_of(offer).estimated_from for offer in offers)), ""),
    )
    if is_at_risk(plan.offers, run_s):
        risk = _risk(plan, world, prediction, full_steps, checkpoints, rule)
        prediction = predict_risky(prediction, plan, risk, rule, checkpoints, world.prices, usage_of)
    return prediction, steps.timeline


def _full_steps(plan: Plan, world: World, step_s: float) -> float:
    """The number of full steps that take as long as all steps of a run, in which each epoch may end with a short one.

    A short step often takes longer than its part of the samples, since one replica may still have a whole grain.
    """
    profile = world.profile_of(plan.offer_of(0))
    num_full, num_left = divmod(profile.num_samples, profile.batch_size)
    if num_left == 0 or num_full > _FEW_STEPS:
        return profile.epochs * profile.num_samples / profile.batch_size
    last_grain = (num_left % plan.grain_size or plan.grain_size) / plan.grain_size
    short_s = simulate_step(*lay_out(plan, world, num_left), last_grain).step_s
    return profile.epochs * (num_full + min(1.0, short_s / step_s))


def _risk(
    plan: Plan, world: World, prediction: Prediction, full_steps: float, checkpoints: Checkpoints, rule: CheckpointRule
) -> RunRisk:
    """What may happen to the members of a plan that has been predicted without losses."""
    step_s = prediction.step_s
    seats = seat_risks(plan, lambda offer: _member_startup_s(offer, world))
    return run_risk(
        plan,
        seats,
        startup_s=prediction.startup_s,
        num_steps=full_steps,
        step_s=step_s,
        slowdown=_slowdown(plan, world, step_s),
        timing=checkpoint_timing(plan, seats, checkpoints, world.links, rule, step_s),
    )


def _slowdown(plan: Plan, world: World, step_s: float) -> float:
    """Time of a step with one replica fewer, relative to a step with all. Replicas that differ share in proportion."""
    fewer = plan.num_replicas - 1
    if fewer == 0 or not plan.survives_losses:
        return 1.0
    if plan.replica_offers:
        return plan.num_replicas / fewer
    smaller = structs.replace(plan, num_replicas=fewer, shares=(), insured=False)
    return simulate_steps(*lay_out(smaller, world), 1, Noise()).mean_s / step_s


def _checkpoints(plan: Plan, profile: Profile, num_written: int, rule: CheckpointRule) -> Checkpoints:
    stages = [
        (profile.parameter_bytes(*span), sum(layer.buffer_bytes for layer in profile.layers[slice(*span)]))
        for span in plan.partition
    ]
    saved = 1 + profile.optimizer_bytes_per_parameter_byte
    return Checkpoints(
        num_written=num_written,
        stage_bytes=tuple(saved * parameter_bytes + buffer_bytes for parameter_bytes, buffer_bytes in stages),
        weight_bytes=tuple(parameter_bytes + buffer_bytes for parameter_bytes, buffer_bytes in stages),
        keep=rule.keep,
    )


def _usage_of(schedule: StepSchedule, layout: Layout, step_s: float, data: DataSet | None) -> UsageOf:
    """What a run of this layout uses: its steps, its checkpoints, and the coordinator's polls."""
    sites = layout.of_replicas(schedule.num_replicas).rows_of_sites
    between = layout.links.get((sites[0][0], sites[0][0]))
    traffic = step_traffic(
        schedule,
        layout.stages[0],
        all_reduce=layout.all_reduce,
        is_direct=layout.is_direct,
        reproducible=layout.reproducible,
        has_copies=layout.has_copies,
        ties=layout.ties,
        element_bytes=layout.parameter_element_bytes,
        rtt_s=between.rtt_s if between is not None else None,
    )

    def usage_of(num_steps: float, run_s: float, checkpoints: Checkpoints) -> RunUsage:
        return run_usage(
            traffic,
            {seat: outer_site(sites[seat[0]][seat[1]]) for seat in traffic.seats},
            num_steps=num_steps,
            step_s=step_s,
            running_s=run_s,
            checkpoints=checkpoints,
            data=data,
            num_copies=schedule.num_stages if layout.has_copies else 0,
        )

    return usage_of


def host_cores(plan: Plan, world: World) -> float | None:
    """The cores that members of one machine share, in units of a member's size; None if each member has its own.

    Two cores count as eight for members that are limited to a quarter of a core.
    """
    rows = plan.offer_rows
    local_vcpus = [offer.vcpus for row in rows for offer in row if offer.platform == "local"]
    if not local_vcpus:
        return None
    return max(1.0, world.profile_of(rows[0][0]).device.num_cores / max(local_vcpus))


def startup_s(plan: Plan, world: World) -> float:
    """Start-up time of the slowest member. Members of one machine compete for its cores meanwhile."""
    crowd = _crowd(plan, world)
    offers = {offer.name: offer for row in plan.offer_rows for offer in row}.values()
    return max(_member_startup_s(offer, world, crowd) for offer in offers)


def _crowd(plan: Plan, world: World) -> float:
    """How many members there are for each core, if they share those of one machine and are more; otherwise 1."""
    cores = host_cores(plan, world)
    return max(1.0, plan.num_members / cores) if cores else 1.0


def _ending_s(plan: Plan, world: World) -> float:
    """Time from the last step to the end of members that share the cores of this machine."""
    return 0.0 if host_cores(plan, world) is None else _ENDING_S * _crowd(plan, world)


def _member_startup_s(offer: Offer, world: World, crowd: float = 1.0) -> float:
    """Start-up time of a member, which computes `crowd` times as long as on a core of its own."""
    if offer.startup_s is None:
        raise PlanError(f"the catalog does not say how long {offer.name} takes to start; give it a `startup_s`")
    return offer.startup_s + world.profile_of(offer).startup_cpu_s / min(1.0, offer.vcpus) * crowd

"""What a plan takes and costs: the simulated step, how sure that is, where its time goes, and the bill of the run."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from zooid.core.errors import PlanError
from zooid.core.plans.plan import AllReduceName, Plan, Prediction, ScheduleName, TransportName, num_holders
from zooid.core.plans.profile import Profile
from zooid.core.plans.stage import StageTimes
from zooid.core.resources.offer import Offer
from zooid.core.resources.prices import FREE, Prices
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.runs.step_parts import parts_of_step
from zooid.core.runs.timeline import Timeline
from zooid.predictor.costs.bill import run_cost, total_usd
from zooid.predictor.costs.traffic import step_traffic
from zooid.predictor.costs.usage import Checkpoints, DataSet, RunUsage, num_checkpoints, run_usage
from zooid.predictor.simulation.layout import AllReduceTime, DirectedLinks, Layout, Looks
from zooid.predictor.simulation.step import Noise, simulate_steps
from zooid.predictor.stage_memory import more_gradients_of_tree
from zooid.predictor.stage_times import stage_times, ties_between
from zooid.schedule.pipelines import StepSchedule, StepShape
from zooid.schedule.samples import SamplePlan, even_shares, split_grains

P95 = 1.645
"""Standard deviations above the mean that 95 % of a normal distribution do not exceed."""


class GradientCopies(TypedDict):
    """Arguments of `stage_memory_bytes` that say how many sets of gradients a member has."""

    num_replicas: int
    more_gradients: float


@dataclass(frozen=True)
class Proposal:
    """Who is to do what, before anything is known about it."""

    partition: tuple[tuple[int, int], ...]
    """Layers [first, end) of each stage."""
    offers: tuple[Offer, ...]
    """What the members of each stage stand on;"""
    num_replicas: int
    grain_size: int
    schedule: ScheduleName
    ahead: int
    transport: TransportName
    all_reduce: AllReduceName = "auto"
    shares: tuple[int, ...] = ()
    replica_offers: tuple[Offer, ...] = ()
    """or those of each replica, where replicas differ."""
    reproducible: bool = False
    """True adds up gradients in a fixed tree over grains."""
    insured: bool = False
    """True gives each stage a copy that has no replicas."""

    @classmethod
    def of(cls, plan: Plan) -> "Proposal":
        return cls(
            partition=tuple((stage.first_layer, stage.end_layer) for stage in plan.stages),
            offers=tuple(plan.offer_of(number) for number in range(len(plan.stages))),
            num_replicas=plan.num_replicas,
            grain_size=plan.grain_size,
            schedule=plan.schedule,
            ahead=plan.ahead,
            transport=plan.transport,
            all_reduce=plan.all_reduce,
            shares=plan.shares,
            reproducible=plan.reproducible,
            insured=plan.insured,
            replica_offers=tuple(plan.offer_of(0, replica) for replica in range(plan.num_replicas))
            if plan.replica_offers
            else (),
        )

    @property
    def num_holders(self) -> int:
        """How many members hold each stage, copies included."""
        return num_holders(self.num_replicas, is_insured=self.insured)

    @property
    def num_members(self) -> int:
        return self.num_holders * len(self.partition)

    def gradient_copies(self, shares: Sequence[int]) -> "GradientCopies":
        """What the memory of a member depends on beside its stage, given the grains of each replica."""
        more = more_gradients_of_tree(split_grains(sum(shares), shares)) if self.reproducible else 0.0
        more += self.num_holders > self.num_replicas  # on their way to the copy
        return {"num_replicas": self.num_replicas, "more_gradients": more}

    @property
    def rows(self) -> tuple[tuple[Offer, ...], ...]:
        """Offers by replica and stage; a single row stands for all replicas."""
        if not self.replica_offers:
            return (self.offers,)
        return tuple((offer,) * len(self.partition) for offer in self.replica_offers)

    @property
    def member_offers(self) -> list[Offer]:
        rows = self.rows * self.num_holders if not self.replica_offers else self.rows
        return [offer for row in rows for offer in row]


@dataclass(frozen=True)
class World:
    """What is known about where a plan would run."""

    profiles: Mapping[str, Profile]
    """Of the model, by offer."""
    links: DirectedLinks
    looks: Looks = "store"
    library: AllReduceTime | None = None
    prices: Prices = FREE
    _stages: dict[Hashable, StageTimes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def stage_times(self, offer: Offer, span: tuple[int, int], grain_size: int, **how: bool) -> StageTimes:
        """Of layers on an offer; many plans have stages in common."""
        key = (offer.name, span, grain_size, *how.items())
        if key not in self._stages:
            self._stages[key] = stage_times(self.profile_of(offer), *span, grain_size, **how)
        return self._stages[key]

    def profile_of(self, offer: Offer) -> Profile:
        if offer.name not in self.profiles:
            raise PlanError(
                f"there is no profile for {offer.name}; known are {', '.join(self.profiles)}: measure it with "
                f"`zooid profile --on {offer.name}`"
            )
        return self.profiles[offer.name]


def lay_out(proposal: Proposal, world: World) -> tuple[StepSchedule, Layout]:
    """The lists of a full step, and what they run on."""
    layout, shares = place(proposal, world)
    shape = StepShape(
        proposal.schedule,
        len(proposal.partition),
        proposal.ahead,
        buckets=tuple(len(stage.buckets) for stage in layout.stages[0]),
        ties=tuple(tie.stages for tie in layout.ties),
    )
    return shape.step(split_grains(sum(shares), shares)), layout


def place(proposal: Proposal, world: World) -> tuple[Layout, tuple[int, ...]]:
    """What the lists of a full step run on, and how many grains each replica has of it."""
    rows = proposal.rows
    first = world.profile_of(rows[0][0])
    is_direct = proposal.transport != "store"
    cores = host_cores(proposal, world)
    crowded = cores is not None and proposal.num_members > 1
    stages = tuple(
        tuple(
            world.stage_times(offer, span, proposal.grain_size, crowded=crowded, is_direct=is_direct)
            for offer, span in zip(row, proposal.partition, strict=True)
        )
        for row in rows
    )
    ties = ties_between(first, proposal.partition)
    layout = Layout(
        stages=stages,
        sites=tuple(tuple(offer.site for offer in row) for row in rows),
        links=world.links,
        transport=proposal.transport,
        all_reduce=proposal.all_reduce,
        reproducible=proposal.reproducible,
        has_copies=proposal.num_holders > proposal.num_replicas,
        host_cores=cores,
        ties=ties,
        library=world.library,
        looks=world.looks,
    )
    num_grains = math.ceil(first.batch_size / proposal.grain_size)
    return layout, proposal.shares or even_shares(num_grains, proposal.num_replicas)


def predict(
    proposal: Proposal,
    world: World,
    rule: CheckpointRule = DEFAULT_RULE,
    data: DataSet | None = None,
    *,
    num_noisy_steps: int = 0,
) -> tuple[Prediction, Timeline]:
    """Time of the whole run, a bill with everything in it that the run uses, and the timeline of a step.

    With noisy steps, mean and quantile of a step are theirs; without, they follow from the spread of what was measured.
    `rule` says when checkpoints are written, and `data` what is loaded, if that is charged for.
    """
    schedule, layout = lay_out(proposal, world)
    members = proposal.member_offers
    profile = world.profile_of(members[0])
    spread = profile.spread
    if num_noisy_steps:
        links = max((link.spread for link in world.links.values()), default=0.0)
        steps = simulate_steps(schedule, layout, num_noisy_steps, Noise(compute=spread.of_steps, links=links / 2))
        step_s, step_p95_s = steps.mean_s, max(steps.mean_s, steps.quantile_s(0.95))
    else:
        steps = simulate_steps(schedule, layout, 1, Noise())
        step_s = steps.mean_s
        step_p95_s = step_s * (1 + P95 * spread.of_steps)
    samples = SamplePlan(
        num_samples=profile.num_samples,
        batch_size=profile.batch_size,
        grain_size=proposal.grain_size,
        epochs=profile.epochs,
        seed=0,
    )
    full_steps = profile.num_samples * profile.epochs / profile.batch_size
    starting_s = startup_s(proposal, world)
    run_s = starting_s + step_s * full_steps
    # steps differ from one another, which evens out, and runs from what was measured, which does not
    unsure_s = P95 * math.hypot(spread.of_runs * step_s * full_steps, (step_p95_s - step_s) / P95 * full_steps**0.5)
    checkpoints = _checkpoints(proposal, profile, num_checkpoints(rule, samples.num_steps, run_s - starting_s), rule)
    usage = _usage(schedule, layout, full_steps, step_s, run_s, checkpoints, data)
    terms = run_cost(members, run_s, starting_s, usage, world.prices)
    late_terms = run_cost(members, run_s + unsure_s, starting_s, usage, world.prices)
    return (
        Prediction(
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
            estimated_from=next(filter(None, (world.profile_of(member).estimated_from for member in members)), ""),
        ),
        steps.timeline,
    )


def _checkpoints(proposal: Proposal, profile: Profile, num_written: int, rule: CheckpointRule) -> Checkpoints:
    weight_bytes = [profile.parameter_bytes(*span) for span in proposal.partition]
    buffer_bytes = [sum(layer.buffer_bytes for layer in profile.layers[slice(*span)]) for span in proposal.partition]
    saved = 1 + profile.optimizer_bytes_per_parameter_byte
    return Checkpoints(
        num_written=num_written,
        stage_bytes=tuple(saved * own + more for own, more in zip(weight_bytes, buffer_bytes, strict=True)),
        weight_bytes=tuple(own + more for own, more in zip(weight_bytes, buffer_bytes, strict=True)),
        keep=rule.keep,
    )


def _usage(
    schedule: StepSchedule,
    layout: Layout,
    num_steps: float,
    step_s: float,
    run_s: float,
    checkpoints: Checkpoints,
    data: DataSet | None,
) -> RunUsage:
    """Of the whole run: its steps, its checkpoints, and what the coordinator looks for."""
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
    return run_usage(
        traffic,
        {seat: sites[seat[0]][seat[1]] for seat in traffic.seats},
        num_steps=num_steps,
        step_s=step_s,
        running_s=run_s,
        checkpoints=checkpoints,
        data=data,
        num_copies=schedule.num_stages if layout.has_copies else 0,
    )


def host_cores(proposal: Proposal, world: World) -> float | None:
    """What members share that run on one machine, in cores of a member's size: two cores serve eight members that are
    held to a quarter of one. None where each has its own."""
    profile = world.profile_of(proposal.rows[0][0])
    here = [offer.vcpus for offer in proposal.member_offers if offer.platform == "local"]
    return max(1.0, profile.device.num_cores / max(here)) if here else None


def startup_s(proposal: Proposal, world: World) -> float:
    """Of the slowest member; on one machine, all of them together."""
    cores = host_cores(proposal, world)
    slowest_s = 0.0
    for offer in dict.fromkeys(proposal.member_offers):
        if offer.startup_s is None:
            raise PlanError(f"the catalog does not say how long {offer.name} takes to start; give it a `startup_s`")
        own_s = world.profile_of(offer).startup_cpu_s / min(1.0, offer.vcpus)
        crowd = max(1.0, proposal.num_members / cores) if cores else 1.0
        slowest_s = max(slowest_s, offer.startup_s + own_s * crowd)
    return slowest_s

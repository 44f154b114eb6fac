"""Candidates before they are simulated: what they need, and what no simulation of them can be below."""

from dataclasses import dataclass
from functools import cache

from zooid.core.plans.plan import Plan, ScheduleName, StagePlan, TransportName
from zooid.planner.market import Market
from zooid.predictor import Proposal, lower_bound_s, place, predict, run_cost, stage_memory_bytes, startup_s, total_usd
from zooid.schedule.pipelines import StepShape, most_kept

_ACTIONS_OF_GRAIN = 4
_ACTIONS_OF_STEP = 4
_ACTIONS_OF_BUCKET = 12
"""Of an all-reduce, for one member: parts and sums, there and back."""


@dataclass(frozen=True)
class Draft:
    """A proposal, and what is certain about it."""

    proposal: Proposal
    memory_bytes: tuple[int, ...]
    """Of a member of each stage."""
    missing_bytes: int
    """What the tightest member lacks; not above 0 where all fit."""
    least_s: float
    """Of the run."""
    least_usd: float
    num_actions: int
    """About how many a simulation of it has to go through."""

    @property
    def least(self) -> tuple[float, float]:
        return self.least_s, self.least_usd

    @property
    def layout(self) -> str:
        return f"{self.proposal.num_replicas}x{len(self.proposal.partition)}"

    @property
    def num_members(self) -> int:
        return self.proposal.num_members

    @property
    def grain_size(self) -> int:
        return self.proposal.grain_size

    @property
    def order(self) -> tuple[ScheduleName, int]:
        """The schedule, and how far ahead its stages are."""
        return self.proposal.schedule, self.proposal.ahead

    @property
    def transport(self) -> TransportName:
        return self.proposal.transport

    @property
    def offers(self) -> tuple[str, ...]:
        return tuple(offer.name for offer in self.proposal.replica_offers or self.proposal.offers)


def draft(proposal: Proposal, market: Market) -> Draft:
    """Bounds of time and money, and what the members need."""
    world = market.world
    layout, shares = place(proposal, world)
    kept = grains_kept(proposal.schedule, len(proposal.partition), proposal.ahead, max(shares))
    rows = proposal.rows
    copies = proposal.gradient_copies(shares)
    memory_bytes = tuple(
        stage_memory_bytes(market.profile, *span, proposal.grain_size, kept[stage], **copies)
        for stage, span in enumerate(proposal.partition)
    )
    if any(offer.site == "local" for row in rows for offer in row):  # members of one machine share what it has
        missing = proposal.num_holders * sum(memory_bytes) - rows[0][0].memory_bytes
    else:
        missing = max(
            needed - offer.memory_bytes for row in rows for needed, offer in zip(memory_bytes, row, strict=True)
        )
    profile = market.profile
    starting_s = startup_s(proposal, world)
    num_steps = profile.num_samples * profile.epochs / profile.batch_size
    least_s = starting_s + num_steps * lower_bound_s(layout, shares, kept)
    least_usd = total_usd(run_cost(proposal.member_offers, least_s, starting_s))
    num_actions = len(proposal.partition) * sum(_ACTIONS_OF_GRAIN * own + _ACTIONS_OF_STEP for own in shares)
    if len(shares) > 1:
        num_actions += _ACTIONS_OF_BUCKET * len(shares) * sum(len(stage.buckets) for stage in layout.stages[0])
    return Draft(proposal, memory_bytes, missing, least_s, least_usd, num_actions)


def evaluate(made: Draft, market: Market) -> Plan:
    """A complete plan, with the simulated step and everything that follows from it."""
    proposal, profile = made.proposal, market.profile
    prediction, _ = predict(proposal, market.world)
    return Plan(
        job=profile.job,
        model_fingerprint=profile.model_fingerprint,
        why_whole=profile.why_whole,
        autocast=profile.autocast,
        batch_size=profile.batch_size,
        grain_size=proposal.grain_size,
        num_replicas=proposal.num_replicas,
        stages=tuple(
            StagePlan(first_layer=first, end_layer=end, offer=offer.name, memory_bytes=needed)
            for (first, end), offer, needed in zip(proposal.partition, proposal.rows[0], made.memory_bytes, strict=True)
        ),
        schedule=proposal.schedule,
        ahead=proposal.ahead,
        shares=proposal.shares,
        transport=proposal.transport,
        all_reduce=proposal.all_reduce,
        reproducible=proposal.reproducible,
        insured=proposal.insured,
        replica_offers=tuple(offer.name for offer in proposal.replica_offers),
        offers=tuple(dict.fromkeys(proposal.member_offers)),
        store_at=market.world.prices.store_at,
        predicted=prediction,
    )


@cache
def grains_kept(schedule: ScheduleName, num_stages: int, ahead: int, num_grains: int) -> tuple[int, ...]:
    """Of how many grains each stage keeps what it computed, at most."""
    lists = StepShape(schedule, num_stages, ahead).step([range(num_grains)]).lists[0]
    return tuple(most_kept(own) for own in lists)

"""Plans before they are simulated, with the memory they need and lower bounds of their time and cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from msgspec import structs

from zooid.core.plans.plan import Plan, ScheduleName
from zooid.planner.market import Market
from zooid.planner.member_sizes import fitted, fixed, missing_bytes
from zooid.predictor import (
    gradient_copies,
    layout_of,
    lower_bound_s,
    predict,
    run_cost,
    stage_memory_bytes,
    startup_s,
    total_usd,
)
from zooid.schedule.pipelines import StepShape, most_kept
from zooid.schedule.samples import even_shares

_ACTIONS_PER_GRAIN = 4
_ACTIONS_PER_STEP = 4
_ACTIONS_PER_BUCKET = 12
"""Actions of one member in an all-reduce: it sends and receives parts, and then sums."""


@dataclass(frozen=True)
class Draft:
    """A plan without a prediction, and everything that is certain about it."""

    plan: Plan
    missing_bytes: int
    """Memory that the tightest member lacks. At most 0 if all members fit."""
    lower_bound: tuple[float, float]
    """Lower bounds of the run's seconds and dollars."""
    num_actions: int
    """Approximate number of actions that a simulation goes through."""
    market: Market = field(compare=False, repr=False)


def draft(plan: Plan, market: Market, *, keeps_speed: bool = False) -> Draft:
    """Compute the memory that a plan needs, the sizes of its members, and the lower bounds of its time and cost.

    Offers whose sizes can be chosen become the smallest that hold their stage. With `keeps_speed`, they keep a size
    whose memory determines its speed.
    """
    world, profile = market.world, market.profile
    shares = plan.shares or even_shares(math.ceil(profile.batch_size / plan.grain_size), plan.num_replicas)
    kept = grains_kept(plan.schedule, len(plan.stages), plan.ahead, max(shares))
    copies = gradient_copies(plan, shares)
    needs = [
        stage_memory_bytes(profile, *span, plan.grain_size, grains, **copies)
        for span, grains in zip(plan.partition, kept, strict=True)
    ]
    rows = plan.offer_rows
    if any(offer.site == "local" for row in rows for offer in row):  # members of one machine share its memory
        lacking_bytes = plan.num_holders * sum(needs) - rows[0][0].memory_bytes
    else:
        pairs = [(need, offer) for row in rows for need, offer in zip(needs, row, strict=True)]
        lacking_bytes = max(missing_bytes(need, offer, keeps_speed=keeps_speed) for need, offer in pairs)
        plan = _sized(plan, needs, keeps_speed=keeps_speed)
    layout, _ = layout_of(plan, world)
    starting_s = startup_s(plan, world)
    num_steps = profile.num_samples * profile.epochs / profile.batch_size
    run_s = starting_s + num_steps * lower_bound_s(layout, shares, kept)
    num_actions = len(plan.stages) * sum(_ACTIONS_PER_GRAIN * share + _ACTIONS_PER_STEP for share in shares)
    if len(shares) > 1:
        num_actions += _ACTIONS_PER_BUCKET * len(shares) * sum(len(stage.buckets) for stage in layout.stages[0])
    stages = tuple(
        structs.replace(stage, memory_bytes=needed) for stage, needed in zip(plan.stages, needs, strict=True)
    )
    return Draft(
        plan=structs.replace(plan, stages=stages, predicted=None),
        missing_bytes=lacking_bytes,
        lower_bound=(run_s, total_usd(run_cost(plan.member_offers, run_s, starting_s))),
        num_actions=num_actions,
        market=market,
    )


def _sized(plan: Plan, needs: Sequence[int], *, keeps_speed: bool) -> Plan:
    """The plan with the sizes of its members, which stay as they are from here on."""
    if not any(offer.sized_by for offer in plan.offers):
        return plan
    rows = [
        [fixed(fitted(offer, need, keeps_speed=keeps_speed)) for need, offer in zip(needs, row, strict=True)]
        for row in plan.offer_rows
    ]
    return structs.replace(
        plan,
        stages=tuple(
            structs.replace(stage, offer=offer.name) for stage, offer in zip(plan.stages, rows[0], strict=True)
        ),
        replica_offers=tuple(row[0].name for row in rows) if plan.replica_offers else (),
        offers=tuple({offer.name: offer for row in rows for offer in row}.values()),
    )


def evaluate(draft: Draft) -> Plan:
    """Simulate a draft, and return its plan with the prediction."""
    prediction, _ = predict(draft.plan, draft.market.world)
    return structs.replace(draft.plan, predicted=prediction)


@cache
def grains_kept(schedule: ScheduleName, num_stages: int, ahead: int, num_grains: int) -> tuple[int, ...]:
    """The largest number of grains whose activations each stage keeps at a time."""
    lists = StepShape(schedule, num_stages, ahead).step([range(num_grains)]).lists[0]
    return tuple(most_kept(actions) for actions in lists)

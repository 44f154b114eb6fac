"""What may happen to the members of a plan: rates and lifetimes of their offers, and what changes of members take."""

from collections.abc import Callable, Sequence

from zooid.core.plans.plan import Plan
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.offer import Offer
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.predictor.costs.usage import Checkpoints
from zooid.predictor.losses.availability import SeatRisk, rollbacks_per_s
from zooid.predictor.losses.run_losses import JOINING_STEPS, RAREST_PER_S, CheckpointTiming, RunRisk
from zooid.predictor.simulation.layout import DirectedLinks
from zooid.schedule.checkpoint_interval import best_interval_s, interval_of

LOSS_PAUSE_S = {"tcp": 0.3, "store": 3.7}
"""Median time from the loss of a member until the others continue, as `python -m benchmarks.recovery` measured it. Over
other transports, all members start again, which takes longer anyway."""
CHANGE_PAUSE_STEPS = 0.25
"""Time for which a planned change of the roster stops a run at most, in steps: its members are ready before."""
COPY_BYTES_PER_S = 2e9
"""Rate at which a member copies its state for a checkpoint. One core copied 0.7 GB/s in small tensors, and 6 GB/s in
large ones."""


def unknown_offers(offers: Sequence[Offer]) -> tuple[str, ...]:
    """Names of the offers whose members may be lost at an unknown rate."""
    return tuple(dict.fromkeys(offer.name for offer in offers if offer.losses_per_s is None))


def is_at_risk(offers: Sequence[Offer], run_s: float) -> bool:
    """Whether members on these offers may be lost at a known rate, or do not live for the whole run."""
    return any(offer.losses_per_s or (offer.lifetime_s is not None and offer.lifetime_s < run_s) for offer in offers)


def seat_risks(plan: Plan, startup_s: Callable[[Offer], float]) -> tuple[tuple[SeatRisk, ...], ...]:
    """The seats of each stage, with copies last. `startup_s` maps an offer to the start-up time of a member."""
    num_stages = len(plan.stages)
    num_grains = sum(plan.shares)
    offers = plan.member_offers

    def work(replica: int) -> float:
        if replica >= plan.num_replicas:
            return 0.0
        return plan.shares[replica] / num_grains if num_grains else 1 / plan.num_replicas

    return tuple(
        tuple(
            SeatRisk(
                losses_per_s=offer.losses_per_s or 0.0,
                startup_s=startup_s(offer),
                lifetime_s=offer.lifetime_s,
                work=work(replica),
            )
            for replica, offer in enumerate(offers[stage::num_stages])
        )
        for stage in range(num_stages)
    )


def between_rollbacks_s(plan: Plan) -> float | None:
    """Expected time between two rollbacks of a plan; None if it is unknown, or if no rollback is expected.

    It follows from the rates of the offers, from their start-up times, and from how many members hold each stage.
    """
    offers = plan.member_offers
    if unknown_offers(offers) or not any(offer.losses_per_s for offer in offers):
        return None
    startup_s = 0.0 if plan.predicted is None else plan.predicted.startup_s
    step_s = 0.0 if plan.predicted is None else plan.predicted.step_s
    seats = seat_risks(plan, lambda offer: max(startup_s, offer.startup_s or 0.0))
    rate = rollbacks_per_s(seats, _missing_s(plan, step_s), survives_losses=plan.survives_losses)
    return 1 / rate if rate > RAREST_PER_S else None


def _missing_s(plan: Plan, step_s: float) -> float:
    """Time for which a seat is empty after a loss, beside the start-up of the replacement."""
    return JOINING_STEPS * step_s + LOSS_PAUSE_S.get(plan.transport, 0.0)


def run_risk(
    plan: Plan,
    seats: tuple[tuple[SeatRisk, ...], ...],
    *,
    startup_s: float,
    num_steps: float,
    step_s: float,
    slowdown: float,
    timing: CheckpointTiming,
) -> RunRisk:
    """A plan's run, and what may happen to it. Steps with one pipeline fewer take `slowdown` times as long."""
    return RunRisk(
        stages=seats,
        num_replicas=plan.num_replicas,
        survives_losses=plan.survives_losses,
        startup_s=startup_s,
        num_steps=num_steps,
        step_s=step_s,
        slowdown=max(1.0, slowdown),
        loss_pause_s=LOSS_PAUSE_S.get(plan.transport, 0.0),
        change_pause_s=CHANGE_PAUSE_STEPS * step_s,
        checkpoints=timing,
    )


def checkpoint_timing(
    plan: Plan,
    seats: tuple[tuple[SeatRisk, ...], ...],
    checkpoints: Checkpoints,
    links: DirectedLinks,
    rule: CheckpointRule,
    step_s: float,
) -> CheckpointTiming:
    """What a checkpoint of this plan takes, and how often it is written.

    Replicas of a stage divide the writing. Where the link to the store is unknown, writing and reading take no time.
    """
    written_bytes = max(num_bytes / plan.num_replicas for num_bytes in checkpoints.stage_bytes)
    sites = {offer.site for offer in plan.member_offers}
    up = [links[site, STORE_SITE] for site in sites if (site, STORE_SITE) in links]
    down = [links[STORE_SITE, site] for site in sites if (STORE_SITE, site) in links]
    pause_s = written_bytes / COPY_BYTES_PER_S
    if rule.every_steps is not None:
        interval_s: float | None = max(rule.every_steps - 0.5, 0.5) * step_s  # the model adds half a step
    else:
        interval_s = interval_of(rule)
        rate = rollbacks_per_s(seats, _missing_s(plan, step_s), survives_losses=plan.survives_losses)
        if rule.is_automatic and rule.between_rollbacks_s is None and rate > RAREST_PER_S:
            interval_s = best_interval_s(pause_s, 1 / rate)
    return CheckpointTiming(
        interval_s=interval_s,
        pause_s=pause_s,
        write_s=max((link.rtt_s + written_bytes / link.bytes_per_s for link in up), default=0.0),
        read_s=max((link.rtt_s + max(checkpoints.stage_bytes) / link.bytes_per_s for link in down), default=0.0),
    )

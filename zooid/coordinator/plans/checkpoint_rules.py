"""The checkpoint rule of a run: given by the user, or chosen by the plan's expected rollbacks."""

from msgspec import structs

from zooid.core.plans.plan import Plan
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.units import SECONDS_PER_YEAR, format_duration
from zooid.schedule.checkpoint_interval import interval_of


def rule_for(rule: CheckpointRule, plan: Plan) -> CheckpointRule:
    """Return the rule with what an automatic one needs from the plan: expected rollbacks, and a checkpoint's pause."""
    if not rule.is_automatic or not any(offer.losses_per_s for offer in plan.offers):
        return rule
    from zooid.predictor.losses.plan_losses import between_rollbacks_s  # imports numpy, which other runs do not need

    losses = None if plan.predicted is None else plan.predicted.losses
    return structs.replace(
        rule,
        between_rollbacks_s=between_rollbacks_s(plan),
        pause_s=None if losses is None else losses.checkpoint_pause_s,
    )


def rule_in_words(rule: CheckpointRule, plan: Plan) -> str:
    """Say how often checkpoints are written, and why, for example `every 10m, as given`."""
    if rule.every_steps is not None:
        steps = "step" if rule.every_steps == 1 else f"{rule.every_steps} steps"
        return f"every {steps}, as given"
    if rule.every_s is None:
        return "only the first and the last, as given"
    every = f"every {format_duration(interval_of(rule) or rule.every_s)}"
    if not rule.is_automatic:
        return f"{every}, as given"
    if rule.between_rollbacks_s is None:
        rates = [offer.interruptions_per_hour for offer in plan.offers]
        is_unknown = all(rate is None for rate in rates) or any(offer.losses_per_s is None for offer in plan.offers)
        why = "how often members are lost is unknown" if is_unknown else "no rollback is expected"
        return f"{every}, because {why}"
    is_rare = rule.between_rollbacks_s > SECONDS_PER_YEAR
    often = "less than once a year" if is_rare else f"every {format_duration(rule.between_rollbacks_s)}"
    why = f"a rollback is expected {often}"
    if rule.pause_s is None:
        return f"{every} until a checkpoint's pause is measured, because {why}"
    return f"{every}, because {why} and a checkpoint stops members for {format_duration(rule.pause_s)}"

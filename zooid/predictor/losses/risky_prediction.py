"""The prediction of a run with its losses and hand-overs, from the prediction of the run without them."""

import math
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from zooid.core.plans.loss_forecast import LOSS_KINDS, UNLOST_KINDS, LossForecast
from zooid.core.plans.plan import CostTerm, Plan, Prediction
from zooid.core.resources.prices import Prices
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.predictor.costs.bill import run_cost, total_usd
from zooid.predictor.costs.usage import Checkpoints, RunUsage, num_checkpoints
from zooid.predictor.losses.loss_bill import loss_terms, loss_usage, paid_seats
from zooid.predictor.losses.run_losses import RiskyRun, RunRisk, risky_run

UsageOf = Callable[[float, float, Checkpoints], RunUsage]
"""Maps a number of steps, a run time and its checkpoints to what such a run uses."""


def predict_risky(
    unlost: Prediction,
    plan: Plan,
    risk: RunRisk,
    rule: CheckpointRule,
    checkpoints: Checkpoints,
    prices: Prices,
    usage_of: UsageOf,
) -> Prediction:
    """Add losses and hand-overs to a prediction. HopelessPlan says why a run would hardly advance."""
    run = risky_run(risk)
    timing = risk.checkpoints
    if rule.every_steps is None and timing.interval_s is not None:
        rule = structs.replace(rule, every_s=timing.interval_s)
    offers = plan.member_offers
    seats = paid_seats(offers, risk, run)
    written = replace(checkpoints, num_written=num_checkpoints(rule, unlost.num_steps, run.run_s - unlost.startup_s))
    usage = usage_of(risk.num_steps + run.redone_s / risk.step_s, run.run_s, written) + loss_usage(
        seats, len(risk.stages[0]), checkpoints, run, is_direct=plan.is_direct
    )

    def cost(unlost_s: float, lost_s: float, more: float) -> tuple[CostTerm, ...]:
        terms = run_cost(offers, unlost_s, unlost.startup_s, usage, prices)
        return terms + loss_terms(seats, unlost_s, run.seconds("hand-overs"), lost_s, risk.step_s, more)

    unlost_s, lost_s = run.seconds(*UNLOST_KINDS), run.seconds(*LOSS_KINDS)
    unsure_s = (unlost.run_p95_s or unlost.run_s) - unlost.run_s
    # what was measured wrongly and what is lost are independent of one another
    late_s = math.hypot(unsure_s, max(0.0, run.p95_s - run.run_s))
    more = poisson_p95(run.num_losses) / run.num_losses if run.num_losses else 1.0
    terms = cost(unlost_s, lost_s, 1.0)
    late_terms = cost(unlost_s, lost_s + late_s, max(1.0, more))
    return structs.replace(
        unlost,
        run_s=run.run_s,
        run_p95_s=run.run_s + late_s,
        run_usd=total_usd(terms),
        run_p95_usd=total_usd(late_terms),
        cost_terms=terms,
        losses=_forecast(unlost, risk, run),
    )


def _forecast(unlost: Prediction, risk: RunRisk, run: RiskyRun) -> LossForecast:
    return LossForecast(
        num_losses=run.num_losses,
        num_losses_p95=poisson_p95(run.num_losses),
        num_rollbacks=run.num_rollbacks,
        num_handovers=run.handovers.total,
        time_terms=run.terms,
        checkpoint_interval_s=risk.checkpoints.interval_s,
        checkpoint_pause_s=risk.checkpoints.pause_s,
        between_rollbacks_s=run.between_rollbacks_s,
        unknown=() if unlost.losses is None else unlost.losses.unknown,
    )


def poisson_p95(mean: float) -> int:
    """The smallest number that a Poisson distribution of this mean exceeds in at most 5 of 100 cases.

    >>> poisson_p95(0.05), poisson_p95(1.0), poisson_p95(100.0)
    (0, 3, 117)
    """
    if mean > 500:  # the normal distribution is as exact, and the sum below would underflow
        return math.ceil(mean + 1.645 * math.sqrt(mean))
    number, probability = 0, math.exp(-mean)
    total = probability
    while total < 0.95:
        number += 1
        probability *= mean / number
        total += probability
    return number

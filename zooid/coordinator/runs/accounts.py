"""Figures of a run: timeouts, predictions at its start, and step times."""

import math
import statistics
import time

from zooid.coordinator.plans.checkpoint_rules import rule_for, rule_in_words
from zooid.coordinator.plans.offer_names import prices_in_words
from zooid.core.plans.plan import Plan, Prediction
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import RunStarted, StepCommitted
from zooid.core.runs.roster import Roster
from zooid.schedule.samples import samples_of
from zooid.store import ObjectStore
from zooid.store.checkpoint_index import last_step, read_manifest

_MIN_TIMEOUT_S = 120.0
_TIMEOUT_FACTOR = 10.0
"""A member stops waiting for a peer after this many predicted steps or start-ups. The coordinator notices a lost member
long before; the timeout is for members whose coordinator is lost."""
_UNKNOWN_TIMEOUT_S = 1800.0
"""Timeout if the time of a step is unknown."""


def timeout_s(predicted: Prediction | None) -> float:
    """Return how long a member waits for a peer, and a coordinator for a member whose process it cannot see."""
    if predicted is None:
        return _UNKNOWN_TIMEOUT_S
    return max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * max(predicted.step_s, predicted.startup_s))


def run_started(plan: Plan, roster: Roster, store: ObjectStore, checkpoints: CheckpointRule) -> RunStarted:
    """Return the event of a run's start, with predictions for the remaining steps."""
    whole, num_steps, batch_size = plan.predicted, plan.num_steps, plan.batch_size
    run_s, usd = (None, None) if whole is None else (whole.run_s, whole.run_usd)
    part_left = 1.0
    if roster.resume_step:  # batch sizes may have changed since the plan was made
        samples = samples_of(read_manifest(store, last_step(store)))
        num_steps, batch_size = samples.num_steps, samples.batch_size_of(roster.resume_step)
        part_left -= samples.num_samples_before(roster.resume_step) / (samples.epochs * samples.num_samples)
    if whole is not None and roster.resume_step:
        run_s = whole.startup_s + (whole.run_s - whole.startup_s) * part_left
        from zooid.predictor import bill_usd

        usd = math.fsum(bill_usd(offer, run_s) for offer in plan.member_offers)
    return RunStarted(
        at_s=time.time(),
        run=roster.run,
        store=store.url,
        layout=plan.layout,
        num_steps=num_steps,
        first_step=roster.resume_step,
        batch_size=batch_size,
        predicted_step_s=None if whole is None else whole.step_s,
        predicted_run_s=run_s,
        predicted_usd=usd,
        members=tuple(seat.name for seat in roster.seats),
        prices=prices_in_words(plan.offers[0]),
        why_whole=plan.why_whole,
        checkpoints=rule_in_words(rule_for(checkpoints, plan), plan),
    )


def median_step_s(steps: list[StepCommitted], plan: Plan, first_step: int) -> float:
    """Return the median time of the full steps without the first, which warms up; 0 if there is no step."""
    full = [step.step_s for step in steps if step.step > first_step and step.num_samples == plan.batch_size]
    return statistics.median(full or [step.step_s for step in steps] or [0.0])

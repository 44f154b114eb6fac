"""Measured times and cost of a run, for comparison with the prediction of its plan."""

import math
import statistics
from contextlib import suppress

import numpy as np

from zooid.coordinator.runs.recorded_steps import timeline
from zooid.core.errors import InputError, ObjectNotFound
from zooid.core.plans.forecast import MeasuredRun
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.events import RunFinished, RunStarted, StepCommitted
from zooid.store import EventReader, open_store
from zooid.store.claims import no_run
from zooid.store.rosters import last_number
from zooid.store.stored_records import read_plan


def measured_run(run: str, plan: Plan) -> MeasuredRun:
    """Return what a run of this plan has measured; of a resumed run, only since its last resume."""
    store = open_store(run)
    try:
        followed = read_plan(store, last_number(store))
    except ObjectNotFound as error:
        raise no_run(store) from error
    _check_same_plan(plan, followed, store.url)
    events = EventReader(store, last_number(store)).read_new()
    starts = [index for index, event in enumerate(events) if isinstance(event, RunStarted)]
    latest = events[starts[-1] :] if starts else []
    first_step = next((event.first_step for event in latest if isinstance(event, RunStarted)), 0)
    steps_s = [
        event.step_s
        for event in latest
        if isinstance(event, StepCommitted) and event.step > first_step and event.num_samples == plan.batch_size
    ]
    if not steps_s:
        raise InputError(
            f"{store.url} has no full step besides its first, which warms up, so there is nothing to compare; train "
            "for longer, or check the URL"
        )
    recorded_timeline = None
    with suppress(InputError):  # members record a step only when they end successfully
        recorded_timeline = timeline(run).timeline
    finished = [event for event in latest if isinstance(event, RunFinished)]
    is_whole = bool(finished) and first_step == 0
    return MeasuredRun(
        run=store.url,
        num_steps=len(steps_s),
        step_s=statistics.fmean(steps_s),
        step_p50_s=statistics.median(steps_s),
        step_p95_s=float(np.quantile(steps_s, 0.95)),
        timeline=recorded_timeline,
        run_s=finished[-1].wall_s if is_whole else None,
        members_usd=_members_usd(finished[-1]) if is_whole else None,
    )


def _members_usd(finished: RunFinished) -> float:
    """Return what the training members have cost, which is all that runs of earlier versions have recorded."""
    if not finished.terms:
        return finished.usd
    return math.fsum(term.usd for term in finished.terms if term.kind in ("compute", "start-up", "starts"))


def _check_same_plan(plan: Plan, followed: Plan, url: str) -> None:
    """Reject a run that followed another plan, because its times say nothing about this one."""

    def cuts(plan: Plan) -> str:
        return ", ".join(f"{stage.first_layer}:{stage.end_layer}" for stage in plan.stages)

    for what, expected, actual in (
        ("model (its fingerprint)", plan.model_fingerprint, followed.model_fingerprint),
        ("batch size", plan.batch_size, followed.batch_size),
        ("grain size", plan.grain_size, followed.grain_size),
        ("layout", plan.layout, followed.layout),
        ("partition", cuts(plan), cuts(followed)),
        ("schedule", plan.schedule, followed.schedule),
        ("transport", plan.transport, followed.transport),
    ):
        if expected != actual:
            raise InputError(
                f"the run in {url} followed another plan: its {what} is {actual}, not {expected}; give the plan of "
                f"that run, {url}/{keys.PLAN}, or another run"
            )

"""What a run took, from its events and its last recorded step: to be put beside what was predicted for its plan."""

import math
import statistics

from zooid.coordinator.runs.recorded_steps import timeline
from zooid.core.errors import InputError, ObjectNotFound
from zooid.core.plans.forecast import MeasuredRun
from zooid.core.plans.plan import Plan
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.events import RunFinished, RunStarted, StepCommitted
from zooid.core.runs.timeline import Timeline
from zooid.store import EventReader, ObjectStore, open_store
from zooid.store.rosters import last_number

_P95 = 0.95


def measured_run(run: str, plan: Plan) -> MeasuredRun:
    """Of a run that followed this plan; one that was resumed is taken from where it went on."""
    store = open_store(run)
    _refuse_another(plan, _last_plan(store), store.url)
    events = EventReader(store, last_number(store)).read_new()
    starts = [number for number, event in enumerate(events) if isinstance(event, RunStarted)]
    latest = events[starts[-1] :] if starts else []
    first_step = next((event.first_step for event in latest if isinstance(event, RunStarted)), 0)
    steps_s = sorted(
        event.step_s
        for event in latest
        if isinstance(event, StepCommitted) and event.step > first_step and event.num_samples == plan.batch_size
    )
    if not steps_s:
        raise InputError(
            f"{store.url} has no full step beside its first, which warms up, so that there is nothing to compare with; "
            "train for longer, or check the URL"
        )
    finished = [event for event in latest if isinstance(event, RunFinished)]
    is_whole = bool(finished) and first_step == 0
    return MeasuredRun(
        run=store.url,
        num_steps=len(steps_s),
        step_s=statistics.fmean(steps_s),
        step_p50_s=statistics.median(steps_s),
        step_p95_s=_quantile(steps_s, _P95),
        timeline=_timeline(run),
        run_s=finished[-1].wall_s if is_whole else None,
        members_usd=finished[-1].usd if is_whole else None,
    )


def _last_plan(store: ObjectStore) -> Plan:
    """That of the latest roster."""
    key = keys.plan(last_number(store))
    try:
        data = bytes(store.get(key))
    except ObjectNotFound as error:
        raise InputError(
            f"{store.url} holds no run; give the folder that `zooid train` was given with --store, or named"
        ) from error
    return decode_record(data, Plan, f"{store.url}/{key}")


def _refuse_another(plan: Plan, followed: Plan, url: str) -> None:
    """Times of another plan say nothing about this one."""

    def cuts(one: Plan) -> str:
        return ", ".join(f"{stage.first_layer}:{stage.end_layer}" for stage in one.stages)

    for what, own, other in (
        ("model (its fingerprint)", plan.model_fingerprint, followed.model_fingerprint),
        ("batch size", plan.batch_size, followed.batch_size),
        ("grain size", plan.grain_size, followed.grain_size),
        ("layout", plan.layout, followed.layout),
        ("partition", cuts(plan), cuts(followed)),
        ("schedule", plan.schedule, followed.schedule),
        ("transport", plan.transport, followed.transport),
    ):
        if own != other:
            raise InputError(
                f"the run in {url} followed another plan: its {what} is {other}, not {own}; give the plan of that run, "
                f"{url}/{keys.PLAN}, or another run"
            )


def _timeline(run: str) -> Timeline | None:
    try:
        return timeline(run).timeline
    except InputError:  # members record a step when they have ended well
        return None


def _quantile(ordered: list[float], share: float) -> float:
    """Between the two nearest."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])

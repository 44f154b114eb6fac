"""The coordinator of a run: it profiles and plans a job, starts the members, and supervises them to the end.

It never imports torch; members do everything that needs it. Each function loads its module on first use, so that
members can start before the planner is imported, or without it.
"""

from typing import TYPE_CHECKING

from zooid.core.lazy import lazy_names

if TYPE_CHECKING:
    from zooid.coordinator.measurements.all_reduce_sweep import probe_all_reduce
    from zooid.coordinator.measurements.job_profiles import profile, profiles
    from zooid.coordinator.measurements.link_probes import probe
    from zooid.coordinator.measurements.rehearsed_run import Rehearsal, rehearse
    from zooid.coordinator.plans.plan_forecast import predict
    from zooid.coordinator.plans.plan_search import plan, search
    from zooid.coordinator.runs.cleanup import clean
    from zooid.coordinator.runs.layout_requests import scale
    from zooid.coordinator.runs.new_run import train
    from zooid.coordinator.runs.observer import observe, watch
    from zooid.coordinator.runs.recorded_steps import RecordedStep, timeline
    from zooid.coordinator.runs.resumed_run import resumable_step, resume
    from zooid.coordinator.runs.run_progress import RunResult
    from zooid.coordinator.runs.stopped_run import StoppedRun, stop

__all__ = [
    "RecordedStep",
    "Rehearsal",
    "RunResult",
    "StoppedRun",
    "clean",
    "observe",
    "plan",
    "predict",
    "probe",
    "probe_all_reduce",
    "profile",
    "profiles",
    "rehearse",
    "resumable_step",
    "resume",
    "scale",
    "search",
    "stop",
    "timeline",
    "train",
    "watch",
]

_LAZY = {
    "RecordedStep": "zooid.coordinator.runs.recorded_steps",
    "Rehearsal": "zooid.coordinator.measurements.rehearsed_run",
    "RunResult": "zooid.coordinator.runs.run_progress",
    "StoppedRun": "zooid.coordinator.runs.stopped_run",
    "clean": "zooid.coordinator.runs.cleanup",
    "observe": "zooid.coordinator.runs.observer",
    "plan": "zooid.coordinator.plans.plan_search",
    "predict": "zooid.coordinator.plans.plan_forecast",
    "probe": "zooid.coordinator.measurements.link_probes",
    "probe_all_reduce": "zooid.coordinator.measurements.all_reduce_sweep",
    "profile": "zooid.coordinator.measurements.job_profiles",
    "profiles": "zooid.coordinator.measurements.job_profiles",
    "rehearse": "zooid.coordinator.measurements.rehearsed_run",
    "resumable_step": "zooid.coordinator.runs.resumed_run",
    "resume": "zooid.coordinator.runs.resumed_run",
    "scale": "zooid.coordinator.runs.layout_requests",
    "search": "zooid.coordinator.plans.plan_search",
    "stop": "zooid.coordinator.runs.stopped_run",
    "timeline": "zooid.coordinator.runs.recorded_steps",
    "train": "zooid.coordinator.runs.new_run",
    "watch": "zooid.coordinator.runs.observer",
}

__getattr__ = lazy_names(__name__, _LAZY)

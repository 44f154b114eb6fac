"""The run: profiles, plans, starts the members, watches them, and ends well or says what went wrong.

Never imports torch; everything that needs it is done by members. What a verb needs is loaded when it is used: members
can begin to start before the planner is there, or without it.
"""

from typing import TYPE_CHECKING

from zooid.core.lazy import lazy_names

if TYPE_CHECKING:
    from zooid.coordinator.cleaning import clean
    from zooid.coordinator.planning import plan, profile, profiles, search
    from zooid.coordinator.predicting import predict
    from zooid.coordinator.probing import probe
    from zooid.coordinator.rehearsing import Rehearsal, rehearse
    from zooid.coordinator.resuming import resumable_step, resume
    from zooid.coordinator.running import RunResult
    from zooid.coordinator.sweeping import probe_all_reduce
    from zooid.coordinator.timelines import RecordedStep, timeline
    from zooid.coordinator.training import train

__all__ = [
    "RecordedStep",
    "Rehearsal",
    "RunResult",
    "clean",
    "plan",
    "predict",
    "probe",
    "probe_all_reduce",
    "profile",
    "profiles",
    "rehearse",
    "resumable_step",
    "resume",
    "search",
    "timeline",
    "train",
]

_LAZY = {
    "RecordedStep": "zooid.coordinator.timelines",
    "Rehearsal": "zooid.coordinator.rehearsing",
    "RunResult": "zooid.coordinator.running",
    "clean": "zooid.coordinator.cleaning",
    "plan": "zooid.coordinator.planning",
    "predict": "zooid.coordinator.predicting",
    "probe": "zooid.coordinator.probing",
    "probe_all_reduce": "zooid.coordinator.sweeping",
    "profile": "zooid.coordinator.planning",
    "profiles": "zooid.coordinator.planning",
    "rehearse": "zooid.coordinator.rehearsing",
    "resumable_step": "zooid.coordinator.resuming",
    "resume": "zooid.coordinator.resuming",
    "search": "zooid.coordinator.planning",
    "timeline": "zooid.coordinator.timelines",
    "train": "zooid.coordinator.training",
}

__getattr__ = lazy_names(__name__, _LAZY)

"""The run: profiles, plans, starts the members, watches them, and ends well or says what went wrong.

Never imports torch; everything that needs it is done by members.
"""

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

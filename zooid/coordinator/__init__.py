"""The run: profiles, plans, starts the members, watches them, and ends well or says what went wrong.

Never imports torch; everything that needs it is done by members.
"""

from zooid.coordinator.cleaning import clean
from zooid.coordinator.planning import plan, profile
from zooid.coordinator.probing import probe
from zooid.coordinator.training import RunResult, train

__all__ = ["RunResult", "clean", "plan", "probe", "profile", "train"]

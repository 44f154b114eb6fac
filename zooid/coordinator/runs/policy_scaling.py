"""Replicas that the job's scaling policy wants. If they can be foreseen, their members are started ahead."""

import time
from collections import deque
from dataclasses import dataclass, field

from zooid.coordinator.runs.roster_changes import RosterChanges
from zooid.core.runs.events import Event, RosterChanged, ScalingExpected, ScalingWanted, StepCommitted

_LEAD_FACTOR = 1.3
"""Members are started this many times earlier than start-ups have taken, since they vary."""
_LEAD_STEPS = 4
"""Steps in which members learn of a change, connect to those that join, and have them as guests."""
_MIN_LEAD_S = 1.0
_NUM_RECENT = 20
"""Number of steps over which the time of a step is taken."""


@dataclass
class PolicyScaling:
    """Turns what the policy wants into planned changes."""

    changes: RosterChanges
    num_stages: int
    started_s: float
    """Unix time at which the first members were started."""
    num_members: int
    """Number of members that train."""
    _expected: ScalingExpected | None = None
    """What the policy will want, unless members were already started for it."""
    _commits_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_RECENT + 1))
    """Unix times of the last commits, so that evaluations and checkpoints between steps count as well."""
    _num_steps: int = 0
    """Number of steps so far."""

    def take(self, event: Event) -> None:
        """Learn from an event of the run."""
        match event:
            case RosterChanged():
                self.num_members = len(event.members)
            case StepCommitted():
                if not self._commits_s:
                    self.changes.startups.first_s = max(0.0, event.at_s - event.step_s - self.started_s)
                self._commits_s.append(event.at_s)
                self._num_steps = event.step + 1
            case ScalingExpected():
                self._expected = event
            case ScalingWanted() if event.num_replicas is not None:
                if self._expected is not None and self._expected.step <= event.step:
                    self._expected = None
                self.changes.follow_policy(event.num_replicas)

    def poll(self) -> None:
        """Ask for the replicas that the policy will want, once it is time to start their members."""
        expected = self._expected
        if expected is not None and len(self._commits_s) > 1:
            step_s = (self._commits_s[-1] - self._commits_s[0]) / (len(self._commits_s) - 1)
            since_s = min(step_s, max(0.0, time.time() - self._commits_s[-1]))
            left_s = (expected.step - self._num_steps) * step_s - since_s
            if left_s <= self._lead_s(expected.num_replicas, step_s):
                self._expected = None
                self.changes.follow_policy(expected.num_replicas, expected.step)

    def _lead_s(self, num_replicas: int, step_s: float) -> float:
        """How long before so many replicas are needed their members are started."""
        num_new = num_replicas * self.num_stages - self.num_members
        start_s = self.changes.startups.expected_s(num_new) if num_new > 0 else 0.0
        return _MIN_LEAD_S + _LEAD_FACTOR * start_s + _LEAD_STEPS * step_s

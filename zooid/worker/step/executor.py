"""Runs a member's action list: it computes in this thread, while messages and reduces are in flight.

Messages and reduces begin as soon as everything they need is done. They are waited for only where an action needs them.
So receives are posted ahead, sends never delay computing, and a late message blocks only those who need it. The threads
of the transports move the bytes.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from zooid.core.abort import Abort
from zooid.core.errors import CommError
from zooid.core.runs.timeline import Interval, Timeline
from zooid.schedule.actions import MESSAGES, Action, Kind, Lane, Needs
from zooid.worker.step.pending import Pending


class ActionRun(NamedTuple):
    """When an action began and ended, by the process's own clock."""

    action: Action
    start_s: float
    end_s: float
    num_bytes: int = 0
    """Size of the message, or of the values of a collective; 0 if it is not known."""


class Actor(Protocol):
    """Performs the actions of a step, for real or as a rehearsal."""

    def compute(self, action: Action) -> None:
        """Perform an action, and return when it is done."""

    def begin(self, action: Action) -> Pending:
        """Begin a message or a reduce."""


class Executor:
    """Runs one step after the other. The caller gets any error, and drops the step."""

    def __init__(self, member: str, actor: Actor, abort: Abort) -> None:
        self._member = member
        self._actor = actor
        self._abort = abort
        self.has_computed = False
        """Whether a failed step had computed everything, and all its messages had arrived."""

    def run(self, actions: Sequence[Action], needs: Needs) -> "Recording":
        """Run the action list of one step, and return when every action is done."""
        start_at_s, start_s = time.time(), time.perf_counter()
        self.has_computed = False
        step = _Step(self._actor, self._abort, actions, needs)
        try:
            runs = step.run()
        except CommError:
            self.has_computed = step.finish_messages()
            raise
        return Recording(self._member, start_at_s, start_s, runs)


@dataclass(frozen=True)
class Recording:
    """The times at which the actions of a step ran. It becomes a timeline only on demand, since few are looked at."""

    member: str
    start_at_s: float
    """Start of the step in Unix time."""
    start_s: float
    """Start of the step by the process's own clock, which the times of actions follow."""
    runs: list[ActionRun]

    @property
    def end_s(self) -> float:
        """End of the step by the process's own clock."""
        return max(run.end_s for run in self.runs)

    def computing_s(self) -> float:
        """Seconds from the start of the step until the last backward had ended."""
        ends_s = [run.end_s for run in self.runs if run.action.kind is Kind.BACKWARD]
        return max(ends_s, default=0.0) - self.start_s

    def timeline(self) -> Timeline:
        return Timeline(
            intervals=tuple(
                Interval(
                    member=self.member,
                    lane=action.lane.value,
                    action=str(action),
                    start_s=start_s - self.start_s,
                    end_s=end_s - self.start_s,
                )
                for action, start_s, end_s, _ in self.runs
            ),
            start_at_s=self.start_at_s,
        )


class _Step:
    def __init__(self, actor: Actor, abort: Abort, actions: Sequence[Action], needs: Needs) -> None:
        self._actor = actor
        self._abort = abort
        self._actions = actions
        self._needs = needs
        self._num_missing = {action: len(needs[action]) for action in actions}
        self._successors: defaultdict[Action, list[Action]] = defaultdict(list)
        for action in actions:
            for before in needs[action]:
                self._successors[before].append(action)
        self._pending: dict[Action, Pending] = {}
        self._done: set[Action] = set()
        self._runs: list[ActionRun] = []

    def run(self) -> list[ActionRun]:
        for action in self._actions:
            if action.lane is not Lane.COMPUTE and self._num_missing[action] == 0:
                self._pending[action] = self._actor.begin(action)
        for action in self._actions:
            if action.lane is Lane.COMPUTE:
                for before in self._needs[action]:
                    self._finish(before)
                self._abort.check()
                start_s = time.perf_counter()
                self._actor.compute(action)
                self._end(action, start_s, time.perf_counter())
        for action in list(self._pending):
            self._finish(action)
        return self._runs

    def finish_messages(self) -> bool:
        """Let all messages end after a reduce or a commit has failed, since neighbours may still need them.

        Returns True if this member and its neighbours have all that they computed.
        """
        computed = [action for action in self._actions if action.kind in (Kind.FORWARD, Kind.BACKWARD)]
        if not self._done.issuperset(computed):
            return False
        try:
            for action in [action for action in self._pending if action.kind in MESSAGES]:
                self._finish(action)
        except CommError:
            return False
        return True

    def _finish(self, action: Action) -> None:
        """Wait for an action and for all that it needs, then begin the actions that needed only this one."""
        if action in self._done:
            return
        for before in self._needs[action]:
            self._finish(before)
        pending = self._pending.pop(action)
        pending.wait()
        self._end(action, pending.start_s, pending.end_s, pending.num_bytes)

    def _end(self, action: Action, start_s: float, end_s: float, num_bytes: int = 0) -> None:
        """Note that an action is done, and begin the actions that needed only this one."""
        self._runs.append(ActionRun(action, start_s, end_s, num_bytes))
        self._done.add(action)
        for successor in self._successors[action]:
            self._num_missing[successor] -= 1
            if self._num_missing[successor] == 0 and successor.lane is not Lane.COMPUTE:
                self._pending[successor] = self._actor.begin(successor)

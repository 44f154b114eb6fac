"""Runs a member's action list: it computes in this thread, and everything else is under way meanwhile.

Messages and reduces begin as soon as what they need is done, and are waited for only where something needs them. So
receives are posted ahead, sends never hold up computing, and a message that is late blocks nobody but those who need
it. The transports' own threads move the bytes.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zooid.core.abort import Abort
from zooid.core.errors import CommError
from zooid.core.runs.timeline import Interval, Timeline
from zooid.schedule.actions import MESSAGES, Action, Kind, Lane, Needs
from zooid.worker.step.pending import Underway

_Ran = tuple[Action, float, float]
"""What, from when, to when."""


class Actor(Protocol):
    """What the actions of a step do: real ones, or rehearsed."""

    def compute(self, action: Action) -> None:
        """Do it, and return when it is done."""

    def begin(self, action: Action) -> Underway:
        """Begin a message or a reduce."""


class Executor:
    """Runs steps one after the other. An error is raised to the caller, who drops the step."""

    def __init__(self, member: str, actor: Actor, abort: Abort) -> None:
        self._member = member
        self._actor = actor
        self._abort = abort
        self.has_computed = False
        """True after a step that failed when all of its computing was done and all messages had gone and come."""

    def run(self, actions: Sequence[Action], needs: Needs) -> "Recording":
        """Run one step's list and return when every action is done."""
        start_at_s, start_s = time.time(), time.perf_counter()
        self.has_computed = False
        step = _Step(self._actor, self._abort, actions, needs)
        try:
            ran = step.run()
        except CommError:
            self.has_computed = step.finish_messages()
            raise
        return Recording(self._member, start_at_s, start_s, ran)


@dataclass(frozen=True)
class Recording:
    """When each action of a step ran. Few steps are looked at, so that only those are written out."""

    member: str
    start_at_s: float
    """Unix time."""
    start_s: float
    """By the process's own clock, as when the actions ran."""
    ran: list[_Ran]

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
                for action, start_s, end_s in self.ran
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
        self._allows: defaultdict[Action, list[Action]] = defaultdict(list)
        for action in actions:
            for before in needs[action]:
                self._allows[before].append(action)
        self._underway: dict[Action, Underway] = {}
        self._done: set[Action] = set()
        self._ran: list[_Ran] = []

    def run(self) -> list[_Ran]:
        for action in self._actions:
            if action.lane is not Lane.COMPUTE and self._num_missing[action] == 0:
                self._underway[action] = self._actor.begin(action)
        for action in self._actions:
            if action.lane is Lane.COMPUTE:
                for before in self._needs[action]:
                    self._finish(before)
                self._abort.check()
                self._compute(action)
        for action in list(self._underway):
            self._finish(action)
        return self._ran

    def finish_messages(self) -> bool:
        """After a reduce or a commit has failed: let all messages end, since neighbours may still need them.

        Returns True if nothing is missing of what this member and its neighbours have computed.
        """
        computed = [action for action in self._actions if action.kind in (Kind.FORWARD, Kind.BACKWARD)]
        if not self._done.issuperset(computed):
            return False
        try:
            for action in [action for action in self._underway if action.kind in MESSAGES]:
                self._finish(action)
        except CommError:
            return False
        return True

    def _compute(self, action: Action) -> None:
        start_s = time.perf_counter()
        self._actor.compute(action)
        self._ran.append((action, start_s, time.perf_counter()))
        self._allow(action)

    def _finish(self, action: Action) -> None:
        """Wait for something, and for what it needs itself; what it allows begins."""
        if action in self._done:
            return
        for before in self._needs[action]:
            self._finish(before)
        underway = self._underway.pop(action)
        underway.wait()
        self._ran.append((action, underway.start_s, underway.end_s))
        self._allow(action)

    def _allow(self, action: Action) -> None:
        """It is done: begin whatever needed only this."""
        self._done.add(action)
        for after in self._allows[action]:
            self._num_missing[after] -= 1
            if self._num_missing[after] == 0 and after.lane is not Lane.COMPUTE:
                self._underway[after] = self._actor.begin(after)

"""Requests carried out: more or fewer replicas, other stages by another plan, and members that will be ended."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from zooid.coordinator.runs.incoming_requests import IncomingRequests
from zooid.coordinator.runs.roster_changes import RosterChanges, WantedChange
from zooid.core.errors import ObjectNotFound
from zooid.core.plans.plan import FixedLayout
from zooid.core.runs.requests import LayoutRequest, Notice
from zooid.store import ObjectStore
from zooid.store.planned_changes import read_plan_of
from zooid.store.rosters import last_roster

logger = logging.getLogger(__name__)

_ASSUMED_START_S = 10.0
"""Time from the start of a process until it has its seat, while no process has shown how long that takes."""


@dataclass
class RequestedChanges:
    """Turns requests into planned changes, in the order in which they come."""

    store: ObjectStore
    number: int
    """Number of the claim under which members train."""
    requests: IncomingRequests
    changes: RosterChanges
    start_planner: Callable[[str, FixedLayout], None]
    """Starts a process of this name, which makes a plan of the same name in this layout."""
    has_ended: Callable[[str], bool]
    """Returns whether the process of this name has ended."""
    on_layout: Callable[[], None] = lambda: None
    """Is called when somebody asks for a layout."""
    _waiting: list[tuple[str, LayoutRequest]] = field(default_factory=list)
    """Requests with their keys, in order."""
    _begun: list[tuple[str, WantedChange]] = field(default_factory=list)
    """The changes of requests that are not carried out yet, each with the key of its request."""
    _planner: str = ""
    """Name of the process that makes a plan; empty while there is none."""

    def poll(self) -> None:
        for key, request in self.requests.read_new():
            if isinstance(request, Notice):
                self._hand_over(key, request)
            else:
                self.on_layout()
                self._waiting.append((key, request))
        for key, wanted in list(self._begun):
            if not any(each is wanted for each in self.changes.wanted):
                self._begun.remove((key, wanted))
                self.requests.end(key)
        if self._planner:
            if self.has_ended(self._planner):
                self._take_plan()
        elif self._waiting and not self.changes.wanted:
            self._begin(*self._waiting[0])

    def _hand_over(self, key: str, notice: Notice) -> None:
        """Let a successor take over from a member that will be ended, or leave it out if there is no time for that."""
        roster = last_roster(self.store, self.number)
        if roster is None or notice.member not in roster.stages:
            self.requests.end(key)
            return
        cause = f"{notice.member} will be ended, says {notice.source}"
        is_late = notice.left_s is not None and notice.left_s < (self.changes.startups.longest_s or _ASSUMED_START_S)
        if is_late and roster.num_replicas > 1:
            self.changes.leave(notice.member, cause)
        else:
            self.changes.succeed({notice.member}, cause)
        self._begun.append((key, self.changes.wanted[-1]))

    def _begin(self, key: str, request: LayoutRequest) -> None:
        roster = last_roster(self.store, self.number)
        if roster is None or roster.guests:
            return
        if request.num_stages == roster.num_stages:
            self._waiting.pop(0)
            self.changes.scale(request.num_replicas, _cause(request))
            self._begun.append((key, self.changes.wanted[-1]))
            return
        plan = read_plan_of(self.store, self.number, roster.plan)
        self._planner = self.changes.new_name("planner")
        layout = FixedLayout(
            num_replicas=request.num_replicas,
            num_stages=request.num_stages,
            schedule=plan.schedule,
            transport=plan.transport,
            reproducible=plan.reproducible,
            insured=plan.insured,
            offers=plan.offers[:1],
        )
        self.start_planner(self._planner, layout)

    def _take_plan(self) -> None:
        name, self._planner = self._planner, ""
        key, request = self._waiting.pop(0)
        try:
            plan = read_plan_of(self.store, self.number, name)
        except ObjectNotFound:
            logger.warning("the run stays as it is: no plan could be made for %s", _cause(request))
            self.requests.end(key)
            return
        self.changes.follow(plan, name, _cause(request))
        self._begun.append((key, self.changes.wanted[-1]))


def _cause(request: LayoutRequest) -> str:
    return f"{request.num_replicas}x{request.num_stages} was asked for"

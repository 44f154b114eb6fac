"""Requests carried out: more or fewer replicas, other stages by another plan, and members that will be ended."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from zooid.coordinator.runs.incoming_requests import IncomingRequests
from zooid.coordinator.runs.roster_changes import RosterChanges
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
    _waiting: list[LayoutRequest] = field(default_factory=list)
    _planner: str = ""
    """Name of the process that makes a plan; empty while there is none."""
    _num_planners: int = 0

    def poll(self) -> None:
        for request in self.requests.read_new():
            if isinstance(request, Notice):
                self._hand_over(request)
            else:
                self._waiting.append(request)
        if self._planner:
            if self.has_ended(self._planner):
                self._take_plan()
        elif self._waiting and not self.changes.wanted:
            self._begin(self._waiting[0])

    def _hand_over(self, notice: Notice) -> None:
        """Let a successor take over from a member that will be ended, or leave it out if there is no time for that."""
        roster = last_roster(self.store, self.number)
        if roster is None or notice.member not in roster.stages:
            return
        cause = f"{notice.member} will be ended, says {notice.source}"
        is_late = notice.left_s is not None and notice.left_s < (self.changes.startups.longest_s or _ASSUMED_START_S)
        if is_late and roster.num_replicas > 1:
            self.changes.leave(notice.member, cause)
        else:
            self.changes.succeed({notice.member}, cause)

    def _begin(self, request: LayoutRequest) -> None:
        roster = last_roster(self.store, self.number)
        if roster is None or roster.guests:
            return
        if request.num_stages == roster.num_stages:
            self._waiting.pop(0)
            self.changes.scale(request.num_replicas, _cause(request))
            return
        plan = read_plan_of(self.store, self.number, roster.plan)
        self._num_planners += 1
        self._planner = f"planner-{self._num_planners}"
        layout = FixedLayout(
            num_replicas=request.num_replicas,
            num_stages=request.num_stages,
            schedule=plan.schedule,
            transport=plan.transport,
            reproducible=plan.reproducible,
            insured=plan.insured,
            offer=plan.offers[0],
        )
        self.start_planner(self._planner, layout)

    def _take_plan(self) -> None:
        name, self._planner = self._planner, ""
        request = self._waiting.pop(0)
        try:
            plan = read_plan_of(self.store, self.number, name)
        except ObjectNotFound:
            logger.warning("the run stays as it is: no plan could be made for %s", _cause(request))
            return
        self.changes.follow(plan, name, _cause(request))


def _cause(request: LayoutRequest) -> str:
    return f"{request.num_replicas}x{request.num_stages} was asked for"

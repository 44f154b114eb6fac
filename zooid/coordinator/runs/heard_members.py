"""Members of which the store tells, because their platform cannot: they run on another machine, or a link is broken."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberHandle
from zooid.core.runs.store_rules import EVENT_LOOK_S, USAGE_REPORT_S
from zooid.core.runs.ticket import title_of
from zooid.platforms import Exit, Launch, Platform
from zooid.store import ObjectStore
from zooid.store.stored_records import find_end

_MAX_SILENCE_S = 3 * USAGE_REPORT_S
"""Seconds without a report in the store after which a member is lost whose platform does not reach it, either."""


@dataclass
class HeardMembers:
    """A platform that asks the store about members which it cannot list or reach.

    A platform whose link is broken assumes after a while that the members behind it are lost. As long as they report to
    the store, they are not.
    """

    platform: Platform
    store: ObjectStore
    roster: int
    last_heard_s: Callable[[str], float]
    """Returns when a member that cannot be listed was last heard, on the clock of `time.monotonic`."""
    has_trained: Callable[[str], bool]
    """Returns whether a member has reported that it has done all its steps. Afterwards, all its reports are read."""
    timeout_s: float
    """Seconds of silence after which a member that the platform cannot list counts as lost."""
    last_report_s: Callable[[str], float]
    """Returns when a member itself has last written a report, on the same clock."""
    unseen: set[str] = field(default_factory=set)
    """Names of the members that the platform cannot list, because they run on another machine."""
    _judged: dict[str, tuple[float, Exit | None]] = field(default_factory=dict)
    """When a member was last judged, and what was found."""

    @property
    def name(self) -> str:
        return self.platform.name

    @property
    def look_s(self) -> float:
        return self.platform.look_s

    def create(self, launches: Sequence[Launch]) -> None:
        self.platform.create(launches)

    def members(self, run: str) -> Mapping[str, Exit | None]:
        listed = dict(self.platform.members(run))
        beginning = f"{keys.label(self.roster)}."
        for title, end in listed.items():
            if end is not None and end.is_assumed and title.startswith(beginning):
                member = title.removeprefix(beginning)
                listed[title] = self._judge(member, self.last_report_s, _MAX_SILENCE_S, end)
        for member in self.unseen:
            listed[title_of(member, self.roster)] = self._judge(member, self.last_heard_s, self.timeout_s, Exit(None))
        return listed

    def _judge(self, member: str, last_s: Callable[[str], float], timeout_s: float, lost: Exit) -> Exit | None:
        """Find out from the store whether a member has ended; if it is silent there too, it has, as `lost` says."""
        judged_s, end = self._judged.get(member, (-EVENT_LOOK_S, None))
        if time.monotonic() - judged_s < EVENT_LOOK_S:
            return end
        if self.has_trained(member):
            end = Exit(0)
        else:
            is_silent = time.monotonic() - last_s(member) >= timeout_s
            end = find_end(self.store, member, self.roster) or (lost if is_silent else None)
        self._judged[member] = (time.monotonic(), end)
        return end

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        """End members that can be reached. Others end when they see a claim that is not an adoption."""
        return self.platform.delete(run, titles)

    def release(self) -> None:
        self.platform.release()

    def has_room(self, num_members: int, offer: str) -> bool:
        return self.platform.has_room(num_members, offer)

    def place(self, launch: Launch) -> dict[str, str]:
        return self.platform.place(launch)

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return self.platform.watch(handle, title)

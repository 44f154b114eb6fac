"""The process groups of a roster that one member is in."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import distributed as dist

from zooid.core.abort import Abort
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster, RosterMember
from zooid.schedule.actions import Kind
from zooid.schedule.planned_rosters import source_replica

DISTANCES = {Kind.SEND_FORWARD: 1, Kind.RECEIVE_FORWARD: -1, Kind.SEND_BACKWARD: -1, Kind.RECEIVE_BACKWARD: 1}
"""Distance in stages to the neighbour that a message of this kind goes to or comes from."""


_FIRST_OF_GUESTS = 2**15
"""Number of the first group with a guest. Others have lower numbers."""


Overlaps = Callable[[int, str], bool]
"""(stage of a member, name of a guest) -> whether the guest will have layers of that stage."""


@dataclass(frozen=True)
class Groups:
    """All process groups that one member is in."""

    everyone: dist.ProcessGroup | None = None
    """All members, in order of rank; None if there is only one."""
    stage: dist.ProcessGroup | None = None
    """The replicas of the member's stage, in order; None if there is only one."""
    ties: dict[int, dist.ProcessGroup] = field(default_factory=dict)
    """The stages of the member's replica that share tied parameters, for each tie of its own stage."""
    holders: dist.ProcessGroup | None = None
    """All that apply the gradients of the member's stage: replicas, then copies; None if there is only one."""
    copies: dist.ProcessGroup | None = None
    """The copies of the member's stage, after the first replica, which sends them the gradients.

    None if there are no copies, and for all other replicas.
    """
    neighbours: dict[Kind, tuple[dist.ProcessGroup, int]] = field(default_factory=dict)
    """The group that carries each kind of message, and the neighbour's rank in this group."""
    guests: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    """A group with each guest to which this member sends its state, by the guest's name.

    For a guest, the groups with its sources by their names. The source always has rank 0.
    """


class Peers(Protocol):
    """One member's connections to all others. They outlive rosters."""

    @property
    def lost(self) -> Collection[str]:
        """Names of members that this member knows to be lost."""

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]], overlaps: Overlaps) -> Groups:
        """The member's groups under this roster. `ties` are stages that share parameters."""

    def connect(self, change: PlannedChange, roster: Roster, abort: Abort) -> None:
        """Connect to the processes that join with a planned change of this roster, where the transport needs it.

        `abort` ends only this attempt.
        """

    def announce_survey(self) -> None:
        """Tell the others that the present roster must be replaced, where they do not notice by themselves."""

    def end(self, *, is_clean: bool) -> None:
        """Leave the groups of the present roster. It is a clean end if all members will be done with them."""

    def close(self, *, is_clean: bool) -> None:
        """Leave for good, after `end`."""


def pipeline_group_number(roster: Roster, replica: int) -> int:
    """The number of the group that carries the messages of one replica."""
    return 1 + roster.num_stages + replica


MakeGroup = Callable[[int, Sequence[str]], dist.ProcessGroup]
"""(number, names of its members) -> the group of this number under the present roster."""


def own_groups(
    roster: Roster, name: str, ties: Sequence[tuple[int, ...]], overlaps: Overlaps, make: MakeGroup
) -> Groups:
    """The groups of one member, over a transport on which each member makes only its own groups."""
    names = [seat.name for seat in roster.seats]
    guests = _guest_groups(roster, name, overlaps, make)
    everyone = make(0, names) if len(names) > 1 else None
    if name not in roster.stages:
        return Groups(everyone=everyone, guests=guests)
    seat = roster.seats[roster.rank_of(name)]
    num_stages, num_replicas = roster.num_stages, roster.num_replicas
    holders = [names[rank] for rank in roster.ranks_of_stage(seat.stage)]
    replicas, copies = holders[:num_replicas], holders[num_replicas:]
    first = 1 + num_stages + num_replicas
    stage = make(1 + seat.stage, replicas) if num_replicas > 1 and name in replicas else None
    groups = Groups(everyone=everyone, stage=stage, holders=stage, guests=guests)
    if copies:
        groups = replace(groups, holders=make(first + seat.stage, holders))
        if name == replicas[0] or name in copies:
            groups = replace(groups, copies=make(first + num_stages + seat.stage, [replicas[0], *copies]))
    if not isinstance(seat, RosterMember):
        return groups
    pipeline = roster.pipeline(seat.replica)
    neighbours = {}
    if num_stages > 1:
        messages = make(pipeline_group_number(roster, seat.replica), pipeline)
        neighbours = {
            kind: (messages, seat.stage + distance)
            for kind, distance in DISTANCES.items()
            if 0 <= seat.stage + distance < num_stages
        }
    first += 2 * num_stages
    tied = {
        number: make(first + number * num_replicas + seat.replica, [pipeline[stage] for stage in stages])
        for number, stages in enumerate(ties)
        if seat.stage in stages
    }
    return replace(groups, ties=tied, neighbours=neighbours)


def _guest_groups(roster: Roster, name: str, overlaps: Overlaps, make: MakeGroup) -> dict[str, dist.ProcessGroup]:
    """A group for each pair of a guest and a member that sends its state there."""
    groups = {}
    for number, guest in enumerate(roster.guests):
        sources = roster.pipeline(source_replica(roster, guest.name))
        for stage, source in enumerate(sources):
            if name in (source, guest.name) and overlaps(stage, guest.name):
                other = guest.name if name == source else source
                groups[other] = make(_FIRST_OF_GUESTS + number * roster.num_stages + stage, [source, guest.name])
    return groups

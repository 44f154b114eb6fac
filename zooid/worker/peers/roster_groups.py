"""The process groups of a roster that one member is in."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import distributed as dist

from zooid.core.runs.roster import Roster, RosterMember
from zooid.schedule.actions import Kind

DISTANCES = {Kind.SEND_FORWARD: 1, Kind.RECEIVE_FORWARD: -1, Kind.SEND_BACKWARD: -1, Kind.RECEIVE_BACKWARD: 1}
"""Distance in stages to the neighbour that a message of this kind goes to or comes from."""


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


class Peers(Protocol):
    """One member's connections to all others. They outlive rosters."""

    @property
    def lost(self) -> Collection[str]:
        """Names of members that this member knows to be lost."""

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]]) -> Groups:
        """The member's groups under this roster. `ties` are stages that share parameters."""

    def announce_survey(self) -> None:
        """Tell the others that the present roster must be replaced, where they do not notice by themselves."""

    def end(self, *, is_clean: bool) -> None:
        """Leave the groups of the present roster. It is a clean end if all members are done with them."""

    def close(self, *, is_clean: bool) -> None:
        """Leave for good, after `end`."""


def pipeline_group_number(roster: Roster, replica: int) -> int:
    """The number of the group that carries the messages of one replica."""
    return 1 + roster.num_stages + replica


MakeGroup = Callable[[int, Sequence[str]], dist.ProcessGroup]
"""(number, names of its members) -> the group of this number under the present roster."""


def own_groups(roster: Roster, name: str, ties: Sequence[tuple[int, ...]], make: MakeGroup) -> Groups:
    """The groups of one member, over a transport on which each member makes only its own groups."""
    names = [seat.name for seat in roster.seats]
    seat = roster.seats[roster.rank_of(name)]
    num_stages, num_replicas = roster.num_stages, roster.num_replicas
    holders = [names[rank] for rank in roster.ranks_of_stage(seat.stage)]
    replicas, copies = holders[:num_replicas], holders[num_replicas:]
    first = 1 + num_stages + num_replicas
    everyone = make(0, names) if len(names) > 1 else None
    stage = make(1 + seat.stage, replicas) if num_replicas > 1 and name in replicas else None
    groups = Groups(everyone=everyone, stage=stage, holders=stage)
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

"""The process groups of a roster, as one member sees them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import distributed as dist

from zooid.core.runs.roster import Roster, RosterMember
from zooid.schedule.actions import Kind

DISTANCES = {Kind.SEND_FORWARD: 1, Kind.RECEIVE_FORWARD: -1, Kind.SEND_BACKWARD: -1, Kind.RECEIVE_BACKWARD: 1}
"""The distance, in stages, to the neighbour that a message of this kind goes to or comes from."""


@dataclass(frozen=True)
class Groups:
    """All groups that one member is in."""

    everyone: dist.ProcessGroup | None = None
    """All members, in order of rank; None if there is one."""
    stage: dist.ProcessGroup | None = None
    """The replicas of the member's stage, in their order; None if there is one."""
    ties: dict[int, dist.ProcessGroup] = field(default_factory=dict)
    """For each tie that the member's stage has a part in: the stages of its replica that share these parameters."""
    holders: dist.ProcessGroup | None = None
    """All who apply the gradients of the member's stage: replicas in order, then copies; None if there is one."""
    copies: dist.ProcessGroup | None = None
    """The first replica of the member's stage, which passes on what all replicas have found, and the copies of the
    stage; None if there are none, and for other replicas."""
    neighbours: dict[Kind, tuple[dist.ProcessGroup, int]] = field(default_factory=dict)
    """For each kind of message: the group that carries it, and the rank that the neighbour has in this group."""


class Reach(Protocol):
    """One member's way to all others. It outlives rosters."""

    @property
    def lost(self) -> Collection[str]:
        """Names of members that this one has lost, as far as it can notice."""

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]]) -> Groups:
        """The member's groups under this roster. `ties` are stages that share parameters."""

    def call(self) -> None:
        """Let the others know that the present roster has to be replaced, where they do not notice by themselves."""

    def end(self, *, in_peace: bool) -> None:
        """Leave the groups of the present roster: all are done with them, or they have failed."""

    def close(self, *, in_peace: bool) -> None:
        """Leave for good, after `end`."""


def number_of_pipeline(roster: Roster, replica: int) -> int:
    """The number of the group that carries the messages of one replica."""
    return 1 + roster.num_stages + replica


MakeGroup = Callable[[int, Sequence[str]], dist.ProcessGroup]
"""(number, names of its members) -> the group that has this number under the present roster."""


def own_groups(roster: Roster, name: str, ties: Sequence[tuple[int, ...]], make: MakeGroup) -> Groups:
    """The groups of one member, of a transport that makes each of them without others."""
    names = [seat.name for seat in roster.seats]
    own = roster.seats[roster.rank_of(name)]
    num_stages, num_replicas = roster.num_stages, roster.num_replicas
    holders = [names[rank] for rank in roster.ranks_of_stage(own.stage)]
    replicas, copies = holders[:num_replicas], holders[num_replicas:]
    first = 1 + num_stages + num_replicas
    everyone = make(0, names) if len(names) > 1 else None
    stage = make(1 + own.stage, replicas) if num_replicas > 1 and name in replicas else None
    groups = Groups(everyone=everyone, stage=stage, holders=stage)
    if copies:
        groups = replace(groups, holders=make(first + own.stage, holders))
        if name == replicas[0] or name in copies:
            groups = replace(groups, copies=make(first + num_stages + own.stage, [replicas[0], *copies]))
    if not isinstance(own, RosterMember):
        return groups
    pipeline = roster.pipeline(own.replica)
    neighbours = {}
    if num_stages > 1:
        messages = make(number_of_pipeline(roster, own.replica), pipeline)
        neighbours = {
            kind: (messages, own.stage + distance)
            for kind, distance in DISTANCES.items()
            if 0 <= own.stage + distance < num_stages
        }
    first += 2 * num_stages
    tied = {
        number: make(first + number * num_replicas + own.replica, [pipeline[stage] for stage in stages])
        for number, stages in enumerate(ties)
        if own.stage in stages
    }
    return replace(groups, ties=tied, neighbours=neighbours)

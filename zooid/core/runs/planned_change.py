"""Planned changes: who will train from a later step on, decided while the present roster still trains."""

from zooid.core.records import FileRecord, require, require_at_least, require_name
from zooid.core.runs.roster import Roster, RosterMember, RosterSeat


class PlannedChange(FileRecord, frozen=True, kw_only=True, tag="planned_change"):
    """The seats that follow one roster, as soon as all its members are ready for them.

    It is written create-only. Several may be planned for the same roster, and the newest of them counts.
    """

    run: str
    number: int
    """Number of the claim to which the roster belongs."""
    change: int
    """The roster that is replaced: how often members have replaced the claim's first one."""
    attempt: int
    """Number of this change among those that were planned for the roster; the first is 1."""
    cause: str
    """Why the roster changes, in words."""
    members: tuple[RosterMember, ...]
    shares: tuple[int, ...]
    """Number of grains of a full step that each replica computes."""
    copies: tuple[RosterSeat, ...] = ()
    plan: str = ""
    """Name of the plan that the members follow then; empty if it is the plan of the claim."""
    first_step: int = 0
    """The first step that these seats may compute. Members are ready no earlier than that needs."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require_at_least(0, self, "number", "change", "first_step")
        require_at_least(1, self, "attempt")
        require(bool(self.cause), "`cause` is empty; say why the roster changes")
        Roster(  # has all rules for seats
            run=self.run,
            number=self.number,
            resume_step=0,
            members=self.members,
            shares=self.shares,
            copies=self.copies,
        )

    @property
    def seats(self) -> tuple[RosterSeat, ...]:
        return (*self.members, *self.copies)

    def joiners(self, roster: Roster) -> tuple[RosterSeat, ...]:
        """List the seats of processes that have none in the present roster."""
        return tuple(
            RosterSeat(name=seat.name, stage=seat.stage) for seat in self.seats if seat.name not in roster.stages
        )

    def is_early(self, roster: Roster, step: int) -> bool:
        """Whether a roster with these seats would begin too early if the members agreed on it in this step.

        Processes that join are guests for one step before they have their seats.
        """
        return step + 1 + bool(self.joiners(roster)) < self.first_step

    def is_without_effect(self, roster: Roster) -> bool:
        """Whether everything stays as it is. Such a change withdraws an earlier one."""
        same = (roster.members, roster.copies, roster.shares, roster.plan)
        return same == (self.members, self.copies, self.shares, self.plan)

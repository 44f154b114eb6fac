"""The rosters of a planned change; every member derives the same ones.

If processes join, they are guests of the members for one step, and receive the state of their layers meanwhile. The
next roster then has their seats. A change without joiners needs only that last roster.

A planned roster follows a step for which all members have voted, so all of them have applied it or can. Its first
member writes it create-only, and votes under it only after that. So nothing is committed under a planned roster that
another one has replaced.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from zooid.core.errors import ScheduleError
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.schedule.samples import even_shares


def planned_roster(roster: Roster, change: PlannedChange, step: int, numbers: StepNumbers) -> Roster:
    """The roster that follows this one after `step` steps, when all its members are ready for the change.

    `numbers` are those of the last step.
    """
    check_follows(roster, change)
    joiners = () if roster.guests else change.joiners(roster)
    if joiners:
        return structs.replace(
            roster,
            change=roster.change + 1,
            resume_step=step,
            guests=joiners,
            attempt=change.attempt,
            newcomers=(),
            num_planned_replicas=roster.num_planned_replicas or roster.num_replicas,
            ruling=Ruling(kind="planned", numbers=numbers),
            is_between_steps=False,
            grains=(),
            computed=(),
        )
    seated = {seat.name for seat in change.seats}
    return Roster(
        run=roster.run,
        number=roster.number,
        change=roster.change + 1,
        resume_step=step,
        members=change.members,
        shares=change.shares,
        copies=change.copies,
        attempt=change.attempt,
        plan=change.plan,
        former=(*roster.former, *(seat.name for seat in roster.seats if seat.name not in seated)),
        num_planned_replicas=max(member.replica for member in change.members) + 1,
        ruling=Ruling(kind="planned", numbers=numbers),
        optimizer_settings=roster.optimizer_settings,
    )


def planned_change(
    roster: Roster,
    seats: "Seats",
    cause: str,
    attempt: int,
    *,
    shares: tuple[int, ...] = (),
    plan: str | None = None,
    first_step: int = 0,
) -> PlannedChange:
    """The record of a change of this roster to these seats.

    Without `shares`, as many replicas keep theirs, and others get equal ones. Without `plan`, members keep theirs.
    """
    members, copies = seats
    num_replicas = max(member.replica for member in members) + 1
    kept = roster.shares if num_replicas == roster.num_replicas else even_shares(sum(roster.shares), num_replicas)
    return PlannedChange(
        run=roster.run,
        number=roster.number,
        change=roster.change,
        attempt=attempt,
        cause=cause,
        members=members,
        shares=shares or kept,
        copies=copies,
        plan=roster.plan if plan is None else plan,
        first_step=first_step,
    )


def check_follows(roster: Roster, change: PlannedChange) -> None:
    """Raise ScheduleError if this change cannot follow this roster."""
    base = roster.change - 1 if roster.guests else roster.change
    if (change.run, change.number, change.change) != (roster.run, roster.number, base):
        raise ScheduleError(
            f"a change of roster {keys.label(change.number, change.change)} cannot follow roster {roster.label}"
        )
    if taken := {seat.name for seat in change.seats} & set(roster.former):
        raise ScheduleError(f"a planned change names {', '.join(sorted(taken))}, who had a seat before and lost it")


def source_replica(roster: Roster, guest: str) -> int:
    """The replica whose members send their state to this guest, so that all replicas send to about as many."""
    return [seat.name for seat in roster.guests].index(guest) % roster.num_replicas


Seats = tuple[tuple[RosterMember, ...], tuple[RosterSeat, ...]]
"""The members of a roster, and its copies."""


def with_replicas(
    roster: Roster,
    num_replicas: int,
    name_of: Callable[[int, int], str],
    name_of_copy: Callable[[int], str] | None = None,
) -> Seats:
    """The seats of this roster with more or fewer replicas: the first ones stay.

    `name_of` returns the name of a new member, given its replica and stage. Where stages are insured, `name_of_copy`
    returns that of a new copy of a stage. Copies are then needed only without other replicas, so they become members,
    and members become copies.
    """
    kept = [member for member in roster.members if member.replica < num_replicas]
    spare = {seat.stage: seat.name for seat in (*roster.members, *roster.copies) if seat not in kept}
    if name_of_copy is None:
        spare = {}
    new = [
        RosterMember(name=spare.pop(stage) if stage in spare else name_of(replica, stage), stage=stage, replica=replica)
        for replica in range(roster.num_replicas, num_replicas)
        for stage in range(roster.num_stages)
    ]
    if name_of_copy is None:
        return (*kept, *new), roster.copies
    copied = range(roster.num_stages) if num_replicas == 1 else ()
    copies = [RosterSeat(name=spare.get(stage) or name_of_copy(stage), stage=stage) for stage in copied]
    return (*kept, *new), tuple(copies)


def refilled(roster: Roster, plan_copies: Sequence[RosterSeat], name_of: Callable[[str], str]) -> Seats:
    """The seats of this roster with as many replicas and copies as planned.

    Copies that survivors of broken pipelines became take seats first. `name_of` returns the name of a new member, given
    that of its seat. `plan_copies` are the copies that were planned.
    """
    num_replicas = max(roster.num_planned_replicas, roster.num_replicas)
    spare = list(roster.copies)
    members = list(roster.members)
    for replica in range(roster.num_replicas, num_replicas):
        for stage in range(roster.num_stages):
            copy = next((seat for seat in spare if seat.stage == stage), None)
            if copy is not None:
                spare.remove(copy)
            name = copy.name if copy is not None else name_of(f"r{replica}s{stage}")
            members.append(RosterMember(name=name, stage=stage, replica=replica))
    for planned in plan_copies:
        if not any(seat.stage == planned.stage for seat in spare):
            spare.append(RosterSeat(name=name_of(planned.name), stage=planned.stage))
    return tuple(members), tuple(spare)


def with_offers(
    roster: Roster, wanted: Sequence[str], offer_of: Callable[[str], str], name_of: Callable[[str], str]
) -> Seats:
    """The seats of a run of one stage whose replicas are on these offers: whoever is on one of them stays.

    `offer_of` returns the offer of a member, and `name_of` the name of a new member, given that of its seat.
    """
    present = list(roster.members)
    members = []
    for replica, offer in enumerate(wanted):
        staying = next((member for member in present if offer_of(member.name) == offer), None)
        if staying is not None:
            present.remove(staying)
        name = name_of(f"r{replica}s0") if staying is None else staying.name
        members.append(RosterMember(name=name, stage=0, replica=replica))
    return tuple(members), ()


def with_successors(roster: Roster, successors: Mapping[str, str]) -> Seats:
    """The seats of this roster, some of which successors have taken over from their predecessors."""
    members = [structs.replace(seat, name=successors.get(seat.name, seat.name)) for seat in roster.members]
    copies = [structs.replace(seat, name=successors.get(seat.name, seat.name)) for seat in roster.copies]
    return tuple(members), tuple(copies)


def without_replica_of(roster: Roster, name: str) -> Seats:
    """The seats of this roster without a member and the others of its replica.

    ScheduleError is raised if there is only one replica.
    """
    if roster.num_replicas == 1:
        raise ScheduleError(f"{name} cannot leave without a successor: no other replica has its layers")
    left_out = roster.replica_of(name)
    members = [
        structs.replace(seat, replica=seat.replica - (left_out is not None and seat.replica > left_out))
        for seat in roster.members
        if seat.replica != left_out
    ]
    return tuple(members), tuple(seat for seat in roster.copies if seat.name != name)

"""The rosters of planned changes: guests first, then their seats; who left never comes back under its name."""

import pytest
from msgspec import structs

from tests.succession.rosters import first_roster
from zooid.core.errors import RecordError, ScheduleError
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.schedule.planned_rosters import (
    Seats,
    planned_roster,
    source_replica,
    with_replicas,
    with_successors,
    without_replica_of,
)
from zooid.schedule.step_state import Phase, StepState, Vote

NUMBERS = StepNumbers(loss_sum=3.0, weight=8.0, square_sums=(0.5, 0.25))


def change_to(roster: Roster, seats: Seats, shares: tuple[int, ...], attempt: int = 1) -> PlannedChange:
    members, copies = seats
    return PlannedChange(
        run=roster.run,
        number=roster.number,
        change=roster.change,
        attempt=attempt,
        cause="a test",
        members=members,
        copies=copies,
        shares=shares,
    )


def name_of(replica: int, stage: int) -> str:
    return f"n{replica}{stage}"


def test_joiners_are_guests_for_one_step_and_then_have_their_seats() -> None:
    roster = first_roster(2, 2)
    change = change_to(roster, with_replicas(roster, 3, name_of), (3, 3, 2))
    hosting = planned_roster(roster, change, 7, NUMBERS)
    assert hosting.members == roster.members
    assert [guest.name for guest in hosting.guests] == ["n20", "n21"]
    assert (hosting.change, hosting.resume_step, hosting.first_computed) == (1, 7, 7)
    assert hosting.num_voters == 6
    assert hosting.stages.keys() == roster.stages.keys(), "guests do not count as members"
    assert [source_replica(hosting, name) for name in ("n20", "n21")] == [0, 1]
    seated = planned_roster(hosting, change, 8, NUMBERS)
    assert seated.num_replicas == seated.num_planned_replicas == 3
    assert not seated.guests
    assert (seated.change, seated.resume_step, seated.shares) == (2, 8, (3, 3, 2))


def test_who_leaves_is_a_former_member() -> None:
    roster = first_roster(3, 1)
    change = change_to(roster, with_replicas(roster, 1, name_of), (8,))
    following = planned_roster(roster, change, 4, NUMBERS)
    assert following.former == tuple(roster.pipeline(replica)[0] for replica in (1, 2))
    back = change_to(following, (roster.members, ()), (3, 3, 2))
    with pytest.raises(ScheduleError, match="had a seat before"):
        planned_roster(following, back, 5, NUMBERS)


@pytest.mark.parametrize("num_stages", [1, 2])
def test_insured_stages_have_two_members_with_any_number_of_replicas(num_stages: int) -> None:
    """Nobody joins who could stay: copies become members, and members become copies."""
    roster = first_roster(2, num_stages)
    for num_replicas, num_new in ((1, 0), (2, 0), (3, num_stages), (1, 0)):
        members, copies = with_replicas(roster, num_replicas, name_of, lambda stage: f"copy{stage}")
        names = [seat.name for seat in (*members, *copies)]
        assert len(names) == len(set(names)) == num_stages * max(2, num_replicas)
        assert len(set(names) - roster.stages.keys()) == num_new
        assert sorted(copy.stage for copy in copies) == (list(range(num_stages)) if num_replicas == 1 else [])
        stages = {member.name: member.stage for member in (*members, *copies)}
        assert all(roster.stages.get(name, stage) == stage for name, stage in stages.items())
        roster = structs.replace(roster, members=members, copies=copies, shares=(1,) * num_replicas)
    _, copies = with_replicas(first_roster(1, 2), 1, name_of, lambda stage: f"copy{stage}")
    assert [copy.name for copy in copies] == ["copy0", "copy1"]


def test_successors_have_the_seats_of_their_predecessors() -> None:
    roster = structs.replace(first_roster(1, 2), copies=(RosterSeat(name="c", stage=1),))
    first, second = roster.pipeline(0)
    members, copies = with_successors(roster, {first: "x", "c": "y"})
    assert [member.name for member in members] == ["x", second]
    assert copies == (RosterSeat(name="y", stage=1),)


def test_the_replica_of_a_member_leaves_with_it() -> None:
    roster = first_roster(3, 2)
    gone = roster.pipeline(1)
    members, _ = without_replica_of(roster, gone[1])
    assert {member.name for member in members} == roster.stages.keys() - set(gone)
    assert {member.replica for member in members} == {0, 1}
    with pytest.raises(ScheduleError, match="without a successor"):
        without_replica_of(first_roster(1, 2), first_roster(1, 2).pipeline(0)[0])


def test_a_change_of_another_roster_cannot_follow() -> None:
    roster = first_roster(2, 1)
    change = change_to(roster, with_replicas(roster, 1, name_of), (8,))
    later = structs.replace(roster, change=1, ruling=Ruling(kind="unfinished"))
    with pytest.raises(ScheduleError, match="cannot follow"):
        planned_roster(later, change, 4, NUMBERS)


def test_a_change_without_effect_withdraws_an_earlier_one() -> None:
    roster = first_roster(2, 1)
    change = change_to(roster, (roster.members, ()), roster.shares, attempt=2)
    assert change.is_without_effect(roster)
    assert not change_to(roster, (roster.members, ()), (7, 1)).is_without_effect(roster)


def test_a_change_needs_every_seat_filled() -> None:
    roster = first_roster(2, 1)
    holes = (RosterMember(name="x", stage=0, replica=1),)
    with pytest.raises(RecordError, match="every replica and stage"):
        change_to(roster, (holes, ()), (8,))


@pytest.mark.parametrize(
    ("newest", "ready", "agrees"), [(0, 0, False), (1, 3, True), (1, 2, False), (2, 6, True), (2, 5, False)]
)
def test_all_members_must_be_ready_for_the_newest_change(newest: int, ready: int, agrees: bool) -> None:
    assert Vote(newest_change=newest, ready_change=ready).agrees_on_change(3) is agrees


def test_a_member_that_missed_the_votes_still_has_to_apply_the_step() -> None:
    roster = first_roster(2, 1)
    following = planned_roster(roster, change_to(roster, with_replicas(roster, 1, name_of), (8,)), 5, NUMBERS)
    prepared = StepState(4, Phase.PREPARED).release()
    assert prepared.obey(following) == StepState(4, Phase.PREPARED)
    assert StepState(4, Phase.APPLIED).obey(following) == StepState.resumed(5)
    with pytest.raises(ScheduleError, match="begins with step 5"):
        StepState(3, Phase.APPLIED).obey(following)

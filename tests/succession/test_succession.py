"""Members may vanish at any moment: what the next roster says, and that every order of events ends in one history."""

import random
from collections.abc import Callable

import pytest

from tests.succession.model import Model, run_schedule
from zooid.core.errors import ScheduleError
from zooid.core.roster import Answer, Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.schedule import succession
from zooid.schedule.steps import StepState
from zooid.schedule.succession import grains_of, successor

NUMBERS = StepNumbers(loss_sum=3.0, weight=8.0, square_sums=(0.5, 0.25))


def roster(num_replicas: int, num_stages: int, shares: tuple[int, ...], *copies: tuple[str, int]) -> Roster:
    """Names say the seat: b1 has the second stage of the second replica."""
    seated = [
        RosterMember(name=f"{chr(ord('a') + replica)}{stage}", stage=stage, replica=replica)
        for replica in range(num_replicas)
        for stage in range(num_stages)
    ]
    others = tuple(RosterSeat(name=name, stage=stage) for name, stage in copies)
    return Roster(run="run", number=2, change=4, resume_step=7, members=tuple(seated), shares=shares, copies=others)


def answers(names: str, *, num_applied: int = 9, prepared: str = "") -> list[Answer]:
    return [
        Answer(
            member=name,
            change=4,
            num_applied=num_applied,
            is_prepared=name in prepared.split(),
            square_sum=NUMBERS.square_sums[int(name[1])],
            loss_sum=NUMBERS.loss_sum,
            weight=NUMBERS.weight,
            applied=NUMBERS,
        )
        for name in names.split()
    ]


def following(before: Roster, given: list[Answer], num_grains: int = 8) -> Roster:
    return successor(before, given, checkpoint_step=5, num_grains=lambda step: num_grains)


class TestRuling:
    @pytest.mark.parametrize(
        ("given", "kind", "step"),
        [
            (answers("a0 a1 b0"), "unfinished", 9),
            (answers("a0 a1 b0", prepared="a0 b0"), "unfinished", 9),
            (answers("a0 a1 b0", prepared="b0 a1"), "stands", 9),
            (answers("a0 b0"), "rolled_back", 5),
            (answers("a0 b0", prepared="a0 b0"), "rolled_back", 5),
            ([*answers("a0", num_applied=10), *answers("a1 b0", prepared="a1 b0")], "stands", 9),
            ([*answers("a0 b0", num_applied=10, prepared="a0"), *answers("a1", prepared="a1")], "stands", 9),
        ],
    )
    def test_on_the_step_that_was_under_way(self, given: list[Answer], kind: str, step: int) -> None:
        new = following(roster(2, 2, (4, 4)), given)
        assert new.ruling is not None
        assert (new.ruling.kind, new.resume_step, new.change) == (kind, step, 5)
        assert new.ruling.numbers == (NUMBERS if kind == "stands" else None)

    def test_is_never_made_twice(self) -> None:
        """Somebody who is lost by now may have applied a step that stands, even if nobody who is left has it."""
        stands = following(roster(2, 2, (4, 4)), answers("a0 a1 b1", prepared="a0 b1"))
        later = [
            Answer(member="a0", change=5, num_applied=9, is_prepared=True, square_sum=0.5),
            Answer(member="a1", change=5, num_applied=9, is_prepared=False),
        ]
        assert following(stands, later).resume_step == 5
        b1 = Answer(member="b1", change=5, num_applied=9, is_prepared=True, loss_sum=3.0, weight=8.0)
        again = following(stands, [*later, b1])
        assert (again.resume_step, again.ruling) == (9, stands.ruling)

    def test_answers_about_another_roster_do_not_count(self) -> None:
        late = [Answer(member="b1", change=3, num_applied=9, is_prepared=False)]
        assert "b1" not in following(roster(2, 2, (4, 4)), answers("a0 a1") + late).stages


class TestSeats:
    def test_whole_pipelines_stay_and_the_rest_become_copies(self) -> None:
        new = following(roster(3, 2, (3, 3, 2)), answers("a0 b0 b1 c0 c1"))
        assert [new.pipeline(replica) for replica in range(2)] == [("b0", "b1"), ("c0", "c1")]
        assert new.copies == (RosterSeat(name="a0", stage=0),)
        assert new.shares == (5, 3)

    def test_parts_of_broken_pipelines_are_paired(self) -> None:
        new = following(roster(2, 2, (4, 4)), answers("a0 b1"))
        assert new.pipeline(0) == ("a0", "b1")
        assert new.shares == (8,)

    def test_a_copy_takes_the_seat_of_who_is_lost(self) -> None:
        new = following(roster(1, 2, (8,), ("x0", 0)), answers("x0 a1"))
        assert new.pipeline(0) == ("x0", "a1")

    def test_after_a_rollback_anyone_takes_any_seat(self) -> None:
        new = following(roster(2, 2, (4, 4)), answers("a0 b0"))
        assert new.pipeline(0) == ("a0", "b0")

    def test_too_few_members_are_refused(self) -> None:
        with pytest.raises(ScheduleError, match="1 members are left for 2 stages"):
            following(roster(1, 2, (8,)), answers("a0"))


class TestGrains:
    def test_only_lost_grains_are_computed_again(self) -> None:
        new = following(roster(3, 1, (3, 3, 2)), answers("a0 c0"))
        assert new.grains == ((0, 1, 2, 3, 4), (5, 6, 7))

    def test_new_pairs_have_kept_none(self) -> None:
        new = following(roster(3, 2, (4, 2, 2)), answers("a0 b1 c0 c1"))
        assert [new.pipeline(replica) for replica in range(2)] == [("c0", "c1"), ("a0", "b1")]
        assert new.grains[0][-2:] == (6, 7)
        assert sorted(new.grains[0] + new.grains[1]) == list(range(8))

    def test_a_second_loss_keeps_what_was_taken_over(self) -> None:
        first = following(roster(3, 1, (3, 3, 2)), answers("a0 c0"))
        second = following(first, [Answer(member="c0", change=5, num_applied=9, is_prepared=False)])
        assert second.grains == (tuple(range(8)),)
        assert grains_of(second, 10, 8) == [tuple(range(8))]


@pytest.mark.parametrize(
    ("layout", "num_steps", "max_rosters", "num_worlds"),
    [((2, 1), 3, 3, 4_000), ((1, 2), 3, 3, 1_000), ((2, 2), 1, 2, 15_000)],
)
def test_every_order_of_events_leads_to_one_history(
    layout: tuple[int, int], num_steps: int, max_rosters: int, num_worlds: int
) -> None:
    """A history is checked in every world. Larger layouts take minutes: `python -m tests.succession`."""
    assert len(Model(*layout, num_steps=num_steps, max_rosters=max_rosters).explore()) > num_worlds


def only_if_applied(before: Roster, answered: dict[str, Answer], checkpoint_step: int) -> tuple[int, Ruling]:
    """A tempting rule: a step that no survivor has applied is computed again."""
    most = max(answer.num_applied for answer in answered.values())
    if len({answer.num_applied for answer in answered.values()}) > 1:
        return most - 1, Ruling(kind="stands", numbers=next(a.applied for a in answered.values() if a.applied))
    return most, Ruling(kind="unfinished")


@pytest.mark.parametrize(
    ("place", "name", "rule"),
    [(succession, "_ruling", only_if_applied), (StepState, "release", lambda state: state)],
    ids=["computed again unless applied", "votes on after an answer"],
)
def test_a_weaker_rule_is_found_out(
    place: object, name: str, rule: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, rule)
    with pytest.raises(AssertionError, match="two histories"):
        Model(3, 1, num_steps=1, max_rosters=2).explore()


@pytest.mark.parametrize("layout", [(2, 2), (3, 2), (4, 1), (2, 3)], ids=str)
def test_runs_end_whoever_vanishes_when(layout: tuple[int, int]) -> None:
    chance = random.Random(5)
    ends = {run_schedule(layout, chance) for _ in range(100)}
    assert {"kept", "undisturbed"} <= ends

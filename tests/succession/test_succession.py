"""What the next roster says, by the answers of the survivors and by who asks to join."""

import pytest
from msgspec import structs

from zooid.core.errors import ScheduleError
from zooid.core.runs.roster import Answer, Joining, Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.schedule.samples import split_grains
from zooid.schedule.succession import grains_of, successor, uncomputed_grains_of

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
    return successor(before, given, checkpoint_step=lambda: 5, num_grains=lambda step: num_grains)


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

    def test_takes_the_change_of_the_batch_from_whoever_has_applied_the_step(self) -> None:
        """Nobody has while the first roster is written; under it, one member has, and is not alone to survive."""
        stands = following(roster(2, 2, (4, 4)), answers("a0 a1 b0 b1", prepared="a0 a1 b0 b1"))
        assert stands.ruling is not None
        assert stands.ruling.numbers is not None
        assert stands.ruling.numbers.batch_size is None
        voted = structs.replace(NUMBERS, batch_size=64, rate_factor=0.5)
        later = [
            structs.replace(each, change=5, applied=voted, num_applied=10)
            if each.member == "a0"
            else structs.replace(each, change=5)
            for each in answers("a0 b0 b1", prepared="b0 b1")
        ]
        again = following(stands, later)
        assert (again.resume_step, again.ruling) == (9, Ruling(kind="stands", numbers=voted))

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


class TestCopies:
    """A run with one copy for each stage."""

    INSURED = roster(1, 2, (8,), ("x0", 0), ("x1", 1))

    @pytest.mark.parametrize(
        ("left", "pipeline", "copies"),
        [
            ("a0 a1 x0 x1", ("a0", "a1"), {"x0": 0, "x1": 1}),
            ("a0 x0 x1", ("a0", "x1"), {"x0": 0}),
            ("a1 x0 x1", ("x0", "a1"), {"x1": 1}),
            ("x0 x1", ("x0", "x1"), {}),
            ("a0 a1 x1", ("a0", "a1"), {"x1": 1}),
            ("x0 a1", ("x0", "a1"), {}),
        ],
    )
    def test_take_the_seats_of_who_is_lost(self, left: str, pipeline: tuple[str, ...], copies: dict[str, int]) -> None:
        new = following(self.INSURED, answers(left))
        assert new.ruling == Ruling(kind="unfinished")
        assert [new.pipeline(replica) for replica in range(new.num_replicas)] == [pipeline]
        assert {copy.name: copy.stage for copy in new.copies} == copies

    def test_count_as_survivors_of_their_stage(self) -> None:
        new = following(self.INSURED, answers("a0 x1", prepared="a0 x1"))
        assert new.ruling == Ruling(kind="stands", numbers=NUMBERS)

    def test_two_losses_one_after_the_other(self) -> None:
        second = following(self.INSURED, answers("a0 x0 x1"))
        third = following(second, [structs.replace(answer, change=5) for answer in answers("x0 x1")])
        assert third.pipeline(0) == ("x0", "x1")
        assert third.former == ("a1", "a0")

    def test_are_dealt_after_a_rollback(self) -> None:
        new = following(roster(1, 2, (8,), ("x0", 0), ("y0", 0), ("z0", 0)), answers("a0 x0 y0 z0"))
        assert (new.pipeline(0), new.resume_step) == (("a0", "x0"), 5)
        assert {copy.name: copy.stage for copy in new.copies} == {"y0": 0, "z0": 1}


def joiners(names: str, change: int = 4) -> list[Joining]:
    return [Joining(member=name, change=change) for name in names.split()]


def joined(before: Roster, given: list[Answer], names: str) -> Roster:
    return successor(before, given, joiners=joiners(names), checkpoint_step=lambda: 5, num_grains=lambda step: 8)


class TestJoiners:
    def test_make_a_broken_pipeline_whole(self) -> None:
        new = joined(roster(2, 2, (4, 4)), answers("a0 b0 b1"), "n")
        assert [new.pipeline(replica) for replica in range(2)] == [("b0", "b1"), ("a0", "n")]
        assert (new.newcomers, new.former, new.copies) == (("n",), ("a1",), ())

    def test_fill_up_what_was_planned_and_no_more(self) -> None:
        alone = following(roster(2, 1, (4, 4)), answers("a0"))
        given = [structs.replace(answer, change=5) for answer in answers("a0")]
        asking = joiners("n o", change=5)
        new = successor(alone, given, joiners=asking, checkpoint_step=lambda: 5, num_grains=lambda step: 8)
        assert [new.pipeline(replica) for replica in range(2)] == [("a0",), ("n",)]
        assert {copy.name: copy.stage for copy in new.copies} == {"o": 0}

    def test_are_copies_of_the_stage_with_the_fewest_members(self) -> None:
        new = joined(roster(1, 2, (8,), ("x0", 0)), answers("a0 a1 x0"), "n o p")
        assert {copy.name: copy.stage for copy in new.copies} == {"x0": 0, "n": 1, "o": 0, "p": 1}
        assert new.newcomers == ("n", "o", "p")

    def test_read_the_checkpoint_if_nobody_has_the_state_of_a_stage(self) -> None:
        new = joined(roster(1, 2, (8,)), answers("a0"), "n")
        assert (new.ruling, new.resume_step, new.newcomers) == (Ruling(kind="rolled_back"), 5, ())
        assert new.pipeline(0) == ("a0", "n")

    def test_hold_nothing_before_they_confirm(self) -> None:
        first = joined(roster(2, 2, (4, 4)), answers("a0 b0 b1"), "n")
        without = Answer(member="n", change=5, num_applied=0, is_prepared=False, has_state=False)
        others = [structs.replace(answer, change=5) for answer in answers("a0 b0")]
        assert following(first, [*others, without]).ruling == Ruling(kind="rolled_back")
        again = following(first, [*others, *(structs.replace(a, change=5) for a in answers("b1")), without])
        assert (again.ruling, again.newcomers) == (Ruling(kind="unfinished"), ("n",))
        confirmed = structs.replace(without, has_state=True, num_applied=9)
        assert following(first, [*others, confirmed]).ruling == Ruling(kind="unfinished")

    def test_names_that_were_used_before_are_refused(self) -> None:
        first = following(roster(2, 1, (4, 4)), answers("a0"))
        given = [structs.replace(answer, change=5) for answer in answers("a0")]
        asking = joiners("b0 a0", change=5)
        new = successor(first, given, joiners=asking, checkpoint_step=lambda: 5, num_grains=lambda step: 8)
        assert new.stages == {"a0": 0}

    def test_who_asked_an_earlier_roster_has_to_ask_again(self) -> None:
        late = joiners("n", change=3)
        new = successor(
            roster(2, 1, (4, 4)), answers("a0"), joiners=late, checkpoint_step=lambda: 5, num_grains=lambda step: 8
        )
        assert new.stages == {"a0": 0}

    def test_alone_are_no_run(self) -> None:
        with pytest.raises(ScheduleError):
            joined(roster(1, 1, (8,)), [], "n o")


class TestFinishedGrains:
    """A pipeline that has computed all of its grains under a roster that could not commit them keeps their sums."""

    def finished(self, names: str, having: str) -> list[Answer]:
        return [structs.replace(answer, has_finished=answer.member in having.split()) for answer in answers(names)]

    def test_only_lost_grains_are_computed_again(self) -> None:
        new = following(roster(2, 2, (4, 4)), self.finished("a0 a1 b0", having="a0 a1"))
        assert new.computed == ((0, 1, 2, 3),)
        assert uncomputed_grains_of(new, 9, 8) == [(4, 5, 6, 7)]
        assert uncomputed_grains_of(new, 10, 8) == split_grains(8, (1,)), "of the first step only"

    def test_a_pipeline_keeps_nothing_that_one_of_its_members_lacks(self) -> None:
        new = following(roster(2, 2, (4, 4)), self.finished("a0 a1 b0", having="a0"))
        assert new.computed == ()
        assert uncomputed_grains_of(new, 9, 8) == new.grains

    def test_members_that_are_paired_anew_keep_nothing(self) -> None:
        new = following(roster(2, 2, (4, 4)), self.finished("a0 b1", having="a0 b1"))
        assert new.computed == ()

    def test_nothing_is_kept_of_a_step_that_stands(self) -> None:
        given = [structs.replace(each, has_finished=True) for each in answers("a0 a1 b0", prepared="a0 a1")]
        assert following(roster(2, 2, (4, 4)), given).computed == ()


class TestBrokenConnections:
    """Members that live, but have lost one another, never get seats in the same roster: they would lose it at once."""

    def suspecting(self, **suspects: str) -> list[Answer]:
        return [
            structs.replace(answer, suspects=tuple(suspects[answer.member].split()))
            for answer in answers(" ".join(suspects))
        ]

    def test_of_two_one_is_left_out(self) -> None:
        new = following(roster(2, 1, (4, 4)), self.suspecting(a0="b0", b0="a0"))
        assert [member.name for member in new.members] == ["a0"]
        assert new.former == ("b0",)

    def test_it_is_enough_if_one_of_them_says_so(self) -> None:
        new = following(roster(2, 1, (4, 4)), self.suspecting(a0="", b0="a0"))
        assert [member.name for member in new.members] == ["a0"]

    def test_who_is_cut_off_from_most_is_left_out(self) -> None:
        new = following(roster(3, 1, (3, 3, 2)), self.suspecting(a0="b0 c0", b0="a0", c0="a0"))
        assert [member.name for member in new.members] == ["b0", "c0"]

    def test_who_has_not_answered_is_no_matter(self) -> None:
        new = following(roster(3, 1, (3, 3, 2)), self.suspecting(a0="c0", b0="c0"))
        assert [member.name for member in new.members] == ["a0", "b0"]

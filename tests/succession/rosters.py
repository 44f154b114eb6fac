"""The first roster of a modelled run, and what every later one must fulfil."""

from collections.abc import Collection

from tests.succession.process import NUM_GRAINS
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Answer, Joining, Roster, RosterMember, RosterSeat
from zooid.schedule.planned_rosters import Seats
from zooid.schedule.samples import split_grains
from zooid.schedule.succession import grains_of


def first_roster(num_replicas: int, num_stages: int, copies: Collection[int] = ()) -> Roster:
    """What a coordinator writes. `copies` are the stages that are insured by a copy."""
    seats = [(replica, stage) for replica in range(num_replicas) for stage in range(num_stages)]
    return Roster(
        run="run",
        number=0,
        resume_step=0,
        members=tuple(RosterMember(name=f"m{r}{s}", stage=s, replica=r) for r, s in seats),
        shares=tuple(len(share) for share in split_grains(NUM_GRAINS, (1,) * num_replicas)),
        copies=tuple(RosterSeat(name=f"c{number}{stage}", stage=stage) for number, stage in enumerate(copies)),
    )


def planned(first: Roster, seats: Seats, shares: tuple[int, ...] = ()) -> PlannedChange:
    """A change of the first roster to these seats, with equal shares unless others are given."""
    members, copies = seats
    num_replicas = max(member.replica for member in members) + 1
    return PlannedChange(
        run=first.run,
        number=first.number,
        change=first.change,
        attempt=1,
        cause="it is tried",
        members=members,
        copies=copies,
        shares=shares or tuple(len(share) for share in split_grains(NUM_GRAINS, (1,) * num_replicas)),
    )


def check_roster(before: Roster, new: Roster, answers: Collection[Answer], joiners: Collection[Joining]) -> None:
    """The new roster names everyone who was seen and can go on with the others, and divides its first step once."""
    assert new.ruling is not None
    accepted = {j.member for j in joiners} - before.stages.keys() - set(before.former)
    assert accepted <= new.stages.keys() <= {answer.member for answer in answers} | accepted
    _check_company(new, answers)
    seated = [answer for answer in answers if answer.member in new.stages]
    _check_ruling(before, new, [answer for answer in seated if answer.has_state])
    grains = grains_of(new, new.first_computed, NUM_GRAINS)
    assert sorted(grain for part in grains for grain in part) == list(range(NUM_GRAINS)), "each sample counts once"
    if new.ruling.kind != "rolled_back":
        parts = grains_of(before, new.first_computed, NUM_GRAINS)
        kept = {before.pipeline(replica): parts[replica] for replica in range(before.num_replicas)}
        for replica in range(new.num_replicas):
            assert set(grains[replica]) >= set(kept.get(new.pipeline(replica), ())), "sums cannot be taken apart"
        finished = {answer.member for answer in seated if answer.has_finished}
        for replica in range(new.num_replicas if new.ruling.kind == "unfinished" else 0):
            pipeline = new.pipeline(replica)
            if finished >= set(pipeline) and kept.get(pipeline):
                listed = set(new.computed[replica]) if new.computed else set()
                assert listed >= set(kept[pipeline]), "finished grains are computed again"


def _check_company(new: Roster, answers: Collection[Answer]) -> None:
    """Two who have lost one another are never both seated, and only for this reason is anybody left out."""
    lost = {(answer.member, other) for answer in answers for other in answer.suspects if other != answer.member}
    for answer in answers:
        cut_off = [name for name in new.stages if (answer.member, name) in lost or (name, answer.member) in lost]
        if answer.member in new.stages:
            assert not cut_off, f"{answer.member} is seated beside {cut_off}, whom it has lost"
        else:
            assert cut_off, f"{answer.member} is left out, although it can reach everyone who is seated"


def _check_ruling(before: Roster, new: Roster, holders: Collection[Answer]) -> None:
    """The ruling can be carried out, and gives up no more than it must."""
    assert new.ruling is not None
    step, stages = new.resume_step, range(before.num_stages)
    if before.ruling is not None and before.ruling.kind == "stands" and new.ruling.kind != "rolled_back":
        is_open = any(answer.num_applied == before.resume_step for answer in holders)
        is_same = (new.resume_step, new.ruling) == (before.resume_step, before.ruling)
        assert is_same or not is_open, "a step that stands is judged anew"
    by_stage = [[answer for answer in holders if before.stages[answer.member] == stage] for stage in stages]
    if new.ruling.kind == "stands":
        has_all = [any(_has_gradients(answer, step) for answer in stage) for stage in by_stage]
        assert all(has_all), "a step stands, but a stage has nobody who could apply it"
    elif new.ruling.kind == "unfinished":
        assert all(by_stage), "a stage has nobody who has its state"
        assert {answer.num_applied for answer in holders} == {step}, "a step is computed again that somebody applied"
        assert any(not any(answer.is_prepared for answer in stage) for stage in by_stage), "the step could stand"
    elif all(by_stage):
        last = max(max(answer.num_applied for answer in holders) - 1, before.first_computed - 1)
        has_all = [any(_has_gradients(answer, last) for answer in stage) for stage in by_stage]
        assert not all(has_all), "all roll back, but every stage has somebody who can go on"


def _has_gradients(answer: Answer, step: int) -> bool:
    return answer.num_applied > step or (answer.num_applied == step and answer.is_prepared)

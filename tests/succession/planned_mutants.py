"""Plausible defects of planned changes, one at a time. The model must find each of them."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import pytest
from msgspec import structs

from tests.succession import planned
from tests.succession.changing_model import ChangingModel
from tests.succession.model import World
from tests.succession.mutants import Mutant
from tests.succession.process import Attempt, Process
from zooid.core.runs.roster import Roster
from zooid.schedule import planned_rosters, step_state


def _votes_before_its_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangingModel, "_may_vote", lambda model, actor, roster: True)


def _goes_on_though_its_write_has_lost(patch: pytest.MonkeyPatch) -> None:
    right = ChangingModel.confirming

    def confirming(model: ChangingModel, world: World, rank: int) -> Iterator[World]:
        actor = model._actors[world[rank]]
        yield from right(model, world, rank)
        if model._has_to_write(actor) and not model._is_stored(world, actor):
            number = model._acting(replace(actor, has_written=True), actor.process, model._rosters[actor.planned or 0])
            yield model._with(world, rank, number)

    patch.setattr(ChangingModel, "confirming", confirming)


def _leaves_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ChangingModel,
        "_leaving",
        lambda model, actor, process: model._number(replace(actor, process=planned.ended(process), planned=None)),
    )


def _leaver_never_answers(patch: pytest.MonkeyPatch) -> None:
    right = ChangingModel.answering

    def answering(model: ChangingModel, world: World, rank: int) -> Iterator[World]:
        return iter(()) if model._is_leaving(model._actors[world[rank]]) else right(model, world, rank)

    patch.setattr(ChangingModel, "answering", answering)


def _drops_its_attempt_too_early(patch: pytest.MonkeyPatch) -> None:
    right = ChangingModel._retreating

    def retreating(model: ChangingModel, own: int, before: int) -> list[int]:
        actors = [model._actors[number] for number in right(model, own, before)]
        return [model._number(replace(actor, shelved=None)) for actor in actors]

    patch.setattr(ChangingModel, "_retreating", retreating)


def _answers_with_its_attempt(patch: pytest.MonkeyPatch) -> None:
    """It calls grains finished that it computed under the planned roster, which divides them in another way."""
    right = ChangingModel._retreating

    def retreating(model: ChangingModel, own: int, before: int) -> list[int]:
        actors = []
        for actor in (model._actors[number] for number in right(model, own, before)):
            if actor.shelved is not None and actor.shelved.process.kept:
                process = replace(actor.process, kept=actor.shelved.process.kept)
                *others, answer = actor.answers
                answers = (*others, structs.replace(answer, has_finished=True))
                actors.append(replace(actor, process=process, answers=answers))
            else:
                actors.append(actor)
        return [model._number(actor) for actor in actors]

    patch.setattr(ChangingModel, "_retreating", retreating)


def _surveys_a_roster_that_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    """It takes every planned roster for written: it waits for a successor of a roster that may never be there."""
    right = ChangingModel.answering

    def answering(model: ChangingModel, world: World, rank: int) -> Iterator[World]:
        actor = model._actors[world[rank]]
        if actor.planned is None or model._is_leaving(actor) or model._is_stored(world, actor):
            yield from right(model, world, rank)
        elif not model._has_to_write(actor) and not actor.has_answered and actor.process.state.is_bound:
            for released in model._releasing(world[rank], actor.planned):
                yield model._with(world, rank, released)

    patch.setattr(ChangingModel, "answering", answering)


def _does_not_apply_the_step_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planned, "_applied", lambda state, process, numbers: (state, process.history, process.held))


def _trains_on_when_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    """It goes on under a planned roster without a survey, though it may have answered one about the roster before."""

    def obeying(model: ChangingModel, own: int, roster: int) -> int:
        actor, obeyed = model._actors[own], model._rosters[roster]
        if not obeyed.is_planned or actor.name not in obeyed.stages or actor.process.roster < 0:
            return right(model, own, roster)
        actor = replace(actor, planned=None, has_written=False, shelved=None)
        return model._acting(actor, planned.caught_up(actor.process, obeyed), obeyed)

    right = ChangingModel._obeying
    patch.setattr(ChangingModel, "_obeying", obeying)


def _messages_are_mixed(patch: pytest.MonkeyPatch) -> None:
    def attempt(process: Process) -> Attempt:
        return (process.roster, process.state.step, False)

    patch.setattr(Process, "attempt", property(attempt))


def _guests_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "stages", property(lambda roster: {seat.name: seat.stage for seat in roster.seats}))


def _guests_do_not_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "num_voters", property(lambda roster: len(roster.members) + len(roster.copies)))


def ruling(right: str, wrong: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Install the rule of planned rosters with one text in its source replaced."""

    def install(patch: pytest.MonkeyPatch) -> None:
        source = inspect.getsource(planned_rosters)
        assert right in source, f"the rule has changed: {right!r}"
        changed = ModuleType(planned_rosters.__name__)
        exec(compile(source.replace(right, wrong), "mutant", "exec"), changed.__dict__)
        patch.setattr(planned, "planned_roster", changed.planned_roster)

    return install


def obeying(right: str, wrong: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Install the way in which a member obeys a roster, with one text in its source replaced."""

    def install(patch: pytest.MonkeyPatch) -> None:
        source = inspect.getsource(step_state.StepState.obey)
        assert source.count(right) == 1, f"the rule has changed: {right!r}"
        place = dict(vars(step_state))
        exec(compile("class Changed:\n" + source.replace(right, wrong), "mutant", "exec"), place)
        patch.setattr(step_state.StepState, "obey", place["Changed"].obey)

    return install


_NO_NUMBERS = "StepNumbers(loss_sum=0.0, weight=0.0, square_sums=())"

PLANNED_MUTANTS = (
    Mutant(
        "the first member votes before it has written its roster",
        _votes_before_its_write,
        "2x1, the first leaves",
        "a roster that is not stored",
    ),
    Mutant(
        "the first member votes though another roster was written",
        _goes_on_though_its_write_has_lost,
        "2x1, the first leaves",
        "a roster that is not stored",
    ),
    Mutant("a member that leaves ends at once", _leaves_at_once, "1x2, the first is succeeded", "nobody goes on"),
    Mutant("a member that leaves answers no survey", _leaver_never_answers, "2x1, the first leaves", "nobody goes on"),
    Mutant(
        "a member drops what it has voted for before it knows that the roster has lost",
        _drops_its_attempt_too_early,
        "1x2, the first is succeeded",
        "lacks a step|two histories",
    ),
    Mutant(
        "a member keeps what it computed under a planned roster that has lost",
        _answers_with_its_attempt,
        "2x1 with other shares",
        "samples are lost or doubled",
    ),
    Mutant(
        "a member surveys a planned roster that is not stored",
        _surveys_a_roster_that_is_not_stored,
        "1x2, the last is succeeded",
        "nobody goes on",
    ),
    Mutant(
        "the step before a planned roster is not applied",
        _does_not_apply_the_step_before,
        "1x2, the last is succeeded",
        "begins after another step",
    ),
    Mutant(
        "a member trains under a planned roster that it has found, without a survey",
        _trains_on_when_it_has_caught_up,
        "1x2, the first is succeeded",
        "lacks a step|two histories",
    ),
    Mutant(
        "messages of a planned roster are read under the one that has won",
        _messages_are_mixed,
        "2x1 with a planned joiner",
        "samples are lost or doubled",
    ),
    Mutant("guests count in surveys", _guests_count, "1x2, the last is succeeded", "two histories"),
    Mutant("guests do not vote", _guests_do_not_vote, "1x1 with a joiner", "a planned roster seats a process"),
    Mutant(
        "a planned roster has no numbers of the step before",
        ruling(
            'ruling=Ruling(kind="planned", numbers=numbers)', f'ruling=Ruling(kind="planned", numbers={_NO_NUMBERS})'
        ),
        "1x2, the last is succeeded",
        "two histories",
    ),
    Mutant(
        "a planned roster begins a step too early",
        ruling("resume_step=step,", "resume_step=step - 1,"),
        "1x1 with a successor",
        "begins with step",
    ),
    Mutant(
        "a member that has not seen the votes cannot obey a planned roster",
        obeying('if ruling.kind == "planned" and', "if False and"),
        "1x2, the last is succeeded",
        "begins with step",
    ),
)

"""Plausible defects of planned changes, one at a time. The model must find each of them."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import pytest

from tests.succession import planned
from tests.succession.changing_model import ChangingModel
from tests.succession.model import Actor, World
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
    def retreated(process: Process, roster: Roster) -> Process:
        return replace(process, roster=roster.change, is_planned=roster.is_planned)

    patch.setattr(planned, "retreated", retreated)


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


PLANNED_MUTANTS = (
    Mutant("x votes before write", _votes_before_its_write, "2x1, the first leaves", ""),
    Mutant("x lost write", _goes_on_though_its_write_has_lost, "2x1, the first leaves", ""),
    Mutant("x leaves at once", _leaves_at_once, "2x1, the first leaves", ""),
    Mutant("x leaver never answers", _leaver_never_answers, "2x1, the first leaves", ""),
    Mutant("x drops early", _drops_its_attempt_too_early, "1x2, the last is succeeded", ""),
    Mutant("x answers with attempt", _answers_with_its_attempt, "1x2, the last is succeeded", ""),
    Mutant("x surveys unstored", _surveys_a_roster_that_is_not_stored, "1x2, the last is succeeded", ""),
    Mutant("x does not apply", _does_not_apply_the_step_before, "1x2, the last is succeeded", ""),
    Mutant("x trains on", _trains_on_when_it_has_caught_up, "1x2, the last is succeeded", ""),
    Mutant("x mixed", _messages_are_mixed, "1x2, the last is succeeded", ""),
    Mutant("x guests count", _guests_count, "1x1 with a successor", ""),
    Mutant("x guests do not vote", _guests_do_not_vote, "1x1 with a successor", ""),
    Mutant("x numbers", ruling("ruling=Ruling(kind=\"planned\", numbers=numbers)", "ruling=Ruling(kind=\"planned\", numbers=StepNumbers(loss_sum=0.0, weight=0.0, square_sums=()))"), "1x2, the last is succeeded", ""),
    Mutant("x step", ruling("resume_step=step,", "resume_step=step - 1,"), "1x1 with a successor", ""),
    Mutant("x obey", obeying('if ruling.kind == "planned" and', "if False and"), "1x2, the last is succeeded", ""),
)

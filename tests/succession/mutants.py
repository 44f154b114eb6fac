"""Plausible defects of the rule and of what members do, one at a time. Model or schedules must find each of them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest

from tests.succession import model, process, rosters, schedules
from zooid.core.runs.roster import Roster
from zooid.schedule import succession
from zooid.schedule.step_state import StepState


@dataclass(frozen=True)
class Mutant:
    """One defect, where it shows, and what is then said."""

    name: str
    install: Callable[[pytest.MonkeyPatch], None]
    case: str
    message: str


def instead(right: str, wrong: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Install the rule with one text in its source replaced."""

    def install(patch: pytest.MonkeyPatch) -> None:
        source = inspect.getsource(succession)
        assert source.count(right) == 1, f"the rule has changed: {right!r}"
        changed = ModuleType(succession.__name__)
        exec(compile(source.replace(right, wrong), "mutant", "exec"), changed.__dict__)
        for place in (model, process, rosters, schedules):
            for name in ("successor", "grains_of", "uncomputed_grains_of"):
                if hasattr(place, name):
                    patch.setattr(place, name, getattr(changed, name))

    return install


def doing(right: str, wrong: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Install what members do with one text in its source replaced. Classes stay as they are."""

    def install(patch: pytest.MonkeyPatch) -> None:
        source = inspect.getsource(process)
        assert source.count(right) == 1, f"what members do has changed: {right!r}"
        changed = ModuleType(process.__name__)
        exec(compile(source.replace(right, wrong), "mutant", "exec"), changed.__dict__)
        for name in ("Process", "Sums"):
            setattr(changed, name, getattr(process, name))
        for name, _ in inspect.getmembers(process, inspect.isfunction):
            patch.setattr(process, name, getattr(changed, name))

    return install


def _votes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepState, "release", lambda state: state)
    patch.setattr(process, "part_at_answer", lambda own, roster, has_computed: own.kept)


def _copies_do_not_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "num_voters", property(lambda roster: len(roster.members)))


MUTANTS = (
    Mutant(
        "a step stands although a stage has nobody prepared",
        instead(
            "if all(any(answer.is_prepared for answer in stage) for stage in stages):\n"
            '        return num_applied, Ruling(kind="stands", numbers=_numbers(stages))',
            "if any(answer.is_prepared for stage in stages for answer in stage):\n"
            "        as_if = [[structs.replace(answer, is_prepared=True) for answer in stage] for stage in stages]\n"
            '        return num_applied, Ruling(kind="stands", numbers=_numbers(as_if))',
        ),
        "1x2",
        "nobody who could apply it",
    ),
    Mutant(
        "a step that nobody alive has applied is computed again",
        instead("if all(any(answer.is_prepared for answer in stage) for stage in stages):", "if False:"),
        "2x1",
        "the step could stand",
    ),
    Mutant(
        "a newcomer counts as a holder of its stage's state",
        instead("if answer.has_state}", "}"),
        "2x1 with a joiner",
        "nobody who has its state",
    ),
    Mutant(
        "newcomers are not named",
        instead("newcomers=tuple(stateless) if keeps_state else ()", "newcomers=()"),
        "2x1 with a joiner",
        "the state of another stage",
    ),
    Mutant(
        "a ruling is judged anew",
        instead(
            'ruling is not None and ruling.kind == "stands" and num_applied <= roster.first_computed',
            "ruling is None and num_applied < 0",
        ),
        "2x1",
        "judged anew",
    ),
    Mutant(
        "a step goes on standing when the last holder of a stage is lost",
        instead("return rolled_back  # a lost member may have applied it, and no survivor can", "pass"),
        "2x1",
        "nobody who could apply it",
    ),
    Mutant(
        "nobody rolls back when a stage has no survivor",
        instead("if not all(stages) or", "if not any(stages) or"),
        "schedules",
        "each stage needs a member|nobody who has its state|must not be empty",
    ),
    Mutant(
        "seats are dealt anew although all keep their state",
        instead("if keeps_state\n        else", "if not keeps_state\n        else"),
        "schedules",
        "the state of another stage",
    ),
    Mutant(
        "a name that was used before may join",
        instead(" - set(roster.former))", ")"),
        "schedules",
        "`former` names members that have a seat",
    ),
    Mutant(
        "taken-over grains are counted twice",
        instead("sorted(set(range(num_grains)) - kept)", "range(num_grains)"),
        "2x1",
        "each sample counts once",
    ),
    Mutant(
        "the loss of a step is that of the first stage",
        instead("loss_sum=prepared[-1].loss_sum", "loss_sum=prepared[0].loss_sum"),
        "1x2 with a copy",
        "two histories",
    ),
    Mutant(
        "the step that stands is the newest one",
        instead("return num_applied - 1, ", "return num_applied, "),
        "2x1",
        "all roll back, but",
    ),
    Mutant(
        "a member that has answered still applies", _votes_on, "3x1 with suspicions", "two histories|begins with step"
    ),
    Mutant("copies do not vote", _copies_do_not_vote, "1x2 with a copy", "two histories|judged|somebody applied"),
    Mutant(
        "a pipeline has computed its grains although one of its members has not",
        instead("if finished >= set(names)", "if finished & set(names)"),
        "1x2",
        "samples are lost",
    ),
    Mutant(
        "a pipeline has computed what another one had",
        instead("(numbers) if finished >= set(names)", "(numbers) if finished"),
        "2x1",
        "samples are lost",
    ),
    Mutant(
        "grains of the step after one that stands are computed already",
        instead('answer.has_finished and ruling.kind == "unfinished"', "answer.has_finished"),
        "2x1",
        "samples are lost",
    ),
    Mutant(
        "grains that are computed already are so in every step",
        instead("if not roster.computed or step != roster.first_computed:", "if not roster.computed:"),
        "2x1",
        "samples are lost",
    ),
    Mutant(
        "taken-over grains are computed already",
        instead(
            "    return structs.replace(\n        next_roster,",
            "    computed = [done and part for done, part in zip(computed, grains)]\n"
            "    return structs.replace(\n        next_roster,",
        ),
        "2x1",
        "samples are lost",
    ),
    Mutant(
        "grains that all of a pipeline have computed are computed again",
        instead("tuple(computed) if any(computed) else ()", "()"),
        "2x1",
        "finished grains are computed again",
    ),
    Mutant(
        "sums are kept beyond the apply of their step",
        doing("held=None, is_settled=True, kept=())", "held=None, is_settled=True)"),
        "2x1",
        "samples are lost or doubled",
    ),
    Mutant(
        "sums of a step that stands are kept",
        doing('process.kept if ruling.kind == "unfinished" and keeps_sums(process, roster) else ()', "process.kept"),
        "2x1",
        "samples are lost or doubled",
    ),
    Mutant(
        "sums are kept although the roster does not list them",
        doing("and keeps_sums(process, roster) else ()", "else ()"),
        "1x2",
        "samples are lost or doubled",
    ),
    Mutant(
        "sums are dropped although the roster lists them",
        doing("and keeps_sums(process, roster) else ()", "and False else ()"),
        "2x1",
        "samples are lost",
    ),
    Mutant(
        "a member that kept sums has finished, whatever else its roster gives it",
        doing("return part if has_all else ()", "return part if has_all else process.kept"),
        "2x1",
        "samples are lost",
    ),
    Mutant(
        "a copy has finished",
        doing("    if replica is None:\n        return ()\n", "    if replica is None:\n        replica = 0\n"),
        "1x2 with a copy",
        "samples are lost or doubled",
    ),
    Mutant(
        "two who have lost one another are seated together",
        instead("if not unreachable[answer.member] & {other.member for other in kept}:", "if True:"),
        "2x1 with suspicions",
        "is seated beside",
    ),
    Mutant(
        "who is lost by others has to know it",
        instead("unreachable[other] = unreachable[other] | {name}", "pass"),
        "3x1 with suspicions",
        "is seated beside",
    ),
    Mutant(
        "both are left out who have lost one another",
        instead(
            "if not unreachable[answer.member] & {other.member for other in kept}:",
            "if not unreachable[answer.member]:",
        ),
        "3x1 with suspicions",
        "is left out",
    ),
    Mutant(
        "a member is left out because it has lost somebody who does not answer",
        instead("(names & set(answer.suspects))", "(names if set(answer.suspects) - names else set(answer.suspects))"),
        "3x1 with suspicions",
        "is left out",
    ),
)

"""What the benchmarks of disturbed runs check: every check must notice what it is there for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from benchmarks.chaos.__main__ import Tally
from benchmarks.chaos.campaign import Outcome
from benchmarks.chaos.checks import (
    Ending,
    Told,
    difference_faults,
    reading_faults,
    sample_faults,
    telling_faults,
)
from benchmarks.chaos.jobs import NUM_STEPS
from benchmarks.chaos.trials import Fault, Trial, draw
from benchmarks.recovery.timing import redone_grains, resumption
from lab.footprints import FOLDER, Footprint, last_applied, read_footprints
from zooid.core.runs.events import Evaluated, StepCommitted

BATCHES = [[0, 1], [2, 3], [4], [3, 0], [1, 4], [2]]
"""Two epochs of five samples."""


def committed(*steps: int, loss: float = 1.0, skipped: Sequence[int] = ()) -> tuple[StepCommitted, ...]:
    return tuple(
        StepCommitted(
            at_s=float(step),
            step=step,
            epoch=step // 3,
            loss=loss,
            num_samples=len(BATCHES[step]),
            step_s=0.1,
            is_skipped=step in skipped,
        )
        for step in steps
    )


class TestTelling:
    def test_steps_that_a_later_roster_runs_again_count_once(self) -> None:
        rolled_back = [Told(0, committed(0, 1, 2, 3)), Told(2, committed(2, 3, 4, 5))]
        assert telling_faults(rolled_back, may_repeat=False) == []

    def test_a_doubled_step_is_noticed(self) -> None:
        within = [Told(0, committed(0, 1, 1, 2))]
        assert telling_faults(within, may_repeat=False) == ["steps told twice: [1]"]
        across = [Told(0, committed(0, 1, 2)), Told(3, committed(2, 3))]
        assert telling_faults(across, may_repeat=False) == ["steps told twice: [2]"]
        assert telling_faults(across, may_repeat=True) == []


class TestSamples:
    def test_a_whole_history_is_fine(self) -> None:
        assert sample_faults(committed(*range(6)), BATCHES) == []

    @pytest.mark.parametrize("steps", [(0, 1, 3, 4, 5), (0, 1, 2, 2, 3, 4, 5), (0, 2, 1, 3, 4, 5), (0, 1, 2)])
    def test_missing_doubled_and_misplaced_steps_are_noticed(self, steps: tuple[int, ...]) -> None:
        [fault] = sample_faults(committed(*steps), BATCHES)
        assert fault == f"the history has the steps {list(steps)}"

    def test_a_step_without_one_of_its_samples_is_noticed(self) -> None:
        steps = list(committed(*range(6)))
        steps[4] = structs.replace(steps[4], num_samples=1)
        assert sample_faults(steps, BATCHES) == ["steps with a wrong number of samples: [4]"]


def lines(*notes: str, start_s: float = 0.0) -> list[Footprint]:
    """`r3` is a read of sample 3, `a2` says that two steps are applied; a tenth of a second lies between two."""
    return [
        Footprint(start_s + place / 10, "read" if note[0] == "r" else "applied", int(note[1:]))
        for place, note in enumerate(notes)
    ]


WHOLE = ("r0", "r1", "a1", "r2", "r3", "a2", "r4", "a3", "r3", "r0", "a4", "r1", "r4", "a5", "r2", "a6")


class TestReading:
    def test_all_samples_of_all_steps_are_read(self) -> None:
        assert reading_faults({"r0s0-1": lines(*WHOLE)}, BATCHES) == []

    def test_a_sample_that_is_read_in_one_epoch_only_is_noticed(self) -> None:
        notes = [note for place, note in enumerate(WHOLE) if place != 9]  # sample 0, in the second epoch
        [fault] = reading_faults({"r0s0-1": lines(*notes)}, BATCHES)
        assert fault == "samples that nobody has read, by step: {3: [0]}"

    def test_steps_that_were_skipped_leave_no_mark(self) -> None:
        """Sample 2 belongs to the last step of the first epoch here, and to the first one of the second."""
        batches = [[0, 1], [2], [2, 0], [1]]
        notes = ("r0", "r1", "a1", "r2", "r2", "r0", "a3", "r1", "a4")
        assert reading_faults({"r0s0-1": lines(*notes)}, batches) == []

    def test_what_a_killed_member_has_read_counts(self) -> None:
        survivor = ("r0", "a1", "r2", "a2", "r4", "a3", "r3", "r0", "a4", "r1", "r4", "a5", "r2", "a6")
        assert reading_faults({"r0s0-1": lines(*survivor), "r1s0-2": lines("r1", "a1", "r3")}, BATCHES) == []


def ending(weight: float = 1.0, loss: float = 1.0, skipped: Sequence[int] = (), scale: float = 1.0) -> Ending:
    evaluated = Evaluated(at_s=0.0, epoch=0, step=3, loss=loss, metrics={}, num_samples=2, wall_s=0.1)
    return Ending(
        state={"weight": torch.tensor([weight, 2.0])},
        steps=committed(*range(6), loss=loss, skipped=skipped),
        evaluations=(evaluated,),
        loss_scale=(scale, 3),
    )


class TestDifferences:
    def test_equal_endings(self) -> None:
        assert difference_faults(ending(), ending(), 0.0) == []
        assert difference_faults(ending(weight=1.001), ending(), 0.01) == []

    def test_each_difference_is_noticed(self) -> None:
        for weight in (1.1, float("nan")):
            [fault] = difference_faults(ending(weight=weight), ending(), 0.01)
            assert fault.startswith("the state dict differs: {'weight': ")
        assert [fault.partition(" ")[0] for fault in difference_faults(ending(loss=2.0), ending(), 0.01)] == [
            "losses",
            "evaluations",
        ]
        assert difference_faults(ending(skipped=[1]), ending(skipped=[2]), 0.01) == [
            "the steps [1] were skipped instead of [2]"
        ]
        assert difference_faults(ending(scale=0.5), ending(), 0.01) == [
            "the loss scale is (0.5, 3) instead of (1.0, 3)"
        ]
        doubled = replace(ending(), evaluations=ending().evaluations * 2)
        assert difference_faults(doubled, ending(), 0.01) == ["evaluations are of the steps [3, 3] instead of [3]"]


class TestTally:
    STOP = Trial(1, "plain", 2, 1, "tcp", (Fault("stop", "r0s0", 3, 0.0),))

    def test_faults_and_resumes_are_counted(self) -> None:
        tally = Tally()
        assert tally.add(Outcome(self.STOP, fired=["stop", "store"], num_resumes=1)) == "ok"
        assert (tally.num_runs, tally.num_resumes, tally.faults) == (1, 1, {"stop": 1, "store": 1})
        assert tally.failed == []

    def test_whatever_is_wrong_fails(self) -> None:
        tally = Tally()
        assert tally.add(Outcome(self.STOP, problems=["the state dict differs"])) == "FAILED"
        assert tally.failed == [1]


def test_a_seed_draws_the_same_trial_again() -> None:
    trials = [draw(seed) for seed in range(300)]
    assert trials == [draw(seed) for seed in range(300)]
    assert {fault.kind for trial in trials for fault in trial.faults} == {
        *("kill", "pause", "stop", "blink", "partition", "coordinator")
    }
    assert any(fault.after_step == NUM_STEPS for trial in trials for fault in trial.faults)
    assert any(trial.store_error_rate and not trial.faults for trial in trials)


def test_footprints_are_read_back(tmp_path: Path) -> None:
    assert last_applied(tmp_path) == (0, 0.0)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "r0s0-7").write_text("1.5 read 3\n2.5 applied 1\n" + "3.0 read 4\n" * 1000 + "4.5 applied 2\n")
    (tmp_path / FOLDER / "r1s0-8").write_text("4.25 applied 2\n")
    (tmp_path / FOLDER / "preparer-9").write_text("1.0 read 0\n")
    assert last_applied(tmp_path) == (2, 4.25)
    assert read_footprints(tmp_path)["r0s0-7"][:2] == [Footprint(1.5, "read", 3), Footprint(2.5, "applied", 1)]
    assert set(read_footprints(tmp_path)) == {"r0s0-7", "r1s0-8"}


class TestRecovery:
    def test_the_wait_beyond_a_step(self) -> None:
        survivor = [Footprint(at_s, "applied", number) for at_s, number in ((1.0, 1), (1.5, 2), (2.0, 3), (3.5, 4))]
        victim = [Footprint(at_s, "applied", number) for at_s, number in ((1.1, 1), (1.6, 2), (2.1, 3))]
        found = resumption({"r0s0-1": survivor, "r1s0-2": victim}, fault_s=2.25)
        assert found is not None
        assert (found.step_s, found.wait_s, found.recovery_s, found.steps_lost) == (0.5, 1.25, 0.75, 0)

    def test_steps_that_are_applied_again_are_lost(self) -> None:
        times = ((1.0, 1), (1.5, 2), (2.0, 3), (3.0, 2), (3.5, 3), (4.0, 4))
        found = resumption({"r0s0-1": [Footprint(at_s, "applied", number) for at_s, number in times]}, fault_s=2.25)
        assert found is not None
        assert (found.wait_s, found.steps_lost) == (1.75, 2)

    def test_a_run_that_does_not_go_on(self) -> None:
        assert resumption({"r0s0-1": lines("a1", "a2")}, fault_s=1.0) is None

    def test_redone_grains_are_counted_for_each_stage(self) -> None:
        batches = [[0, 1, 2, 3], [4, 5, 6, 7]]
        footprints = {
            "r0s0-1": lines("r0", "r1", "a1", "r4", "r5", "r4", "r5", "r6", "r7", "a2"),
            "r1s0-2": lines("r2", "r3", "a1", "r6"),
            "r0s1-3": lines("r0", "r1", "r2", "r3", "a1", "r4", "r5", "r6", "r7", "a2"),
        }
        assert redone_grains(footprints, batches, step=1, grain_size=2) == 1.5
        assert redone_grains(footprints, batches, step=0, grain_size=2) == 0.0

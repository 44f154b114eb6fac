"""What a job may ask of its run: evaluate when it likes, keep the best checkpoint, stop early, look at the weights."""

import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import zooid
from tests.integration.hooked_jobs import EVALUATION, at_work_alone, write_hooked_job
from tests.integration.jobs import plan_by_hand
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import evaluation_loss, train_composed_layers
from zooid.coordinator import RunResult, resumable_step
from zooid.core.errors import CheckpointError, InputError, JobError, MemberFailed
from zooid.core.jobs.job import load_job
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    MemberPrinted,
    RunFinished,
    RunStarted,
    StepCommitted,
    StoppedEarly,
)
from zooid.layers import build_model
from zooid.report import view_for
from zooid.store import open_store
from zooid.store.checkpoint_index import complete_steps

pytestmark = pytest.mark.timeout(120)

TOLERANCE = 1e-9
NUM_STEPS = 9
WORSENING = {
    **EVALUATION,
    "evaluate_every": "2",
    "monitor": "zooid.Monitor(patience=2)",
}
"""Labels are random: what is learnt of them makes the evaluation worse, so that the first one is the best."""
CRASH = """
from pathlib import Path

def crash(event):
    file = Path(__file__).with_suffix(".crash")
    if file.exists() and type(event).__name__ == "StepCommitted" and event.step == int(file.read_text()):
        raise RuntimeError("as the test asks")

"""
"""Ends the run after the step that a file names."""


def train(
    job_file: Path,
    folder: Path,
    forking: RecordingPlatform,
    *,
    num_replicas: int = 2,
    cuts: int = 2,
    rule: CheckpointRule | None = None,
) -> tuple[RunResult, list[Event]]:
    plan = plan_by_hand(job_file, num_replicas=num_replicas, cuts=cuts, transport="tcp")
    events: list[Event] = []
    result = zooid.train(
        job_file, store=folder.as_uri(), plan=plan, platform=forking, checkpoints=rule, on_event=events.append
    )
    return result, events


def evaluated_steps(events: list[Event]) -> list[int]:
    return [event.step for event in events if isinstance(event, Evaluated)]


Stopped = tuple[Path, RunResult, list[Event]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, forking: RecordingPlatform) -> Stopped:
    """Two replicas of two stages, of whose checkpoints only the last and the best stay."""
    folder = tmp_path_factory.mktemp("stopped")
    job_file = write_hooked_job(folder / "job.py", fields=WORSENING)
    return job_file, *train(job_file, folder / "run", forking, rule=CheckpointRule(every_steps=1, keep=1))


class TestEarlyStop:
    def test_it_equals_a_loop_that_stops_there(self, stopped: Stopped) -> None:
        job_file, result, _ = stopped
        expected = train_composed_layers(job_file, num_steps=6)
        assert expected.loss_difference(result.losses) <= TOLERANCE
        assert expected.weight_difference(result.checkpoint) <= TOLERANCE

    def test_the_best_checkpoint_stays(self, stopped: Stopped) -> None:
        job_file, result, _ = stopped
        assert complete_steps(open_store(result.store)) == [2, 6]
        assert result.best_checkpoint == f"{result.store}/{keys.checkpoint(2)}"
        expected = train_composed_layers(job_file, num_steps=2)
        assert expected.weight_difference(result.best_checkpoint) <= TOLERANCE
        best = zooid.load_checkpoint(result.store, best=True)
        assert all(
            torch.equal(tensor, best[name]) for name, tensor in zooid.load_checkpoint(result.best_checkpoint).items()
        )
        with pytest.raises(CheckpointError, match="is the folder of one checkpoint; give the run's folder"):
            zooid.load_checkpoint(result.best_checkpoint, best=True)

    def test_the_last_events_say_why(self, stopped: Stopped) -> None:
        _, result, events = stopped
        assert evaluated_steps(events) == [2, 4, 6]
        first = next(event for event in events if isinstance(event, Evaluated))
        reason = f"loss has not been better than {first.loss:g}, that of step 2, in 2 evaluations (job.monitor)"
        [event] = [event for event in events if isinstance(event, StoppedEarly)]
        assert (event.step, event.reason) == (6, reason)
        assert result.stopped == reason
        [last] = [each for each in events if isinstance(each, CheckpointSaved) and each.step == 6]
        assert event.at_s <= last.at_s
        assert isinstance(events[-1], RunFinished)

    def test_to_go_on_one_has_to_say_so(self, stopped: Stopped, forking: RecordingPlatform, tmp_path: Path) -> None:
        job_file, result, _ = stopped
        assert resumable_step(result.store) is None
        with pytest.raises(
            InputError, match=r"is complete: it stopped early after step 6 of 9, because .* --past-stop"
        ):
            zooid.resume(result.store, platform=forking)
        events: list[Event] = []
        patient = write_hooked_job(tmp_path / "job.py", fields={**WORSENING, "monitor": "zooid.Monitor()"})
        plan = plan_by_hand(job_file, num_replicas=2, cuts=2)
        resumed = zooid.resume(
            result.store, job_file=patient, plan=plan, past_stop=True, platform=forking, on_event=events.append
        )
        assert evaluated_steps(events) == [8, 9]
        assert resumed.stopped == ""
        assert resumed.best_checkpoint == result.best_checkpoint
        assert train_composed_layers(job_file).weight_difference(resumed.checkpoint) <= TOLERANCE


def test_an_interrupted_run_stops_where_it_would_have(forking: RecordingPlatform, tmp_path: Path) -> None:
    """What was evaluated before its checkpoint counts, and is not evaluated again."""
    job_file = write_hooked_job(tmp_path / "job.py", extra=CRASH, fields={**WORSENING, "on_event": "crash"})
    job_file.with_suffix(".crash").write_text("4")
    with pytest.raises(MemberFailed, match="as the test asks"):
        train(job_file, tmp_path / "run", forking, num_replicas=1, rule=CheckpointRule(every_steps=4))
    store = open_store((tmp_path / "run").as_uri())
    assert complete_steps(store)[-1] in (2, 4)
    first_step = complete_steps(store)[-1]
    job_file.with_suffix(".crash").unlink()
    events: list[Event] = []
    plan = plan_by_hand(job_file, cuts=3)
    result = zooid.resume(store.url, plan=plan, platform=forking, on_event=events.append)
    assert evaluated_steps(events) == [step for step in (4, 6) if step > first_step]
    assert result.stopped.endswith("in 2 evaluations (job.monitor)")
    assert result.best_checkpoint == f"{store.url}/{keys.checkpoint(2)}"
    assert train_composed_layers(job_file, num_steps=6).weight_difference(result.checkpoint) <= TOLERANCE


def test_a_model_that_only_gets_worse_is_kept_as_it_was(forking: RecordingPlatform, tmp_path: Path) -> None:
    """Evaluated before training, which has step 0 and is the plain model's."""
    fields = {**WORSENING, "evaluate_first": "True", "evaluate_every": "3"}
    job_file = write_hooked_job(tmp_path / "job.py", fields=fields)
    result, events = train(
        job_file, tmp_path / "run", forking, num_replicas=1, cuts=2, rule=CheckpointRule(every_steps=1, keep=1)
    )
    assert evaluated_steps(events) == [0, 3, 6]
    first = next(event for event in events if isinstance(event, Evaluated))
    job = load_job(job_file)
    assert first.loss == pytest.approx(evaluation_loss(job, build_model(job)), rel=0, abs=TOLERANCE)
    assert first.epoch == 0
    assert complete_steps(open_store(result.store)) == [0, 6]
    assert result.best_checkpoint == f"{result.store}/{keys.checkpoint(0)}"


WISH = """
def wish(event):
    kind = type(event).__name__
    return WISHES.get((kind, event.step))

"""


def wishing(file: Path, wishes: str, **fields: str) -> Path:
    extra = f"WISHES = {wishes}\n{WISH}"
    return write_hooked_job(file, extra=extra, fields={**EVALUATION, "on_event": "wish", **fields})


class TestWishes:
    @pytest.mark.parametrize(("num_replicas", "cuts"), [(1, 1), (2, 2)], ids=["1x1", "2x2"])
    def test_a_step_answered_with_stop_is_followed_by_one_more(
        self, forking: RecordingPlatform, tmp_path: Path, num_replicas: int, cuts: int
    ) -> None:
        job_file = wishing(tmp_path / "job.py", "{('StepCommitted', 3): zooid.Wish.STOP}")
        result, events = train(job_file, tmp_path / "run", forking, num_replicas=num_replicas, cuts=cuts)
        assert [event.step for event in events if isinstance(event, StepCommitted)] == list(range(5))
        assert result.stopped == "job.on_event wished so"
        expected = train_composed_layers(job_file, num_steps=5)
        assert expected.weight_difference(result.checkpoint) <= TOLERANCE

    def test_an_evaluation_is_answered_at_once(self, forking: RecordingPlatform, tmp_path: Path) -> None:
        wishes = "{('Evaluated', 3): zooid.Wish.KEEP_BEST, ('Evaluated', 6): zooid.Wish.SAVE | zooid.Wish.STOP}"
        job_file = wishing(tmp_path / "job.py", wishes)
        result, events = train(job_file, tmp_path / "run", forking)
        saved = [(event.step, event.is_best) for event in events if isinstance(event, CheckpointSaved)]
        assert saved == [(3, True), (6, False)]
        assert len(result.losses) == 6
        assert result.best_checkpoint == f"{result.store}/{keys.checkpoint(3)}"

    def test_what_is_asked_for_while_another_is_written_is_written_too(
        self, forking: RecordingPlatform, tmp_path: Path
    ) -> None:
        """A checkpoint is due after every step, and wished for after some."""
        job_file = wishing(tmp_path / "job.py", "{('StepCommitted', at): zooid.Wish.SAVE for at in (0, 3, 6)}")
        _, events = train(job_file, tmp_path / "run", forking, rule=CheckpointRule(every_steps=1, keep=NUM_STEPS))
        saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
        assert {2, 5, 8, NUM_STEPS} <= set(saved)
        assert len(saved) == len(set(saved))

    def test_a_stop_before_training_keeps_the_initial_weights(self, forking: RecordingPlatform, tmp_path: Path) -> None:
        job_file = wishing(tmp_path / "job.py", "{('Evaluated', 0): zooid.Wish.STOP}", evaluate_first="True")
        result, _ = train(job_file, tmp_path / "run", forking)
        assert (result.losses, result.checkpoint) == ((), f"{result.store}/{keys.checkpoint(0)}")
        with pytest.raises(InputError, match="it stopped early after step 0 of 9"):
            zooid.resume(result.store, platform=forking)

    def test_the_last_step_can_be_the_best(self, tmp_path: Path) -> None:
        job_file = wishing(
            tmp_path / "job.py", "{('StepCommitted', 8): zooid.Wish.KEEP_BEST}", evaluation="None", metrics="{}"
        )
        with at_work_alone(job_file) as (trainer, _, _, _):
            trainer.run()
            assert trainer.ledger.best_step == NUM_STEPS

    def test_anything_else_is_refused(self, tmp_path: Path) -> None:
        job_file = wishing(tmp_path / "job.py", "{('StepCommitted', 1): 'stop'}")
        with (
            at_work_alone(job_file) as (trainer, _, _, _),
            pytest.raises(JobError, match=r"job.on_event returned 'stop'; return None, or zooid.Wish.SAVE, "),
        ):
            trainer.run()


PLATEAU = {
    **EVALUATION,
    "evaluate_every": "1",
    "scheduler": "lambda own: torch.optim.lr_scheduler.ReduceLROnPlateau(own, factor=0.5, patience=0, threshold=0.02)",
}


class TestPlateau:
    def test_rates_are_those_of_the_plain_loop(self, forking: RecordingPlatform, tmp_path: Path) -> None:
        """Also after an interruption, in another layout."""
        job_file = write_hooked_job(tmp_path / "job.py", extra=CRASH, fields={**PLATEAU, "on_event": "crash"})
        job_file.with_suffix(".crash").write_text("6")
        events: list[Event] = []
        plan = plan_by_hand(job_file, cuts=2, transport="tcp")
        url = (tmp_path / "run").as_uri()
        rule = CheckpointRule(every_steps=4)
        with pytest.raises(MemberFailed, match="as the test asks"):
            zooid.train(job_file, store=url, plan=plan, checkpoints=rule, platform=forking, on_event=events.append)
        job_file.with_suffix(".crash").unlink()
        assert complete_steps(open_store(url)) == [0, 4]
        result = zooid.resume(url, plan=plan_by_hand(job_file, cuts=3), platform=forking, on_event=events.append)
        expected = train_composed_layers(job_file)
        rates = {event.step: event.learning_rate for event in events if isinstance(event, StepCommitted)}
        assert tuple(rates[step] for step in range(NUM_STEPS)) == expected.rates
        assert len(set(expected.rates)) > 2, "or nothing was reduced"
        assert len(set(expected.rates[:4])) > 1, "or nothing was reduced before the interruption"
        assert expected.weight_difference(result.checkpoint) <= TOLERANCE


AVERAGE = """
from pathlib import Path

averages = {}


def average(num_steps, weights):
    for name, tensor in weights.items():
        last = averages.setdefault(name, tensor.clone())
        last.copy_(tensor if not tensor.is_floating_point() else last + 0.1 * (tensor - last))
    if num_steps == NUM_STEPS:
        torch.save(averages, Path(__file__).with_name(f"{sorted(weights)[0]}.pt"))

"""


def test_weights_are_shown_after_every_step(forking: RecordingPlatform, tmp_path: Path) -> None:
    """Each member averages its own stage; together they have the average of the whole model."""
    extra = f"NUM_STEPS = {NUM_STEPS}\n{AVERAGE}"
    job_file = write_hooked_job(tmp_path / "job.py", extra=extra, fields={"on_weights": "average"})
    train(job_file, tmp_path / "run", forking)
    found: dict[str, torch.Tensor] = {}
    for file in tmp_path.glob("*.pt"):
        found |= torch.load(file)
    averages: dict[str, torch.Tensor] = {}

    def observe(model: nn.Module) -> None:
        tensors: Mapping[str, Any] = model.state_dict()
        for name, tensor in tensors.items():
            last = averages.setdefault(name, tensor.clone())
            last.copy_(tensor if not tensor.is_floating_point() else last + 0.1 * (tensor - last))

    train_composed_layers(job_file, observe=observe)
    assert found.keys() == averages.keys()
    assert max(float((found[name] - averages[name]).abs().max()) for name in averages) <= TOLERANCE


PRINTING = """
print("the job file is run")

def speak(event):
    if type(event).__name__ == "StepCommitted" and event.step == 1:
        print("step", event.step, "is done [bold]")
        print("and this has no end", end="")

"""


class TestPrints:
    """What the job's code prints in members reaches whoever has started the run."""

    def test_in_a_script_they_go_to_standard_output(
        self, forking: RecordingPlatform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job_file = write_hooked_job(tmp_path / "job.py", extra=PRINTING, fields={"on_event": "speak", "epochs": "1"})
        for cuts, expected in (
            (1, {"the job file is run": 1, "step 1 is done [bold]": 1, "and this has no end": 1}),
            (
                2,
                {
                    "[r0s0] the job file is run": 1,
                    "[r0s1] the job file is run": 1,
                    "[r0s0] step 1 is done [bold]": 1,
                    "[r0s0] and this has no end": 1,
                },
            ),
        ):
            plan = plan_by_hand(job_file, cuts=cuts)
            capsys.readouterr()  # planning by hand runs the file, too
            zooid.train(job_file, store=(tmp_path / f"run-{cuts}").as_uri(), plan=plan, platform=forking)
            assert Counter(capsys.readouterr().out.splitlines()) == expected

    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_views_show_them_as_they_are(self, is_terminal: bool) -> None:
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=is_terminal, width=60)
        with view_for(console, as_json=False) as view:
            view.show(
                RunStarted(
                    at_s=0.0,
                    run="7",
                    store="file:///run",
                    layout="1x2",
                    num_steps=9,
                    first_step=0,
                    batch_size=4,
                    predicted_step_s=1.0,
                    predicted_run_s=9.0,
                    predicted_usd=0.0,
                    members=("r0s0", "r0s1"),
                    prices="of nobody",
                )
            )
            view.show(MemberPrinted(at_s=0.0, member="r0s1", text="loss [red] 3"))
        assert "[r0s1] loss [red] 3" in shown.getvalue()

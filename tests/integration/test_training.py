"""What a training loop has beside its steps: evaluation, metrics, events, learning rates, clipping, and steps that are
dropped and run again as if nothing had happened."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn

import zooid
from lab.runs import run_by_hand
from tests.integration.hooked_jobs import (
    EVALUATION,
    NUM_EVALUATED,
    STEPS_PER_EPOCH,
    at_work_alone,
    hook_loss,
    write_hooked_job,
)
from tests.integration.jobs import plan_by_hand
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import Trained, train_composed_layers
from zooid.coordinator import RunResult
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, PeerLost, StoreError
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import TransportName
from zooid.core.runs.events import Evaluated, Event, StepCommitted
from zooid.core.runs.roster import Ruling
from zooid.layers import build_model, build_scheduler, collate
from zooid.worker.member import train_task
from zooid.worker.member.training_loop import Trainer
from zooid.worker.state.training_state import TrainingState
from zooid.worker.step.executor import Executor, Recording
from zooid.worker.step.transactions import Transactions
from zooid.worker.step.verdict import Verdict

pytestmark = pytest.mark.timeout(120)

TOLERANCE = 1e-9
NUM_STEPS = 9
NUM_EPOCHS = 3
STOP_S = 0.1

NOTE_EVENTS = """
import json, sys
from pathlib import Path

def note(event):
    \"\"\"Beside the run's folder, which the URL of the member's spec names, as its only argument does the member.\"\"\"
    spec = Path(sys.argv[1].removeprefix("file://"))
    with spec.parents[2].with_suffix(".events").open("a") as file:
        file.write(json.dumps([spec.stem, type(event).__name__, event.step]) + "\\n")

"""


@dataclass(frozen=True)
class Finished:
    """A run of two replicas of two stages."""

    job_file: Path
    transport: str
    folder: Path
    result: RunResult
    events: list[Event]

    @property
    def steps(self) -> list[StepCommitted]:
        return [event for event in self.events if isinstance(event, StepCommitted)]

    @property
    def evaluated(self) -> list[Evaluated]:
        return [event for event in self.events if isinstance(event, Evaluated)]


@dataclass(frozen=True)
class Expected:
    """What one process comes to."""

    trained: Trained
    norms: list[float]
    rates: list[float]


@pytest.fixture(scope="module")
def whole_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {**EVALUATION, "on_event": "note", "data_workers": "1"}
    return write_hooked_job(tmp_path_factory.mktemp("whole") / "whole.py", extra=NOTE_EVENTS, fields=fields)


@pytest.fixture(scope="module", params=["store", "gloo"])
def finished(request: pytest.FixtureRequest, whole_job: Path, forking: RecordingPlatform) -> Finished:
    transport: TransportName = request.param
    plan = plan_by_hand(whole_job, num_replicas=2, cuts=2, schedule="1f1b", transport=transport)
    run = whole_job.parent / f"run-{transport}"
    events: list[Event] = []
    result = zooid.train(whole_job, store=run.as_uri(), plan=plan, platform=forking, on_event=events.append)
    return Finished(whole_job, transport, run, result, events)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    job_file = write_hooked_job(tmp_path_factory.mktemp("reference") / "plain.py")
    norms: list[float] = []
    clip = nn.utils.clip_grad_norm_

    def noting(parameters: Any, most: float) -> torch.Tensor:
        norm = clip(parameters, most)
        norms.append(float(norm))
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.utils, "clip_grad_norm_", noting)
        trained = train_composed_layers(job_file)
    return Expected(trained, norms, learning_rates(job_file))


def learning_rates(job_file: Path) -> list[float]:
    job = load_job(job_file)
    optimizer = job.optimizer([("weight", nn.Parameter(torch.ones(1)))])
    scheduler = build_scheduler(job, optimizer)
    assert scheduler is not None
    rates = []
    for _ in range(NUM_STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


class TestWholeJob:
    def test_trains_to_what_one_process_does(self, finished: Finished, expected: Expected) -> None:
        in_loss = expected.trained.loss_difference(finished.result.losses)
        in_weights = expected.trained.weight_difference(finished.result.checkpoint)
        print(f"{finished.transport}: loss {in_loss:.1e}, weights {in_weights:.1e}")
        assert len(finished.result.losses) == NUM_STEPS
        assert in_loss <= TOLERANCE
        assert in_weights <= TOLERANCE

    def test_tells_norms_as_they_are_before_clipping(self, finished: Finished, expected: Expected) -> None:
        found = [step.gradient_norm for step in finished.steps]
        assert found == pytest.approx(expected.norms, rel=0, abs=TOLERANCE)
        clip_norm = load_job(finished.job_file).clip_norm
        assert clip_norm is not None
        assert max(found) > clip_norm, "or nothing was clipped"

    def test_tells_the_learning_rate_of_every_step(self, finished: Finished, expected: Expected) -> None:
        assert [step.learning_rate for step in finished.steps] == expected.rates
        assert len(set(expected.rates)) == NUM_STEPS

    def test_evaluates_after_every_epoch(self, finished: Finished) -> None:
        epochs = [(event.epoch, event.step, event.num_samples) for event in finished.evaluated]
        assert epochs == [(n, (n + 1) * STEPS_PER_EPOCH, NUM_EVALUATED) for n in range(NUM_EPOCHS)]
        assert len({event.loss for event in finished.evaluated}) == NUM_EPOCHS

    def test_evaluation_is_that_of_the_plain_model(self, finished: Finished) -> None:
        """In evaluation mode, all samples at once, with the weights of the checkpoint."""
        job = load_job(finished.job_file)
        model = build_model(job)
        model.load_state_dict(zooid.load_checkpoint(finished.result.checkpoint))
        assert job.evaluation is not None
        assert job.loss is not None
        batch = collate(job.evaluation(), range(NUM_EVALUATED), job)
        with torch.no_grad():
            output = model.eval()(*batch.args)
            loss = float(job.loss(output, batch.target))
            total, weight = job.metrics["margin"](output, batch.target)
            metrics = {
                "accuracy": float(job.metrics["accuracy"](output, batch.target)),
                "margin": float(total / weight),
            }
        last = finished.evaluated[-1]
        assert last.loss == pytest.approx(loss, rel=0, abs=TOLERANCE)
        assert last.metrics == pytest.approx(metrics, rel=0, abs=TOLERANCE)

    def test_only_the_first_member_calls_back_and_with_everything(self, finished: Finished) -> None:
        lines = finished.folder.with_suffix(".events").read_text().splitlines()
        noted = [json.loads(line) for line in lines]
        wanted = []
        for epoch in range(NUM_EPOCHS):
            start = epoch * STEPS_PER_EPOCH
            wanted += [["r0s0", "StepCommitted", start + number] for number in range(STEPS_PER_EPOCH)]
            wanted.append(["r0s0", "Evaluated", start + STEPS_PER_EPOCH])
        assert noted == wanted


def test_a_stage_that_is_frozen_trains_the_others(forking: RecordingPlatform, tmp_path: Path) -> None:
    """No gradient crosses the cut, and an optimizer of trained parameters would have none there."""
    frozen = """
class Frozen(Normed):
    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)

def optimizer_of_trained(named):
    return torch.optim.AdamW([(name, each) for name, each in named if each.requires_grad], lr=1e-2)

"""
    fields = {"model": "lambda: Frozen().double()", "optimizer": "optimizer_of_trained"}
    job_file = write_hooked_job(tmp_path / "frozen.py", extra=frozen, fields=fields)
    plan = plan_by_hand(job_file, cuts=(1,), schedule="1f1b", transport="tcp")
    events: list[Event] = []
    result = zooid.train(
        job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=forking, on_event=events.append
    )
    expected = train_composed_layers(job_file)
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(result.checkpoint) <= TOLERANCE
    initial, trained = build_model(load_job(job_file)).state_dict(), zooid.load_checkpoint(result.checkpoint)
    still = {name for name in initial if torch.equal(initial[name], trained[name])}
    assert still == {"first.weight", "first.bias", "temperature"}
    assert {event.learning_rate for event in events if isinstance(event, StepCommitted)} == {None}


class Boom(RuntimeError):
    """What disturbs a step."""


def snapshot(trainer: Trainer) -> dict[str, Any]:
    """Everything that a step may change, as it is now."""
    state = trainer._training
    assert isinstance(state, TrainingState)
    assert state.optimizer is not None
    found: dict[str, Any] = {name: value.clone() for name, value in state.module.state_dict().items()}
    for number, values in state.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": value.clone() for name, value in values.items()}
    return found | {"rate": torch.tensor(trainer._training.learning_rate), "scale": torch.tensor(trainer.scale.factor)}


def assert_same_bits(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name, value in found.items() if not torch.equal(value, wanted[name])] == []


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {"on_event": "seen.append"}
    return write_hooked_job(tmp_path_factory.mktemp("dropped") / "hooked.py", extra="seen = []\n", fields=fields)


@pytest.fixture(scope="module")
def undisturbed(hooked: Path) -> tuple[list[float], dict[str, Any]]:
    """Losses and the last state of a member that trains alone."""
    with at_work_alone(hooked) as (trainer, _, _, _):
        trainer.run()
        return losses(trainer), snapshot(trainer)


class TestDroppedStep:
    STEP = 3

    @pytest.mark.parametrize("where", ["in a forward", "in the vote"])
    def test_leaves_no_trace_and_is_run_again(
        self, hooked: Path, undisturbed: tuple[list[float], dict[str, Any]], where: str
    ) -> None:
        with at_work_alone(hooked) as (trainer, keeper, _, _):
            for _ in range(self.STEP):
                trainer.run_step()
            before = snapshot(trainer)
            if where == "in a forward":
                hook_loss(hooked, once_at_call(4, Boom("in the fourth grain")))
                with pytest.raises(Boom, match="in the fourth grain"):
                    trainer.run_step()
            else:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(keeper, "is_written", once_at_call(1, StoreError("the disk is full")))
                    with pytest.raises(StoreError, match="the disk is full"):
                        trainer.run_step()
            assert trainer.num_applied == self.STEP
            assert_same_bits(snapshot(trainer), before)
            trainer.run()
            assert losses(trainer) == undisturbed[0]
            assert_same_bits(snapshot(trainer), undisturbed[1])

    def test_a_loss_after_the_apply_leaves_no_sums_for_the_next_step(
        self, hooked: Path, undisturbed: tuple[list[float], dict[str, Any]]
    ) -> None:
        """A message to a member that was lost may fail when the step is applied already."""
        run = Executor.run

        def run_and_lose(executor: Executor, *lists: Any) -> Recording:
            run(executor, *lists)
            executor.has_computed = True
            raise PeerLost("its last message never arrived")

        with at_work_alone(hooked) as (trainer, _, _, _):
            for _ in range(self.STEP):
                trainer.run_step()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Executor, "run", run_and_lose)
                with pytest.raises(PeerLost):
                    trainer.run_step()
            assert trainer.num_applied == self.STEP + 1
            trainer.run()
            assert losses(trainer) == undisturbed[0]
            assert_same_bits(snapshot(trainer), undisturbed[1])

    def test_sums_of_a_step_that_others_had_not_reached_leave_no_trace(
        self, hooked: Path, undisturbed: tuple[list[float], dict[str, Any]]
    ) -> None:
        """This member had applied the step that stands, and computed its grains of the next one."""
        with run_by_hand(hooked, 1) as (store, specs), train_task.open_member(specs[0], store, Abort()) as own:
            first = own.first_roster
            with pytest.MonkeyPatch.context() as patch, own.under(first) as (trainer, _):
                for _ in range(self.STEP):
                    trainer.run_step()
                patch.setattr(Transactions, "_judge", lose_a_member)
                with pytest.raises(PeerLost):
                    trainer.run_step()
            own._changed_at_s = time.perf_counter()
            assert own._answer(first).has_finished
            ruling = Ruling(kind="stands", numbers=own._state.progress.applied)
            second = structs.replace(first, change=1, resume_step=self.STEP - 1, ruling=ruling)
            own._take_up(second)
            with own.under(second) as (trainer, _):
                trainer.run()
                assert_same_bits(snapshot(trainer), undisturbed[1])

    def test_an_abort_from_another_thread_ends_it_at_once(self, hooked: Path) -> None:
        abort, set_at_s = Abort(), list[float]()
        is_inside = threading.Event()

        def set_it() -> None:
            assert is_inside.wait(10)
            set_at_s.append(time.perf_counter())
            abort.set("the roster changes")

        def wait_for_abort() -> None:
            is_inside.set()
            thread.join(10)

        thread = threading.Thread(target=set_it)
        with at_work_alone(hooked, abort=abort) as (trainer, _, _, _):
            for _ in range(self.STEP):
                trainer.run_step()
            before = snapshot(trainer)
            thread.start()
            hook_loss(hooked, at_call(3, wait_for_abort))
            with pytest.raises(CommAborted, match="the roster changes"):
                trainer.run_step()
            print(f"ended {time.perf_counter() - set_at_s[0]:.3f} s after the abort")
            assert time.perf_counter() - set_at_s[0] < STOP_S
            assert_same_bits(snapshot(trainer), before)


def losses(trainer: Trainer) -> list[float]:
    """As the job's own `on_event` has seen them."""
    on_event: Any = trainer._job.on_event
    return [event.loss for event in on_event.__self__]


def at_call(number: int, action: Callable[[], None]) -> Callable[[], Any]:
    calls = iter(range(1, 10**6))

    def call() -> bool:
        if next(calls) == number:
            action()
        return False

    return call


def lose_a_member(*arguments: object) -> Verdict:
    raise PeerLost("r1s0 is lost")


def once_at_call(number: int, error: Exception) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return at_call(number, fail)

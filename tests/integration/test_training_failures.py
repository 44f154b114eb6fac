"""What goes wrong while a member trains is said in words that name it, and what was saved before stays as it was."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import zooid
from tests.integration.hooked_jobs import (
    BATCH_SIZE,
    EVALUATION,
    GRAIN_SIZE,
    STEPS_PER_EPOCH,
    at_work_alone,
    write_hooked_job,
)
from tests.integration.jobs import BAD_SAMPLE, TORN, plan_by_hand
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import sample_plan, train_composed_layers
from zooid.core.errors import JobError, MemberFailed, TrainingError, ZooidError
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import Event, StepCommitted
from zooid.layers import build_model, check_data, check_job
from zooid.schedule.samples import even_shares, split_grains
from zooid.store import open_store
from zooid.store.checkpoint_index import last_step

pytestmark = pytest.mark.timeout(120)

EVERY_STEP = CheckpointRule(every_steps=1, keep=1000)


def end_of(
    forking: RecordingPlatform,
    job_file: Path,
    plan: Plan,
    store: Path,
    rule: CheckpointRule | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> ZooidError:
    """The error with which a run ends."""
    forking.forget()
    with pytest.raises(ZooidError) as caught:
        zooid.train(job_file, store=store.as_uri(), plan=plan, platform=forking, checkpoints=rule, on_event=on_event)
    return caught.value


def replica_with(job_file: Path, sample: int, step: int) -> int | None:
    """Which of two replicas computes a sample in this step; None where neither does."""
    job = load_job(job_file)
    grains = sample_plan(job, len(check_data(job))).grains(step)
    owners = split_grains(len(grains), even_shares(BATCH_SIZE // GRAIN_SIZE, 2))
    found = [replica for replica, own in enumerate(owners) if any(sample in grains[number] for number in own)]
    return found[0] if found else None


class TestNumbersThatAreNotFinite:
    @pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
    def test_an_overflow_of_fp16_is_skipped_and_training_goes_on(
        self, forking: RecordingPlatform, tmp_path: Path
    ) -> None:
        """A loss so steep that its first scales overflow; then it trains as one process does."""
        fields = {
            "model": "lambda: Normed()",
            "data": "lambda: TensorDataset(build_data().tensors[0].float(), build_data().tensors[1])",
            "loss": "lambda output, target: 100 * F.cross_entropy(output, target)",
            "autocast": "'fp16'",
            "scheduler": "None",
        }
        job_file = write_hooked_job(tmp_path / "steep.py", fields=fields)
        events: list[Event] = []
        plan = plan_by_hand(job_file, cuts=2)
        result = zooid.train(
            job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=forking, on_event=events.append
        )
        skipped = [event.is_skipped for event in events if isinstance(event, StepCommitted)]
        print(f"skipped: {skipped}")
        assert skipped[0]
        assert not skipped[-1]
        expected = train_composed_layers(job_file)
        assert tuple(skipped) == expected.skipped
        assert expected.losses == pytest.approx(result.losses, rel=1e-3)

    def test_a_loss_names_its_step_and_its_member_and_spoils_no_checkpoint(
        self, forking: RecordingPlatform, tmp_path: Path
    ) -> None:
        """A sample spoils when there is a checkpoint before it; the other replica drops the step as well."""
        spoil = f"""
from pathlib import Path

class Spoiled(TensorDataset):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        saved = (Path(__file__).parent / "run" / "checkpoints").glob("*[1-9]/manifest.json")
        return (image * float("nan") if index == {BAD_SAMPLE} and any(saved) else image), label

"""
        fields = {"data": "lambda: Spoiled(*build_data().tensors)", "epochs": "100_000", "scheduler": "None"}
        job_file = write_hooked_job(tmp_path / "spoiled.py", extra=spoil, fields=fields)
        plan = plan_by_hand(job_file, num_replicas=2, cuts=())
        events: list[Event] = []
        error = end_of(forking, job_file, plan, tmp_path / "run", EVERY_STEP, events.append)
        assert isinstance(error, MemberFailed)
        said = re.search(
            r"member r([01])s0 found a loss that is not finite in step (\d+) \(sum over its samples nan\)", str(error)
        )
        assert said is not None, str(error)
        replica, step = int(said[1]), int(said[2])
        assert replica == replica_with(job_file, BAD_SAMPLE, step)
        assert error.member == f"r{replica}s0"
        assert "the last checkpoint is untouched" in str(error)
        assert "lower the learning rate or look at the data" in str(error)
        assert all(event.step < step for event in events if isinstance(event, StepCommitted))
        assert len(str(error).splitlines()) == 1
        assert 0 < last_step(open_store((tmp_path / "run").as_uri())) <= step
        assert open_store((tmp_path / "run").as_uri()).list(keys.COMM) == []
        model = build_model(load_job(job_file))
        model.load_state_dict(zooid.load_checkpoint((tmp_path / "run").as_uri()))
        assert all(bool(value.isfinite().all()) for value in model.state_dict().values())

    def test_gradients_are_told_from_losses(self, tmp_path: Path) -> None:
        """The slope of a square root at 0, which the chain rule multiplies by 0."""
        rooted = """
def rooted_loss(output, target):
    return F.cross_entropy(output, target) + (output - output.detach()).square().sum().sqrt()

"""
        job_file = write_hooked_job(tmp_path / "rooted.py", extra=rooted, fields={"loss": "rooted_loss"})
        with at_work_alone(job_file) as (trainer, _, _, _):
            with pytest.raises(TrainingError) as caught:
                trainer.run()
            assert trainer.num_applied == 0
        assert "member r0s0 found gradients that are not finite in step 0, although the loss is" in str(caught.value)
        assert "look for a square root or logarithm at 0" in str(caught.value)

    def test_a_step_whose_samples_weigh_nothing_is_refused(self, tmp_path: Path) -> None:
        weightless = """
calls = itertools.count()

def weightless_loss(output, target):
    is_weightless = torch.is_grad_enabled() and next(calls) > 9
    return F.cross_entropy(output, target, reduction="sum"), 0.0 if is_weightless else float(len(target))

"""
        job_file = write_hooked_job(tmp_path / "weightless.py", extra=weightless, fields={"loss": "weightless_loss"})
        with at_work_alone(job_file) as (trainer, _, _, _), pytest.raises(TrainingError) as caught:
            trainer.run()
        assert "have a total weight of 0" in str(caught.value)
        assert "the weights that job.loss returns must sum to more than 0" in str(caught.value)


class TestWhatTheJobBrings:
    def test_a_sample_that_cannot_be_read_ahead_is_named(self, tmp_path: Path) -> None:
        fields = {"data": "lambda: Torn(*build_data().tensors)", "data_workers": "1"}
        job_file = write_hooked_job(tmp_path / "torn.py", extra=TORN, fields=fields)
        said = rf"^job\.data\(\)\[{BAD_SAMPLE}\] raised OSError: the file is torn"
        with at_work_alone(job_file) as (trainer, _, _, _), pytest.raises(JobError, match=said) as caught:
            trainer.run()
        assert "In a process that reads samples ahead" in "".join(caught.value.__notes__)

    def test_a_callback_that_raises_is_named(self, tmp_path: Path) -> None:
        fields = {"on_event": "lambda event: print(1 / (2 - event.step))"}
        job_file = write_hooked_job(tmp_path / "calling.py", fields=fields)
        with at_work_alone(job_file) as (trainer, _, _, _):
            with pytest.raises(JobError, match=r"^job\.on_event raised ZeroDivisionError: division by zero$"):
                trainer.run()
            assert trainer.num_applied == 3, "the step itself was not to blame"

    def test_a_metric_that_raises_later_is_named(self, tmp_path: Path) -> None:
        """It works on the one sample on which a job is tried."""
        metric = "lambda output, target: output[0 if len(target) == 1 else 99].sum()"
        fields = {**EVALUATION, "metrics": f"{{'single': {metric}}}"}
        job_file = write_hooked_job(tmp_path / "measuring.py", fields=fields)
        with at_work_alone(job_file) as (trainer, _, _, _):
            with pytest.raises(JobError, match=r"^job\.metrics\['single'\] raised IndexError: "):
                trainer.run()
            assert trainer.num_applied == STEPS_PER_EPOCH

    def test_a_metric_that_raises_at_once_is_refused_before_members_start(
        self, forking: RecordingPlatform, tmp_path: Path
    ) -> None:
        plan = plan_by_hand(write_hooked_job(tmp_path / "job.py"), cuts=())
        fields = {**EVALUATION, "metrics": "{'accuracy': accuracy, 'half': lambda output, target: output[99]}"}
        job_file = write_hooked_job(tmp_path / "job.py", fields=fields)
        error = end_of(forking, job_file, plan, tmp_path / "run")
        assert isinstance(error, JobError)
        assert str(error).startswith("job.metrics['half'] raised IndexError: ")
        assert "a metric is called as metric(output, target)" in str(error)
        assert forking.launched == ["preparer"]
        assert open_store((tmp_path / "run").as_uri()).is_empty()

    def test_a_scheduler_that_needs_evaluations_is_refused_without_them(self, tmp_path: Path) -> None:
        fields = {"scheduler": "torch.optim.lr_scheduler.ReduceLROnPlateau"}
        job = load_job(write_hooked_job(tmp_path / "plateau.py", fields=fields))
        with pytest.raises(JobError) as caught:
            check_job(job)
        assert str(caught.value) == (
            "job.scheduler returned a ReduceLROnPlateau, which follows the results of evaluations, but the job has "
            "none; give job.evaluation, or a scheduler that follows the number of steps"
        )

    def test_a_scheduler_that_looks_the_wrong_way_is_refused(self, tmp_path: Path) -> None:
        scheduler = "lambda own: torch.optim.lr_scheduler.ReduceLROnPlateau(own, mode='max')"
        fields = {**EVALUATION, "scheduler": scheduler}
        job = load_job(write_hooked_job(tmp_path / "plateau.py", fields=fields))
        with pytest.raises(
            JobError, match=r"mode 'max', but the value it follows is better when smaller; give it mode"
        ):
            check_job(job)
        watched = {**fields, "monitor": "zooid.Monitor(metric='accuracy', mode='max')"}
        check_job(load_job(write_hooked_job(tmp_path / "watched.py", fields=watched)))

    def test_an_optimizer_that_needs_a_closure_is_refused_by_name(self, tmp_path: Path) -> None:
        fields = {"optimizer": "torch.optim.LBFGS", "scheduler": "None"}
        job = load_job(write_hooked_job(tmp_path / "closure.py", fields=fields))
        with pytest.raises(
            JobError, match=r"returned a LBFGS, whose step needs a closure .* such as torch.optim.AdamW"
        ):
            check_job(job)


@contextmanager
def tiny_disk(folder: Path, size: str) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_ends_the_run_and_spoils_no_checkpoint(forking: RecordingPlatform, tmp_path: Path) -> None:
    """Room for a handful of checkpoints of almost two megabytes each."""
    wide = """
class Wide(Normed):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 1024)
        self.out = nn.Linear(1024, 10)

"""
    job_file = write_hooked_job(
        tmp_path / "wide.py", extra=wide, fields={"model": "lambda: Wide().double()", "epochs": "100_000"}
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    with tiny_disk(disk, "10m"):
        error = end_of(forking, job_file, plan_by_hand(job_file, cuts=()), disk / "run", EVERY_STEP)
        assert isinstance(error, MemberFailed)
        assert "the checkpoint of step" in str(error)
        assert "No space left on device" in str(error)
        assert f"those before it are untouched, and when the store works again, `zooid resume {disk.as_uri()}" in str(
            error
        )
        assert "StoreError" in error.traceback_text
        step = last_step(open_store((disk / "run").as_uri()))
        assert step > 0
        initial = build_model(load_job(job_file)).state_dict()
        saved = zooid.load_checkpoint((disk / "run").as_uri())
        assert saved.keys() == initial.keys()
        assert not torch.equal(saved["hidden.weight"], initial["hidden.weight"])

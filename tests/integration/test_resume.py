"""A run that was cut short goes on from its last checkpoint in any layout, and in plain PyTorch, as if never stopped.

Losses and weights are compared with those of one process that was never interrupted.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

import zooid
from tests.integration.interpreters import run_zooid
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform, still_running
from tests.integration.reference import Trained, sample_plan, train_composed_layers, train_untouched_model
from tests.integration.test_docs import job_file as documented_job
from tests.processes import heed_signals
from zooid.core.errors import CheckpointError, InputError, JobError, MemberFailed
from zooid.core.jobs.job import load_job
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import CheckpointSaved, Event, OptimizerChanged, StepCommitted
from zooid.layers import build_model, check_data, collate
from zooid.report import view_for
from zooid.store import clear, open_store
from zooid.store.checkpoint_index import complete_steps, last_step, read_manifest

pytestmark = pytest.mark.timeout(300)

TOLERANCE = 1e-9
NUM_EPOCHS = 10
NUM_STEPS = 40
EVERY = 5
PAUSED_STEP = 17
KEEP = 2
ZOOID = [sys.executable, "-m", "zooid.cli.main"]


@dataclass(frozen=True)
class CutShort:
    """A run of two replicas of two stages, whose members were killed soon after a checkpoint."""

    job_file: Path
    folder: Path
    reference: Trained

    @property
    def step(self) -> int:
        """Of its last checkpoint."""
        return last_step(open_store(self.folder.as_uri()))

    def copied(self, target: Path) -> str:
        """The URL of a copy, so that several tests can go on from the same point."""
        shutil.copytree(self.folder, target)
        return target.as_uri()


PAUSE = """
import time
from pathlib import Path


def pause(event):
    file = Path(__file__).with_name("pause")
    while file.exists() and event.step == int(file.read_text()):
        time.sleep(0.02)

"""
"""The first member waits after the step that a file names, until it is ended or the file is gone."""


class Watch(list[Event]):
    """Collects events, and kills all members when it is told of a step."""

    def __init__(self, step: int, platform: RecordingPlatform) -> None:
        super().__init__()
        self._step = step
        self._platform = platform

    def append(self, event: Event) -> None:
        super().append(event)
        if isinstance(event, StepCommitted) and event.step == self._step:
            for pid in still_running(list(self._platform.pids.values())):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def killed_after(step: int, job_file: Path, platform: RecordingPlatform) -> Iterator[Watch]:
    """The run inside, which this watches, loses all members after this step and ends."""
    pause = job_file.with_name("pause")
    pause.write_text(str(step))
    try:
        with pytest.raises(MemberFailed, match=r"was killed by signal 9"):
            yield Watch(step, platform)
    finally:
        pause.unlink()
    assert still_running(list(platform.pids.values())) == []


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> CutShort:
    """With dropout, clipping and a learning rate that changes, and neither grain nor replicas dividing a step."""
    folder = tmp_path_factory.mktemp("interrupted")
    fields = {
        "clip_norm": "0.5",
        "scheduler": f"lambda own: torch.optim.lr_scheduler.OneCycleLR(own, max_lr=2e-2, total_steps={NUM_STEPS + 1})",
    }
    own = {"epochs": str(NUM_EPOCHS), "on_event": "pause"}
    job_file = write_job(folder / "job.py", extra=PAUSE, fields={**own, **fields})
    platform, run = RecordingPlatform(), folder / "run"
    plan, rule = plan_by_hand(job_file, num_replicas=2), CheckpointRule(every_steps=EVERY, keep=KEEP)
    with killed_after(PAUSED_STEP, job_file, platform) as watch:
        zooid.train(job_file, store=run.as_uri(), plan=plan, checkpoints=rule, on_event=watch.append, platform=platform)
    saved = [event.step for event in watch if isinstance(event, CheckpointSaved)]
    assert saved[-1] == last_step(open_store(run.as_uri()))
    return CutShort(job_file, run, train_composed_layers(job_file))


def test_what_is_left_is_complete_and_can_be_resumed(interrupted: CutShort) -> None:
    store = open_store(interrupted.folder.as_uri())
    assert 0 < interrupted.step <= PAUSED_STEP + 1
    assert len(complete_steps(store)) <= KEEP
    manifest = read_manifest(store, interrupted.step)
    names = sorted(name for shard in manifest.shards for name in shard.names)
    assert names == sorted(build_model(load_job(interrupted.job_file)).state_dict())
    assert len(manifest.shards) == 4, "both replicas of both stages have written"
    assert store.list(keys.COMM) == []
    assert store.list(keys.LEASES) == []


@pytest.mark.parametrize(
    ("num_replicas", "cuts"), [(1, (1, 2, 4)), (3, ()), (2, (2,)), (1, ())], ids=["1x4", "3x1", "2x2", "1x1"]
)
def test_any_layout_goes_on_as_if_nothing_had_been(
    interrupted: CutShort, forking: RecordingPlatform, tmp_path: Path, num_replicas: int, cuts: tuple[int, ...]
) -> None:
    url = interrupted.copied(tmp_path / "run")
    step = interrupted.step
    plan = plan_by_hand(interrupted.job_file, num_replicas=num_replicas, cuts=cuts)
    events: list[Event] = []
    result = zooid.resume(url, plan=plan, on_event=events.append, platform=forking)
    rest = Trained(interrupted.reference.losses[step:], interrupted.reference.state)
    difference = rest.loss_difference(result.losses), rest.weight_difference(url)
    print(f"from step {step}: largest differences of a loss {difference[0]:.3g}, of a weight {difference[1]:.3g}")
    assert max(difference) <= TOLERANCE
    assert [event.step for event in events if isinstance(event, StepCommitted)] == list(range(step, NUM_STEPS))
    store = open_store(url)
    assert complete_steps(store)[-1] == NUM_STEPS
    assert len(complete_steps(store)) <= KEEP, "the rule of the run holds"
    with pytest.raises(InputError, match=r"is complete: its checkpoint has all 40 steps"):
        zooid.resume(url)


def test_a_run_can_be_cut_short_again_and_again(
    interrupted: CutShort, forking: RecordingPlatform, tmp_path: Path
) -> None:
    """In another layout each time; the last one as before."""
    url = interrupted.copied(tmp_path / "run")
    losses: dict[int, float] = {}
    for num_replicas, cuts in ((1, (3,)), (3, ())):
        platform, first_step = RecordingPlatform(), last_step(open_store(url))
        plan = plan_by_hand(interrupted.job_file, num_replicas=num_replicas, cuts=cuts)
        with killed_after(first_step + EVERY + 4, interrupted.job_file, platform) as watch:
            zooid.resume(url, plan=plan, on_event=watch.append, platform=platform)
        losses |= {event.step: event.loss for event in watch if isinstance(event, StepCommitted)}
        assert last_step(open_store(url)) > first_step
    step = last_step(open_store(url))
    result = zooid.resume(url, platform=forking)
    assert result.plan.layout == "3x1"
    losses |= dict(enumerate(result.losses, start=step))
    expected = dict(enumerate(interrupted.reference.losses))
    assert sorted(losses) == list(range(interrupted.step, NUM_STEPS))
    assert max(abs(losses[each] - expected[each]) for each in losses) <= TOLERANCE
    assert interrupted.reference.weight_difference(url) <= TOLERANCE


OPTIMIZERS = {
    "SGD": "torch.optim.SGD(named, lr=0.1, momentum=0.9)",
    "Adafactor": "torch.optim.Adafactor(named, lr=1e-2)",
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_plain_pytorch_goes_on_as_if_nothing_had_been(
    forking: RecordingPlatform, tmp_path: Path, optimizer: str
) -> None:
    """The user's own model, loss and optimizer, from a checkpoint of two stages in the middle of their run."""
    fields = {"optimizer": f"lambda named: {optimizer}"}
    job_file = write_job(tmp_path / "plain.py", dropout=0.0, fields=fields)
    run, rule = (tmp_path / "run").as_uri(), CheckpointRule(every_steps=EVERY, keep=KEEP + 1)
    plan = plan_by_hand(job_file, num_replicas=1)
    zooid.train(job_file, store=run, plan=plan, checkpoints=rule, platform=forking)
    reference = train_untouched_model(job_file)
    step = complete_steps(open_store(run))[0]
    url = f"{run}/{keys.checkpoint(step)}"

    job = load_job(job_file)
    data = check_data(job)
    model = build_model(job)
    model.load_state_dict(zooid.load_checkpoint(url))
    own = job.optimizer(model.named_parameters())
    first_step = zooid.load_optimizer(url, own, model.named_parameters())
    samples = sample_plan(job, len(data))
    assert first_step == step
    assert 0 < step < samples.num_steps
    losses = []
    for step in range(first_step, samples.num_steps):
        batch = collate(data, [index for grain in samples.grains(step) for index in grain], job)
        own.zero_grad()
        assert job.loss is not None
        loss = job.loss(model(*batch.args), batch.target)
        loss.backward()
        own.step()
        losses.append(float(loss.detach()))
    rest = Trained(reference.losses[first_step:], reference.state)
    assert rest.loss_difference(tuple(losses)) <= TOLERANCE
    for name, tensor in model.state_dict().items():
        assert float((tensor - reference.state[name]).abs().max()) <= TOLERANCE, name


class TestRefused:
    CHANGES = (
        ("150,", "151,", "its number of samples was 150, and is 151"),
        ("batch_size=40", "batch_size=30", "its batch size was 40, and is 30"),
        ("grain_size=6", "grain_size=7", "its grain size was 6, and is 7"),
        ("epochs=10", "epochs=11", "its number of epochs was 10, and is 11"),
        ("seed=3", "seed=4", "its seed was 3, and is 4"),
        ("nn.Linear(64, 24)", "nn.Linear(64, 24, bias=False)", "its model is another one"),
        ("AdamW(named", "Adam(named", "its optimizer was AdamW, and is Adam"),
    )

    def test_a_job_that_has_changed(self, interrupted: CutShort, forking: RecordingPlatform, tmp_path: Path) -> None:
        """Everything that matters is named at once; nothing has begun."""
        url = interrupted.copied(tmp_path / "run")
        text = interrupted.job_file.read_text()
        for old, new, _ in self.CHANGES:
            assert old in text
            text = text.replace(old, new)
        changed = tmp_path / "job.py"
        changed.write_text(text)
        forking.forget()
        with pytest.raises(JobError) as caught:
            zooid.resume(url, job_file=changed, platform=forking)
        for _, _, message in self.CHANGES:
            assert message in str(caught.value)
        assert forking.launched == ["checker"]
        assert last_step(open_store(url)) == interrupted.step
        assert keys.roster(1) not in open_store(url).list(keys.ROSTERS)

    def test_a_shard_that_was_cut_short_is_named_and_can_be_put_back(
        self, interrupted: CutShort, forking: RecordingPlatform, tmp_path: Path
    ) -> None:
        url = interrupted.copied(tmp_path / "run")
        plan = plan_by_hand(interrupted.job_file, cuts=())
        store = open_store(url)
        key = read_manifest(store, interrupted.step).optimizer[-1].key
        whole = bytes(store.get(key))
        store.put(key, whole[:-100])
        with pytest.raises(MemberFailed) as caught:
            zooid.resume(url, plan=plan, platform=forking)
        assert f"{key} was cut short or altered" in str(caught.value)
        store.delete([key])
        with pytest.raises(CheckpointError, match=f"lacks {key}"):
            zooid.resume(url, plan=plan, platform=forking)
        store.put(key, whole)
        assert len(zooid.resume(url, plan=plan, platform=forking).losses) == NUM_STEPS - interrupted.step


class TestChangedSettings:
    """What the job file gives the optimizer holds, and the difference is said once."""

    LATE = "lambda own: torch.optim.lr_scheduler.StepLR(own, step_size=2, gamma=0.5)"
    SAVING = "lambda event: zooid.Wish.SAVE if event.step in (2, 4) else None"
    """Checkpoints of 4 and 6 steps: a wish travels with the next vote. Due ones are left out where writing is slow."""

    def resume(self, file: Path, url: str, step: int, forking: RecordingPlatform) -> list[Event]:
        """From this step, as if the run had been cut short before its later checkpoints."""
        for later in complete_steps(open_store(url)):
            if later > step:
                clear(open_store(url), keys.checkpoint(later))
        events: list[Event] = []
        zooid.resume(url, job_file=file, on_event=events.append, platform=forking)
        return events

    def test_the_learning_rate_of_the_job_file_holds_and_is_said(
        self, forking: RecordingPlatform, tmp_path: Path
    ) -> None:
        fields = {"epochs": "2", "scheduler": self.LATE, "on_event": self.SAVING}
        first = write_job(tmp_path / "job.py", fields=fields)
        url, rule = (tmp_path / "run").as_uri(), CheckpointRule(every_steps=100, keep=9)
        zooid.train(first, store=url, plan=plan_by_hand(first), checkpoints=rule, platform=forking)
        slower = "lambda named: torch.optim.AdamW(named, lr=1e-3, weight_decay=0.5)"
        second = write_job(tmp_path / "slower.py", fields={**fields, "optimizer": slower})
        events = self.resume(second, url, 4, forking)
        [changed] = [event for event in events if isinstance(event, OptimizerChanged)]
        assert (changed.settings["lr"], changed.before["lr"]) == (("0.001",), ("0.01",))
        rates = {event.step: event.learning_rate for event in events if isinstance(event, StepCommitted)}
        assert rates == pytest.approx({4: 1e-3 / 4, 5: 1e-3 / 4, 6: 1e-3 / 8, 7: 1e-3 / 8})
        assert self.line(changed) == (
            "optimizer: learning rate 0.001 (was 0.01 in the checkpoint), "
            "weight decay 0.5 (was 0.01 in the checkpoint)\n"
        )
        again = self.resume(second, url, 6, forking)
        assert not any(isinstance(event, OptimizerChanged) for event in again), "the checkpoint has the new rate"

    def line(self, event: Event) -> str:
        console = Console(file=io.StringIO(), width=400)
        with view_for(console, as_json=False) as view, console.capture() as shown:
            view.show(event)
        return shown.get()


class TestCommandLine:
    def test_ctrl_c_says_how_to_go_on_and_the_command_does(self, tmp_path: Path) -> None:
        """Planned anew from the run's own profile, into another layout."""
        (tmp_path / "job.py").write_text(PAUSE + documented_job().replace("epochs=2", "epochs=8, on_event=pause"))
        (tmp_path / "pause").write_text("20")
        url = (tmp_path / "run").as_uri()
        with subprocess.Popen(
            [*ZOOID, "train", "job.py", "--layout", "2x1", "--store", url, "--checkpoint-every", "3steps", "--json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_signals,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            events = (json.loads(line)["event"] for line in process.stdout)
            assert "checkpoint_saved" in events
            os.killpg(process.pid, signal.SIGINT)
            process.stdout.read()
            words = process.stderr.read().splitlines()
            assert process.wait(30) == 130
        (tmp_path / "pause").unlink()
        step = last_step(open_store(url))
        assert step > 0
        assert words[-2:] == [
            f"the checkpoint of step {step} is complete; to continue: zooid resume {url}",
            "interrupted: all members have ended",
        ]

        resumed = self.resume(tmp_path, url, "--layout", "1x2", "--keep-checkpoints", "1", "--json")
        assert resumed.returncode == 0, resumed.stderr
        lines = [json.loads(line) for line in resumed.stdout.splitlines()]
        started = next(line for line in lines if line["event"] == "run_started")
        assert (started["layout"], started["first_step"], started["num_steps"]) == ("1x2", step, 40)
        assert "profile" not in [line.get("phase") for line in lines], "the run's own profile serves"
        assert complete_steps(open_store(url)) == [40]

        again = self.resume(tmp_path, url)
        assert again.returncode == 2
        assert "is complete: its checkpoint has all 40 steps" in again.stderr

    def resume(self, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_zooid("resume", *arguments, cwd=folder)

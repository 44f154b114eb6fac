"""A run of two replicas of two stages is the single-process run, number for number, on every kind of store."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import zooid
from lab.servers import moto_s3
from tests.integration.jobs import AUGMENTED, COARSE, plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform, still_running
from tests.integration.reference import Trained, train_composed_layers, train_untouched_model
from zooid.coordinator import RunResult
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Limits
from zooid.core.runs import keys
from zooid.core.runs.events import CheckpointSaved, Event, MemberStarted, PhaseStarted, RunFinished, StepCommitted
from zooid.layers import build_model, check_data
from zooid.store import ObjectStore, open_store
from zooid.store.checkpoint_index import last_step, read_manifest

pytestmark = pytest.mark.timeout(180)

TOLERANCE = 1e-9
NUM_STEPS = 20
NUM_EPOCHS = 5
MEMBERS = ["r0s0", "r0s1", "r1s0", "r1s1"]


@dataclass(frozen=True)
class Finished:
    """One run from its job to its end, and what it should have come to."""

    job_file: Path
    result: RunResult
    events: list[Event]
    platform: RecordingPlatform
    store: ObjectStore
    reference: Trained

    @property
    def steps(self) -> list[StepCommitted]:
        return [event for event in self.events if isinstance(event, StepCommitted)]


def on_file(folder: Path) -> Finished:
    """The whole way, profile and plan included; an epoch ends with one sample, so that one replica has none."""
    job_file = write_job(folder / "whole_way.py", num_samples=121)
    url = (folder / "run").as_uri()
    platform, events = RecordingPlatform(), list[Event]()
    limits = Limits(num_replicas=2, num_stages=2)
    result = zooid.train(job_file, store=url, limits=limits, on_event=events.append, platform=platform)
    assert platform.launched == ["profiler", "preparer", *MEMBERS]
    return Finished(job_file, result, events, platform, open_store(url), train_composed_layers(job_file))


def on_s3(folder: Path, bucket_url: str) -> Finished:
    """With a plan given, and samples that are augmented at random; an epoch ends with a step of 30 samples."""
    fields = {**COARSE, "data": "lambda: Augmented(*build_data().tensors)"}
    job_file = write_job(folder / "planned.py", num_samples=150, extra=AUGMENTED, fields=fields)
    url = f"{bucket_url}/run"
    plan = plan_by_hand(job_file, num_replicas=2)
    platform, events = RecordingPlatform(), list[Event]()
    result = zooid.train(job_file, store=url, plan=plan, on_event=events.append, platform=platform)
    assert platform.launched == ["preparer", *MEMBERS]
    return Finished(job_file, result, events, platform, open_store(url), train_composed_layers(job_file))


@pytest.fixture(scope="module", params=["file", "s3"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "file":
        yield on_file(folder)
        return
    with moto_s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield on_s3(folder, server.bucket_url("equality"))


def test_losses_are_those_of_one_process(finished: Finished) -> None:
    assert len(finished.result.losses) == NUM_STEPS
    difference = finished.reference.loss_difference(finished.result.losses)
    print(f"largest difference of a loss: {difference:.3g}")
    assert difference <= TOLERANCE


def test_weights_are_those_of_one_process(finished: Finished) -> None:
    difference = finished.reference.weight_difference(finished.result.checkpoint)
    print(f"largest difference of a weight after {NUM_STEPS} steps: {difference:.3g}")
    assert difference <= TOLERANCE
    assert finished.reference.weight_difference(finished.result.store) == difference, "the run's last checkpoint"


def test_weights_have_moved_where_they_should(finished: Finished) -> None:
    """Equality would prove nothing about a run that trained nothing."""
    initial = build_model(load_job(finished.job_file)).state_dict()
    trained = zooid.load_checkpoint(finished.result.checkpoint)
    still = {name for name in initial if torch.equal(initial[name], trained[name])}
    assert still == {"center", "spare", "frozen.weight", "frozen.bias"}


def test_the_checkpoint_loads_into_the_plain_model(finished: Finished) -> None:
    job = load_job(finished.job_file)
    model = build_model(job)
    model.load_state_dict(zooid.load_checkpoint(finished.result.checkpoint), strict=True)
    images, labels = check_data(job)[:]
    assert job.loss is not None
    with torch.no_grad():
        assert math.isfinite(float(job.loss(model.eval()(images), labels)))


def test_each_shard_is_a_safetensors_file_with_the_models_names(finished: Finished, tmp_path: Path) -> None:
    names: list[str] = []
    assert last_step(finished.store) == NUM_STEPS
    manifest = read_manifest(finished.store, NUM_STEPS)
    for number, shard in enumerate(manifest.shards):
        file = tmp_path / f"{number}.safetensors"
        file.write_bytes(finished.store.get(shard.key))
        with safe_open(file, framework="pt") as opened:
            names += opened.keys()
    assert len(manifest.shards) == len(MEMBERS)
    assert sorted(names) == sorted(build_model(load_job(finished.job_file)).state_dict())


def test_every_sample_counts_once_per_epoch(finished: Finished) -> None:
    num_samples = len(check_data(load_job(finished.job_file)))
    per_epoch: Counter[int] = Counter()
    for event in finished.steps:
        per_epoch[event.epoch] += event.num_samples
    assert per_epoch == dict.fromkeys(range(NUM_EPOCHS), num_samples)
    assert [event.step for event in finished.steps] == list(range(NUM_STEPS))


def test_events_tell_the_run_from_start_to_end(finished: Finished) -> None:
    phases = [event.phase for event in finished.events if isinstance(event, PhaseStarted)]
    assert phases[-2:] == ["prepare", "train"]
    started = [event.member for event in finished.events if isinstance(event, MemberStarted)]
    assert sorted(started) == MEMBERS
    saved = [event for event in finished.events if isinstance(event, CheckpointSaved)]
    assert [(event.step, event.url) for event in saved] == [(NUM_STEPS, finished.result.checkpoint)]
    assert isinstance(finished.events[-1], RunFinished)


def test_nothing_is_left_behind(finished: Finished) -> None:
    assert finished.store.list(keys.COMM) == []
    assert still_running(list(finished.platform.pids.values())) == []
    if finished.store.url.startswith("file://"):
        folder = Path(finished.store.url.removeprefix("file://"))
        assert [path for path in folder.rglob("*") if "#" in path.name] == []
        assert [path for path in (folder / keys.COMM).rglob("*") if not path.is_dir()] == []


def test_the_reference_is_the_untouched_model_where_dropout_is_zero(tmp_path: Path) -> None:
    job_file = write_job(tmp_path / "certain.py", num_samples=121, dropout=0.0)
    composed, untouched = train_composed_layers(job_file), train_untouched_model(job_file)
    assert composed.loss_difference(untouched.losses) <= TOLERANCE
    assert composed.state.keys() == untouched.state.keys()
    for name, tensor in untouched.state.items():
        torch.testing.assert_close(composed.state[name], tensor, rtol=0, atol=TOLERANCE)

"""A profile that is made span by span says what the profile of the whole model says."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zooid.core.jobs.job import Job
from zooid.core.plans.profile import LayerProfile, Profile
from zooid.core.runs.spec import ProfilerSpec
from zooid.layers import check_job, faithful_layers
from zooid.profiler.job_profile import measure_job
from zooid.profiler.spans import cut_spans
from zooid.store import open_store

WIDTH = 512
OF_LAYER = WIDTH * WIDTH * 4
SIZES = [1, 2, 4, 8, 16, 32]
"""As many of them are timed as there is time for."""
NUM_UNMARKED = 2
"""No gradient crosses the cut behind a frozen layer, so that the whole model is not marked there."""


class Model(nn.Module):
    """Frozen at the bottom, a skip connection over three layers, dropout, statistics, and a weight that is used twice.

    Every layer of the skip connection has a weight of the same size, so that a span can end inside it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.branch = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(self.frozen(x)))
        change = x
        for layer in self.branch:
            change = F.dropout(torch.tanh(layer(change)), 0.1, self.training)
        result: torch.Tensor = self.last(self.norm(x + change))
        return result


@pytest.fixture(autouse=True)
def rough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOOID_PROFILE_EFFORT", "0.05")


@pytest.fixture
def job() -> Job:
    samples = torch.utils.data.TensorDataset(*torch.rand(2, 64, WIDTH))
    return Job(
        model=Model,
        loss=F.mse_loss,
        data=lambda: samples,
        optimizer=lambda named: torch.optim.AdamW(named, lr=1e-3),
        batch_size=32,
        epochs=1,
    )


@pytest.fixture
def measure(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Measure":
    monkeypatch.setenv("ZOOID_PROFILE_EFFORT", "0.05")
    return Measure(job, tmp_path, monkeypatch)


class Measure:
    """Makes profiles of one job, with more or less room for the state of a span."""

    def __init__(self, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._job = job
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.progress: list[int] = []

    def __call__(self, room_bytes: float | None = None) -> Profile:
        if room_bytes is not None:
            self._monkeypatch.setattr("zooid.profiler.spans.room_for_state", lambda *known_bytes: room_bytes)
        store = open_store((self._folder / str(room_bytes)).as_uri())
        spec = ProfilerSpec(
            run="1", member="profiler", store=store.url, job_file="job.py", num_threads=1, site="here",
            num_neighbours=0, memory_bytes=2**40,
        )  # fmt: skip
        self.progress = []
        return measure_job(self._job, spec, store, lambda done, total: self.progress.append(done))


def test_spans_are_as_long_as_they_fit(job: Job) -> None:
    layered = faithful_layers(check_job(job))
    one_layer = cut_spans(layered, 0)
    assert one_layer == [(layer, layer + 1) for layer in range(layered.num_layers)]
    assert cut_spans(layered, 2**40) == [(0, layered.num_layers)]


def test_spans_say_what_the_whole_says(measure: Measure) -> None:
    whole = measure()
    assert measure.progress == list(range(8))
    for room_bytes in (OF_LAYER, 2.5 * OF_LAYER):
        spans = measure(room_bytes)
        assert measure.progress == list(range(8))
        assert_same_profile(spans, whole)


def assert_same_profile(spans: Profile, whole: Profile) -> None:
    assert spans.model_fingerprint == whole.model_fingerprint
    assert spans.tied == whole.tied
    assert spans.largest_grain == whole.largest_grain == 32
    assert spans.inputs == whole.inputs
    assert spans.optimizer_bytes_per_parameter_byte == pytest.approx(whole.optimizer_bytes_per_parameter_byte, rel=0.2)
    assert spans.optimizer_s_per_byte > 0
    assert spans.reduce_s_per_byte > 0
    assert spans.knee >= 1
    for one, other in zip(spans.layers, whole.layers, strict=True):
        assert_same(one, other)
    for one, other in list(zip(spans.layers, whole.layers, strict=True))[NUM_UNMARKED:]:
        for own_bytes, whole_bytes in zip(one.memory, other.memory, strict=True):
            assert own_bytes.at(32) == pytest.approx(whole_bytes.at(32), rel=0.03, abs=64), one.name


def assert_same(one: LayerProfile, other: LayerProfile) -> None:
    assert one.name == other.name
    assert (one.parameter_bytes, one.buffer_bytes, one.boundary) == (
        other.parameter_bytes,
        other.buffer_bytes,
        other.boundary,
    )
    sizes = [point.num_samples for point in one.points]
    assert sizes == SIZES[: len(sizes)]
    assert len(sizes) >= 2
    assert {gradient.name for gradient in one.gradients} == {gradient.name for gradient in other.gradients}

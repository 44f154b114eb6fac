"""A model that no member can hold is profiled, planned, prepared and trained by members that are held to their size."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

import zooid
from tests.integration.reference import train_untouched_model
from tests.integration.test_docs import may_confine
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.core.plans.plan import Limits
from zooid.core.resources.offer import Offer
from zooid.core.resources.size import Size
from zooid.core.runs.events import Event, MemberStarted, MemberTrained
from zooid.platforms import Launch
from zooid.platforms.local import LocalPlatform

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not may_confine(), reason="this process may not make cgroups"),
]

MEMORY_BYTES = 576 * 2**20
"""PyTorch itself takes more than half of it."""
WIDTH, DEPTH = 2048, 37
JOB = f"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import zooid


def build_model():
    return nn.Sequential(*(nn.Sequential(nn.Linear({WIDTH}, {WIDTH}), nn.Tanh()) for _ in range({DEPTH})))


def build_data():
    return TensorDataset(*torch.rand(2, 16, {WIDTH}, generator=torch.Generator().manual_seed(5)))


job = zooid.Job(
    model=build_model,
    loss=F.mse_loss,
    data=build_data,
    optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
    batch_size=8,
    grain_size=4,
    epochs=1,
)
"""


class Watched(LocalPlatform):
    def __init__(self) -> None:
        super().__init__()
        self.launched: dict[str, Launch] = {}

    def create(self, launches: Sequence[Launch]) -> None:
        self.launched |= {launch.member: launch for launch in launches}
        super().create(launches)


def small_offer(on: str) -> Offer:
    """A whole core, so that the test is not slower than it must be."""
    return structs.replace(resolve_offer(on), vcpus=1.0, memory_bytes=MEMORY_BYTES)


def test_a_model_that_fits_nowhere_whole_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = tmp_path / "job.py"
    job_file.write_text(JOB)
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "disk"))
    monkeypatch.setenv("ZOOID_PROFILE_EFFORT", "0.05")
    monkeypatch.setattr("zooid.coordinator.plans.offer_names.resolve_offer", small_offer)
    seen: list[Event] = []
    platform = Watched()
    result = zooid.train(
        job_file,
        store=(tmp_path / "run").as_uri(),
        on="limited:aws.lambda.512",
        limits=Limits(max_members=12),
        platform=platform,
        on_event=seen.append,
    )

    assert {launch.ticket.size for launch in platform.launched.values()} == {Size(1.0, MEMORY_BYTES)}
    assert {"profiler", "preparer", "r0s0"} <= platform.launched.keys()
    weights_bytes = [event.parameter_bytes for event in seen if isinstance(event, MemberStarted)]
    assert len(weights_bytes) == len(result.plan.stages) * result.plan.num_replicas
    assert sum(weights_bytes) > MEMORY_BYTES * result.plan.num_replicas
    needed_bytes = max(stage.memory_bytes for stage in result.plan.stages)
    peaks_bytes = [event.peak_bytes for event in seen if isinstance(event, MemberTrained)]
    assert max(peaks_bytes) < 1.1 * needed_bytes, "what was measured in spans tells what a stage needs"
    assert list((tmp_path / "disk").glob("zooid-*")) == []

    wanted = train_untouched_model(job_file)
    assert len(wanted.losses) == 2
    assert result.losses == pytest.approx(wanted.losses, rel=1e-5)
    assert wanted.weight_difference(result.checkpoint) < 1e-6

"""1F1B keeps the activations of fewer grains than GPipe, and the memory of a real member shows it as predicted."""

from pathlib import Path

import pytest

import zooid
from tests.integration.jobs import plan_by_hand
from zooid.core.plans.plan import ScheduleName
from zooid.core.plans.profile import Bytes
from zooid.core.runs.events import Event, MemberTrained
from zooid.predictor.stage_memory import grain_bytes
from zooid.schedule.pipelines import StepShape, most_kept

pytestmark = pytest.mark.timeout(120)

GRAIN_SIZE = 7
NUM_GRAINS = 10
SAMPLE_BYTES = 2**20
"""Allocators round much smaller or larger tensors up by more than a few percent."""
NUM_LAYERS = 6

JOB = f'''"""Few parameters, and activations as large as the inputs behind every layer."""

import torch
from torch import nn

import zooid


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.tanh(x * self.scale)


class Samples:
    """They take no memory themselves, nor leave holes in it."""

    def __len__(self):
        return {GRAIN_SIZE * NUM_GRAINS}

    def __getitem__(self, index):
        return torch.tensor(index / 100).expand({SAMPLE_BYTES // 4}), torch.zeros(())


job = zooid.Job(
    model=lambda: nn.Sequential(*(Layer() for _ in range({NUM_LAYERS}))),
    loss=lambda output, target: output.mean(),
    data=Samples,
    optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
    batch_size={GRAIN_SIZE * NUM_GRAINS},
    grain_size={GRAIN_SIZE},
    epochs=2,
)
'''


def first_stage_peak_bytes(job_file: Path, schedule: ScheduleName) -> int:
    """Of a process of its own, which has done nothing else."""
    events: list[Event] = []
    plan = plan_by_hand(job_file, cuts=2, schedule=schedule, transport="tcp")
    zooid.train(job_file, store=(job_file.parent / schedule).as_uri(), plan=plan, on_event=events.append)
    (peak,) = [each.peak_bytes for each in events if isinstance(each, MemberTrained) and each.member == "r0s0"]
    return peak


def kept_grains(schedule: ScheduleName) -> int:
    return most_kept(StepShape(schedule, 2).step([range(NUM_GRAINS)]).lists[0][0])


def test_the_difference_of_two_schedules_is_what_was_predicted(tmp_path: Path) -> None:
    job_file = tmp_path / "wide.py"
    job_file.write_text(JOB)
    value = Bytes(fixed=0.0, per_sample=float(SAMPLE_BYTES))
    layer = (value, value, value)
    """It keeps its output, which is the next one's input; what it multiplies is gone when its forward ends."""
    per_grain, _ = grain_bytes([layer] * (NUM_LAYERS // 2), GRAIN_SIZE, received=value.at(GRAIN_SIZE))
    predicted = (kept_grains("gpipe") - kept_grains("1f1b")) * per_grain
    measured = first_stage_peak_bytes(job_file, "gpipe") - first_stage_peak_bytes(job_file, "1f1b")
    print(f"1F1B saves {measured / 2**20:.0f} MiB where {predicted / 2**20:.0f} MiB were predicted")
    assert measured == pytest.approx(predicted, rel=0.25)

"""A run of Hydrozoa's kind: one command, from the profile to a trained checkpoint, on serverless containers alone."""

from pathlib import Path

import pytest

from lab.endpoints.azure_scenes import azure_container_scene
from tests.integration.reference import train_composed_layers
from tests.integration.rented_run import slowness, train_and_lose_a_member
from tests.integration.travelling_jobs import TOLERANCE
from tests.scenes import or_skip
from zooid.core.runs.events import MemberExited, RosterChanged

pytestmark = [pytest.mark.timeout(580), pytest.mark.thorough]

LIFETIME_S, STARTUP_S = 20.0, 5.0
"""The time limit of containers where each has a core, and what they need to start there."""
NUM_STEPS = 40
FIRST = {"r0s0", "r0s1", "r1s0", "r1s1"}
"""Members with which the run begins."""
JOB = """
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import zooid

torch.set_default_dtype(torch.float64)


def build_model():
    torch.manual_seed(0)
    first = [nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Tanh()]
    return nn.Sequential(*first, nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))


def build_data():
    chance = torch.Generator().manual_seed(5)
    return TensorDataset(torch.rand(640, 20, generator=chance), torch.randint(0, 3, (640,), generator=chance))


def pause(event):
    time.sleep(PACE_S)


job = zooid.Job(
    model=build_model,
    loss=F.cross_entropy,
    data=build_data,
    optimizer=lambda named: torch.optim.SGD(named, lr=0.05, momentum=0.9),
    batch_size=32,
    grain_size=4,
    epochs=2,
    on_event=pause,
)
"""


def written_job(folder: Path, pace_s: float) -> Path:
    folder.mkdir()
    job_file = folder / "job.py"
    job_file.write_text(JOB.replace("PACE_S", str(pace_s)))
    return job_file


def test_one_command_trains_on_containers_that_are_lost_and_run_out_of_time(tmp_path: Path) -> None:
    """Two replicas of a pipeline: one container vanishes, the others hand over before their time is over."""
    expected = train_composed_layers(written_job(tmp_path / "alone", 0.0))
    factor = slowness(4)
    lifetime_s = LIFETIME_S * factor
    job_file = written_job(tmp_path / "hydrozoa", lifetime_s / NUM_STEPS)  # so that no member lives as long as the run
    own = {"lifetime": f"{lifetime_s:.0f} s", "startup": f"{STARTUP_S * factor:.0f} s"}
    with or_skip(azure_container_scene(**own)) as scene:
        trained = train_and_lose_a_member(scene, job_file, "--layout", "2x2", victim="r1s0", after_step=3)
        assert scene.left_behind is not None
        assert scene.left_behind(trained.run) == []
        assert len(trained.losses) == NUM_STEPS
        assert expected.loss_difference(trained.losses) <= TOLERANCE
        assert expected.weight_difference(trained.url) <= TOLERANCE
        assert "measuring the layers and the store" in trained.output
        [lost] = [event for event in trained.of_kind(MemberExited) if event.member == "r1s0"]
        assert "does not exist any more" in lost.exit_text
        rosters = [set(event.members) for event in trained.of_kind(RosterChanged)]
        assert not FIRST & rosters[-1], "none of the first members lives so long"
        assert [roster for roster in rosters if len(roster) == len(FIRST) and not FIRST & roster], "all were succeeded"
        page = trained.page(tmp_path)
        assert [member for member in set.union(*rosters) - FIRST if member in page], "it shows successors at work"

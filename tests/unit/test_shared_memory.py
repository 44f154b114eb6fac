"""Worker processes that read data need shared memory, which functions lack: they are refused before anything starts."""

from pathlib import Path

import pytest
from torch.utils.data import TensorDataset

import zooid
from zooid.catalog import offer
from zooid.core.errors import JobError
from zooid.core.plans.plan import Limits
from zooid.layers.jobs import job_checks

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import zooid

job = zooid.Job(
    model=lambda: nn.Linear(2, 2),
    loss=nn.functional.cross_entropy,
    data=lambda: TensorDataset(torch.rand(8, 2), torch.zeros(8, dtype=torch.long)),
    optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
    batch_size=8,
    epochs=1,
    data_workers=2,
)
"""
REFUSED = (
    r"job.data_workers is 2, but members on aws.lambda.2048 have no shared memory \(/dev/shm\), through which worker "
    "processes hand over samples; set job.data_workers to 0, or give an offer that has it"
)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path / "job.py"


def test_functions_have_none_and_containers_have_it() -> None:
    assert not offer("aws.lambda.2048").has_shared_memory
    assert offer("aws.microvm.2048").has_shared_memory
    assert offer("azure.aci.cpu.4x8").has_shared_memory


@pytest.mark.parametrize("profile", [True, False])
def test_a_run_is_refused_before_its_folder_is_claimed(job_file: Path, tmp_path: Path, profile: bool) -> None:
    limits = Limits(num_replicas=1, num_stages=1)
    store = (tmp_path / "run").as_uri()
    with pytest.raises(JobError, match=REFUSED):
        zooid.train(job_file, store=store, on="aws.lambda.2048", limits=limits, profile=profile)
    assert not (tmp_path / "run").exists()


def test_no_plan_is_made(job_file: Path) -> None:
    with pytest.raises(JobError, match=REFUSED):
        zooid.plan(job_file, on=["local", "aws.lambda.2048"])


def test_nothing_is_measured(job_file: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=REFUSED):
        zooid.profile(job_file, on="aws.lambda.2048", store=(tmp_path / "measured").as_uri())


def test_this_machine_at_the_prices_of_functions_has_it(job_file: Path, tmp_path: Path) -> None:
    limits = Limits(num_replicas=1, num_stages=1)
    store = (tmp_path / "run").as_uri()
    result = zooid.train(job_file, store=store, on="local:aws.lambda.2048", limits=limits, profile=False)
    assert len(result.losses) == 1


def test_the_first_member_finds_what_the_file_does_not_say_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = zooid.Job(
        model=list, loss=None, data=lambda: TensorDataset(), optimizer=list, batch_size=8, epochs=1, data_workers=1
    )
    monkeypatch.setattr(job_checks, "SHARED_MEMORY", tmp_path / "shm")
    with pytest.raises(JobError, match=r"job.data_workers is 1, but this member has no shared memory"):
        job_checks.check_data(job)

"""A new run's layers are compared with the model once: by the profiler, or by the preparer where nobody profiled."""

import pytest
import torch
from msgspec import structs
from torch import nn
from torch.utils.data import TensorDataset

from tests.unit.profiles import layer, profile
from zooid.core.jobs.job import Job
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.layers import CheckedJob, LayeredModel, check_job, faithful_layers, trace_job
from zooid.store import ObjectStore, open_store
from zooid.worker.member import prepare_task


@pytest.fixture
def checked() -> CheckedJob:
    return check_job(
        Job(
            model=lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)),
            loss=nn.functional.cross_entropy,
            data=lambda: TensorDataset(torch.rand(8, 3), torch.zeros(8, dtype=torch.long)),
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            batch_size=4,
            epochs=1,
        )
    )


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[CheckedJob]:
    """Jobs whose layers were compared with their model."""
    seen: list[CheckedJob] = []

    def compare(job: CheckedJob) -> LayeredModel:
        seen.append(job)
        return faithful_layers(job)

    monkeypatch.setattr(prepare_task, "faithful_layers", compare)
    return seen


def put_profile(store: ObjectStore, fingerprint: str, why_whole: str = "") -> None:
    known = structs.replace(profile([layer(1.0)]), model_fingerprint=fingerprint, why_whole=why_whole)
    store.put(keys.PROFILE, encode_record(known))


def test_where_nobody_profiled_the_preparer_compares(checked: CheckedJob, compared: list[CheckedJob]) -> None:
    layered = prepare_task._compared_layers(checked, open_store("memory://no-profile"))
    assert compared == [checked]
    assert layered.num_layers == 2


def test_what_the_profiler_compared_is_not_compared_again(checked: CheckedJob, compared: list[CheckedJob]) -> None:
    known = faithful_layers(checked)
    store = open_store("memory://profiled")
    put_profile(store, known.fingerprint)
    layered = prepare_task._compared_layers(checked, store)
    assert compared == []
    assert layered.fingerprint == known.fingerprint


def test_the_profile_of_another_model_is_not_relied_on(checked: CheckedJob, compared: list[CheckedJob]) -> None:
    store = open_store("memory://another")
    put_profile(store, "another model")
    assert prepare_task._compared_layers(checked, store).num_layers == 2
    assert compared == [checked]


def test_a_model_that_was_found_to_train_as_a_whole_only_does_so(
    checked: CheckedJob, compared: list[CheckedJob]
) -> None:
    """A trace alone would cut it."""
    reason = "it draws its own random numbers"
    store = open_store("memory://whole")
    put_profile(store, trace_job(checked.job, checked.example, why_whole=reason).fingerprint, reason)
    layered = prepare_task._compared_layers(checked, store)
    assert (layered.num_layers, layered.why_whole) == (1, reason)
    assert compared == []

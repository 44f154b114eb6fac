"""Plans of jobs that nobody has measured: stages are as even as can be, and what is not known is not made up."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from zooid.catalog import local_offer
from zooid.coordinator.plans.plan_validation import fixed_layout
from zooid.core.errors import InputError, PlanError
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import FixedLayout, Limits, Plan
from zooid.core.plans.search_result import Goal
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.link import Links
from zooid.layers import CheckedJob, check_job, faithful_layers
from zooid.worker.member.even_plan import even_cuts, even_plan

OFFER = local_offer(1 << 34, "2026-01-01")
LAYOUT = Limits(num_replicas=2, num_stages=2)


@given(st.lists(st.integers(0, 20).map(float), min_size=1, max_size=8), st.data())
def test_cuts_are_those_of_brute_force(weights: list[float], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(weights)))

    def heaviest(ends: tuple[int, ...]) -> float:
        return max(sum(weights[first:end]) for first, end in zip((0, *ends), ends, strict=False))

    every = [(*cuts, len(weights)) for cuts in itertools.combinations(range(1, len(weights)), num_stages - 1)]
    found = even_cuts(weights, num_stages)
    assert found in every
    assert heaviest(found) == min(map(heaviest, every))


def checked(grain_size: int | None = None) -> CheckedJob:
    def model() -> nn.Module:
        layers = [module for _ in range(6) for module in (nn.Linear(8, 8), nn.Tanh())]
        return nn.Sequential(*layers, nn.Linear(8, 1))

    job = Job(
        model=model,
        loss=nn.functional.mse_loss,
        data=lambda: TensorDataset(torch.randn(40, 8), torch.randn(40, 1)),
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
        batch_size=16,
        grain_size=grain_size,
        epochs=3,
    )
    return check_job(job)


def layout(num_replicas: int, num_stages: int) -> FixedLayout:
    return fixed_layout(
        None, Limits(num_replicas=num_replicas, num_stages=num_stages, max_members=64), None, None, [OFFER]
    )


def test_a_plan_has_what_a_run_needs_and_says_what_is_not_known() -> None:
    job = checked()
    layered = faithful_layers(job)
    plan = even_plan(job.job, job.num_samples, layered, layout(2, 2), "/somewhere/job.py")
    assert (plan.job, plan.layout, plan.schedule, plan.transport) == ("job", "2x2", "1f1b", "store")
    assert plan.num_steps == 3 * 3
    assert plan.grain_size == 2, "8 grains: 2 for each of 2 stages of 2 replicas"
    bytes_of = [sum(layered.trained_bytes(stage.first_layer, stage.end_layer).values()) for stage in plan.stages]
    assert max(bytes_of) < 2 * min(bytes_of)
    assert decode_record(encode_record(plan), Plan, "plan.json") == plan
    with pytest.raises(PlanError, match="made without a profile, so its time, cost and memory are unknown"):
        _ = plan.prediction


def test_a_replica_of_one_stage_has_one_grain_unless_the_job_says() -> None:
    job = checked()
    layered = faithful_layers(job)
    assert even_plan(job.job, job.num_samples, layered, layout(2, 1), "job.py").grain_size == 8
    assert (
        even_plan(
            checked(grain_size=4).job, checked(grain_size=4).num_samples, layered, layout(2, 1), "job.py"
        ).grain_size
        == 4
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [(layout(1, 40), "40 stages are asked for, but the model has"), (layout(17, 1), "17 replicas are asked for")],
)
def test_what_is_too_small_for_a_layout_is_refused(wanted: FixedLayout, message: str) -> None:
    job = checked()
    with pytest.raises(PlanError, match=message):
        even_plan(job.job, job.num_samples, faithful_layers(job), wanted, "job.py")


@pytest.mark.parametrize(
    ("limits", "goal", "links", "message"),
    [
        (None, None, None, "needs a layout"),
        (Limits(num_replicas=2), None, None, "needs a layout"),
        (LAYOUT, "cheapest", None, "a goal cannot be honoured"),
        (LAYOUT, None, Links(zooid_version="0", date="2026-01-01", links=()), "links cannot be honoured"),
    ],
)
def test_wishes_that_only_a_profile_could_meet_are_refused(
    limits: Limits | None, goal: Goal | None, links: Links | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fixed_layout(None, limits, goal, links, [OFFER])

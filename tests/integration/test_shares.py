"""A member that becomes slower in mid-run gets fewer grains, and more when it recovers; the weights stay the same."""

import statistics
from pathlib import Path

import pytest
import torch

import zooid
from benchmarks.shares import EVEN, QUOTA, Watched
from lab.quotas import why_no_quotas
from zooid.core.jobs.job import load_job

pytestmark = pytest.mark.timeout(120)

TOLERANCE = 1e-9
CALM_STEPS, NUM_SLOW_STEPS, NUM_FREE_STEPS = 4, 12, 10
ROWS = 30
"""Rows of a sample: steps are so long that better shares save enough time to be worth it, on fast machines, too."""
PERIOD_US = 10_000
"""A short period of the quota, with which the steps of this test are about equally long."""
MAX_STEPS = 10
"""Number of steps within which shares must follow."""


@pytest.mark.skipif(why_no_quotas() != "", reason=why_no_quotas())
def test_shares_follow_a_quota_and_its_end(tmp_path: Path) -> None:
    num_steps = CALM_STEPS + NUM_SLOW_STEPS + NUM_FREE_STEPS
    changes = ((CALM_STEPS, QUOTA), (CALM_STEPS + NUM_SLOW_STEPS, None))
    run = Watched(tmp_path, ROWS, num_steps, changes=changes, period_us=PERIOD_US).train()
    slowed_s, freed_s = run.changed_at_s
    print(run.splits(), run.steps_s())
    slowed = run.split_after(slowed_s, MAX_STEPS)
    assert slowed[0] > EVEN[0]
    assert run.split_after(freed_s, MAX_STEPS)[0] < slowed[0]
    steps_s = run.steps_s(slowed_s, freed_s)
    assert statistics.median(steps_s[MAX_STEPS - 1 :]) < 0.85 * statistics.median(steps_s[1:4])
    assert weight_difference(run, num_steps) < TOLERANCE


@pytest.mark.skipif(why_no_quotas() != "", reason=why_no_quotas())
def test_samples_that_were_read_ahead_for_other_shares_are_not_used(tmp_path: Path) -> None:
    num_steps = CALM_STEPS + NUM_SLOW_STEPS
    run = Watched(tmp_path, ROWS, num_steps, changes=((CALM_STEPS, QUOTA),), period_us=PERIOD_US, data_workers=1)
    assert len(run.train().splits()) > 1
    assert weight_difference(run, num_steps) < TOLERANCE


def weight_difference(run: Watched, num_steps: int) -> float:
    trained, plain = zooid.load_checkpoint(run.url), plain_weights(run.folder / "job.py", num_steps)
    return max(float((trained[name] - plain[name]).abs().max()) for name in plain)


def plain_weights(job_file: Path, num_steps: int) -> dict[str, torch.Tensor]:
    """The weights of a plain loop. Every step has the whole data set, so that its order does not matter."""
    before = torch.get_default_dtype()
    try:
        job = load_job(job_file)
        model, (inputs, targets) = job.model(), job.data().tensors
    finally:
        torch.set_default_dtype(before)
    optimizer = job.optimizer(list(model.named_parameters()))
    assert job.loss is not None
    for _ in range(num_steps):
        optimizer.zero_grad()
        job.loss(model(inputs), targets).backward()
        optimizer.step()
    return dict(model.state_dict())

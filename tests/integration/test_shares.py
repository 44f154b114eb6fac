"""A member that becomes slower in mid-run gets fewer grains, and more when it recovers; the weights stay the same."""

import statistics
from pathlib import Path

import pytest

from benchmarks.shares import EVEN, QUOTA, Watched, largest_difference
from lab.quotas import why_no_quotas

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]

TOLERANCE = 1e-9
CALM_STEPS, NUM_SLOW_STEPS, NUM_FREE_STEPS = 5, 13, 12
ROWS = 8
MAX_STEPS = 10
"""Number of steps within which shares must follow."""


@pytest.mark.skipif(why_no_quotas() != "", reason=why_no_quotas())
def test_shares_follow_a_quota_and_its_end(tmp_path: Path) -> None:
    num_steps = CALM_STEPS + NUM_SLOW_STEPS + NUM_FREE_STEPS
    changes = ((CALM_STEPS, QUOTA), (CALM_STEPS + NUM_SLOW_STEPS, None))
    calm, disturbed = (
        Watched(tmp_path / name, ROWS, num_steps, changes=own) for name, own in (("calm", ()), ("disturbed", changes))
    )
    for run in (calm, disturbed):
        run.folder.mkdir()
        run.train()
    slowed_s, freed_s = disturbed.changed_at_s
    print(disturbed.splits(), disturbed.steps_s())
    slowed = disturbed.split_after(slowed_s, MAX_STEPS)
    assert slowed[0] > EVEN[0]
    assert disturbed.split_after(freed_s, MAX_STEPS)[0] < slowed[0]
    steps_s = disturbed.steps_s(slowed_s, freed_s)
    assert statistics.median(steps_s[MAX_STEPS - 1 :]) < 0.85 * statistics.median(steps_s[1:4])
    assert largest_difference(calm.url, disturbed.url) < TOLERANCE

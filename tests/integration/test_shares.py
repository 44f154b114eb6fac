"""A member that becomes slower in mid-run gets fewer grains, and more again when it recovers; the result stays exact."""

import statistics
from pathlib import Path

import pytest

from benchmarks.shares import EVEN, SLOWED, Watched, largest_difference
from lab.quotas import why_no_quotas

pytestmark = [pytest.mark.alone, pytest.mark.timeout(120)]

TOLERANCE = 1e-9
CALM_STEPS = 5
NUM_SLOW_STEPS = 12
ROWS = 16


@pytest.mark.skipif(why_no_quotas() != "", reason=why_no_quotas())
def test_shares_follow_a_quota_and_its_end(tmp_path: Path) -> None:
    num_steps = CALM_STEPS + 2 * NUM_SLOW_STEPS
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    calm.mkdir()
    disturbed.mkdir()

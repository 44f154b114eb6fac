"""A sample of `benchmarks.chaos`: runs that are disturbed end as if nobody had disturbed them."""

from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import chaos
from benchmarks.chaos.jobs import NUM_STEPS
from benchmarks.chaos.trials import Fault, Trial

pytestmark = pytest.mark.timeout(120)

TRIALS = [
    Trial(1, "normed", 3, 2, "tcp", (Fault("kill", "r0s0", 4, 0.03), Fault("kill", "r2s1", 12, 0.02))),
    Trial(2, "normed", 2, 1, "tcp", (Fault("pause", "r1s0", 14, 0.05, 3.0),), 0.1, 0.01),
    Trial(3, "normed", 4, 1, "tcp", (Fault("kill", "r0s0", NUM_STEPS, 0.01),)),
]


def test_disturbed_runs_end_as_if_nobody_had_disturbed_them(tmp_path: Path) -> None:
    tally = chaos(TRIALS, tmp_path)
    assert tally.failed == []
    assert tally.num_runs == len(TRIALS)
    assert tally.faults["kill"] >= 2
    assert tally.faults["pause"] == 1
    assert tally.num_resumes == 0

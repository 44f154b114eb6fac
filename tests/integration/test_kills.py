"""A sample of `benchmarks.kills`: processes of a run are killed at random moments, and it ends as if nobody had."""

from itertools import cycle

import pytest

from benchmarks import kills

pytestmark = pytest.mark.timeout(300)

SEED = 5


def test_runs_whose_processes_are_killed_end_as_if_nobody_had() -> None:
    """Over TCP, where members exchange no objects by which one could see that they are still at work."""
    found = kills.campaign(2, SEED, ["file, tcp"], cycle(["coordinator", "member"]))
    print(found)
    assert found["faults"] == []
    assert sum(found["killed"].values()) == 2
    assert found["largest_difference"] <= kills.TOLERANCE
    assert found["longest_wait_s"] <= kills.LONGEST_WAIT_S

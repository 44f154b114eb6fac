"""What the events of a run say about its members."""

import pytest

from zooid.coordinator.runs.run_progress import RunProgress
from zooid.core.runs.events import RosterChanged


def changed(ruling: str, *members: str) -> RosterChanged:
    return RosterChanged(at_s=0.0, change=1, members=members, step=3, ruling=ruling, wall_s=0.0)


@pytest.mark.parametrize(("ruling", "departed"), [("planned", {"r0s0"}), ("stands", set())])
def test_who_leaves_as_planned_has_departed_and_is_not_lost(ruling: str, departed: set[str]) -> None:
    progress = RunProgress(seated=frozenset({"r0s0", "r1s0"}))
    progress.take(changed(ruling, "r1s0", "r0s0-1"))
    assert progress.departed == departed
    assert progress.is_left_out("r0s0")
    assert not progress.is_left_out("r1s0")

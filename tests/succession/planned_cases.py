"""Planned changes that are tried in every order of events."""

from tests.succession.changing_model import ChangingModel
from tests.succession.rosters import first_roster, planned
from zooid.schedule.planned_rosters import with_replicas, with_successors, without_replica_of


def leaving(name: str, *, max_rosters: int, num_steps: int = 2) -> ChangingModel:
    """One of two replicas leaves after the first step."""
    first = first_roster(2, 1)
    change = planned(first, without_replica_of(first, name))
    return ChangingModel(first, change, num_steps=num_steps, max_rosters=max_rosters)


def sharing(shares: tuple[int, int], *, max_rosters: int, num_steps: int = 2) -> ChangingModel:
    """Two replicas get other shares after the first step."""
    first = first_roster(2, 1)
    change = planned(first, (first.members, first.copies), shares)
    return ChangingModel(first, change, num_steps=num_steps, max_rosters=max_rosters)


def joining(*, max_rosters: int, num_steps: int = 3, num_replicas: int = 2) -> ChangingModel:
    """A replica joins: it is a guest in the second step."""
    first = first_roster(num_replicas, 1)
    change = planned(first, with_replicas(first, num_replicas + 1, lambda replica, stage: "j0"))
    return ChangingModel(first, change, num_steps=num_steps, max_rosters=max_rosters)


def succeeding(successors: dict[str, str], num_stages: int, *, max_rosters: int, num_steps: int = 3) -> ChangingModel:
    """Successors take over seats of one replica: they are guests in the second step."""
    first = first_roster(1, num_stages)
    change = planned(first, with_successors(first, successors))
    return ChangingModel(first, change, num_steps=num_steps, max_rosters=max_rosters)


SMALL = {
    "2x1, the first leaves": lambda: leaving("m00", max_rosters=2),
    "2x1, the last leaves": lambda: leaving("m10", max_rosters=2),
    "1x1 with a successor": lambda: succeeding({"m00": "j0"}, 1, max_rosters=3),
    "2x1 with other shares": lambda: sharing((1, 3), max_rosters=2),
    "1x1 with a joiner": lambda: joining(num_replicas=1, max_rosters=2),
    "1x2, the last is succeeded": lambda: succeeding({"m01": "j0"}, 2, max_rosters=2),
    "1x2, the first is succeeded": lambda: succeeding({"m00": "j0"}, 2, max_rosters=2),
    "2x1 with a planned joiner": lambda: joining(max_rosters=2, num_steps=2),
}

LARGE = {
    "2x1, the first leaves": lambda: leaving("m00", max_rosters=3),
    "2x1, the last leaves": lambda: leaving("m10", max_rosters=3),
    "2x1 with other shares": lambda: sharing((1, 3), max_rosters=3),
    "2x1 with a planned joiner": lambda: joining(max_rosters=3),
    "1x1 with a successor": lambda: succeeding({"m00": "j0"}, 1, max_rosters=4),
    "1x2, the first is succeeded": lambda: succeeding({"m00": "j0"}, 2, max_rosters=3),
    "1x2, the last is succeeded": lambda: succeeding({"m01": "j0"}, 2, max_rosters=3),
    "1x2, both are succeeded": lambda: succeeding({"m00": "j0", "m01": "j1"}, 2, max_rosters=3),
}
"""These take minutes: `python -m tests.succession` tries them."""

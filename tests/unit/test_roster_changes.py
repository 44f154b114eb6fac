"""Planned changes of who trains, as a coordinator carries them out with a store and imagined processes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from zooid.coordinator.runs.roster_changes import RosterChanges
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.roster import Joining, Roster, RosterMember, RosterSeat, Ruling, StepNumbers
from zooid.store import ObjectStore, open_store
from zooid.store.planned_changes import find_newest_change

NONE = StepNumbers(loss_sum=0.0, weight=0.0, square_sums=())


@dataclass
class Scene:
    """A coordinator whose new processes are ready at once."""

    store: ObjectStore
    started: list[str] = field(default_factory=list)

    def changes(self) -> RosterChanges:
        return RosterChanges(self.store, 0, self.start, lambda name: False)

    def start(self, seats: Sequence[RosterSeat], plan: str) -> None:
        for seat in seats:
            self.started.append(seat.name)
            self.store.put(keys.joining(seat.name, 0), encode_record(Joining(member=seat.name, change=0)))

    def write(self, roster: Roster) -> Roster:
        self.store.put(keys.roster(roster.number, roster.change), encode_record(roster))
        return roster


def replicas(*names: str, change: int = 0, former: tuple[str, ...] = ()) -> Roster:
    return Roster(
        run="run",
        number=0,
        change=change,
        resume_step=change,
        members=tuple(RosterMember(name=name, stage=0, replica=replica) for replica, name in enumerate(names)),
        shares=(2,) * len(names),
        former=former,
        ruling=Ruling(kind="planned", numbers=NONE) if change else None,
    )


def poll(changes: RosterChanges) -> None:
    changes._next_look_s = 0.0
    changes.poll()


def test_a_member_that_is_lost_right_after_another_has_joined_is_replaced() -> None:
    """The new member has its seat already, so that its name is not free for the lost one's."""
    scene = Scene(open_store("memory://roster-changes"))
    first = scene.write(replicas("r0s0", "r1s0"))
    changes = scene.changes()
    changes.scale(3, "three were asked for")
    poll(changes)
    planned = find_newest_change(scene.store, first)
    assert planned is not None
    assert [seat.name for seat in planned.seats] == ["r0s0", "r1s0", "r2s0-1"]
    scene.write(replicas("r0s0", "r1s0", "r2s0-1", change=1))
    smaller = structs.replace(replicas("r0s0", "r2s0-1", change=2, former=("r1s0",)), ruling=Ruling(kind="unfinished"))
    scene.write(smaller)
    poll(changes)
    again = find_newest_change(scene.store, smaller)
    assert again is not None
    assert [seat.name for seat in again.seats] == ["r0s0", "r2s0-1", "r2s0-2"]
    assert scene.started == ["r2s0-1", "r2s0-2"]


def test_nobody_is_started_while_the_platform_has_no_room() -> None:
    scene = Scene(open_store("memory://roster-changes-room"))
    first = scene.write(replicas("r0s0", "r1s0"))
    asked: list[int] = []
    room = [0]

    def has_room(num_members: int) -> bool:
        asked.append(num_members)
        return num_members <= room[0]

    changes = RosterChanges(scene.store, 0, scene.start, lambda name: False, has_room)
    changes.scale(4, "more are wanted")
    for room[0] in (0, 1):
        poll(changes)
        assert scene.started == []
        assert find_newest_change(scene.store, first) is None
    room[0] = 2
    poll(changes)
    assert asked == [2, 2, 2]
    assert scene.started == ["r2s0-1", "r3s0-1"]
    change = find_newest_change(scene.store, first)
    assert change is not None
    assert [member.name for member in change.members] == ["r0s0", "r1s0", "r2s0-1", "r3s0-1"]


def test_a_process_that_is_started_again_does_not_make_joining_seem_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Successors are started as early as joining takes, so waiting for somebody else must not count."""
    now_s = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    scene = Scene(open_store("memory://roster-changes-again"))
    scene.write(replicas("r0s0"))
    changes = RosterChanges(scene.store, 0, scene.start, lambda name: name == "r1s0-1")
    changes.scale(2, "two were asked for")
    poll(changes)
    now_s = 40.0
    poll(changes)
    scene.write(replicas("r0s0", "r1s0-2", change=1))
    now_s = 43.0
    poll(changes)
    assert scene.started == ["r1s0-1", "r1s0-2"]
    assert changes.startups.longest_s == 3.0

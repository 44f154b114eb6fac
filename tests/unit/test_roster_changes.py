"""Planned changes of who trains, as a coordinator carries them out with a store and imagined processes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from tests.unit.fleet_plans import a_fleet
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

    def has_room(seats: Sequence[RosterSeat], plan: str) -> bool:
        asked.append(len(seats))
        return len(seats) <= room[0]

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


def test_members_on_the_offers_of_another_fleet_stay() -> None:
    """Of two fast members, one is lost. The other keeps its seat beside two slow ones."""
    scene = Scene(open_store("memory://roster-changes-fleet"))
    smaller = scene.write(
        structs.replace(replicas("r1s0", change=1, former=("r0s0",)), ruling=Ruling(kind="unfinished"), shares=(4,))
    )
    offers = {"r0s0": "", "r1s0": "fast"}
    changes = scene.changes()
    changes.offer_of = lambda member: offers.get(member, "slow")
    changes.hire(a_fleet("fast", "slow", "slow", shares=(2, 1, 1)), "fleet-1", "one was lost")
    poll(changes)
    planned = find_newest_change(scene.store, smaller)
    assert planned is not None
    assert [(seat.name, seat.replica) for seat in planned.members] == [("r1s0", 0), ("r1s0-1", 1), ("r2s0-1", 2)]
    assert planned.shares == (2, 1, 1)
    assert planned.plan == "fleet-1"


def test_lost_members_come_back_one_by_one_if_there_is_no_room_for_all() -> None:
    scene = Scene(open_store("memory://roster-changes-partial"))
    scene.write(replicas("r0s0", "r1s0", "r2s0"))
    lost = structs.replace(
        replicas("r0s0", change=1, former=("r1s0", "r2s0")),
        ruling=Ruling(kind="unfinished"),
        num_planned_replicas=3,
        shares=(6,),
    )
    scene.write(lost)
    room = [1]
    changes = RosterChanges(
        scene.store, 0, scene.start, lambda name: False, lambda seats, plan: len(seats) <= room[0] - len(scene.started)
    )
    changes.refill(())
    poll(changes)
    assert scene.started == ["r1s0-1"]
    first = find_newest_change(scene.store, lost)
    assert first is not None
    assert [member.name for member in first.members] == ["r0s0", "r1s0-1"]
    half = structs.replace(replicas("r0s0", "r1s0-1", change=2, former=("r1s0", "r2s0")), num_planned_replicas=2)
    scene.write(half)
    for _ in range(3):
        poll(changes)
    assert scene.started == ["r1s0-1"]
    assert changes.wanted, "the other one is still missing"
    room[0] = 2
    poll(changes)
    assert scene.started == ["r1s0-1", "r2s0-1"]


def test_a_change_without_room_lets_others_pass_and_keeps_its_names() -> None:
    scene = Scene(open_store("memory://roster-changes-pass"))
    first = scene.write(replicas("r0s0", "r1s0"))
    changes = RosterChanges(scene.store, 0, scene.start, lambda name: False, lambda seats, plan: len(seats) < 2)
    changes.scale(4, "four are wanted")
    changes.succeed({"r1s0"}, "its life ends")
    poll(changes)
    poll(changes)
    assert scene.started == ["r1s0-1"]
    planned = find_newest_change(scene.store, first)
    assert planned is not None
    assert planned.cause == "its life ends"
    assert [wanted.cause for wanted in changes.wanted] == ["its life ends", "four are wanted"]


def test_processes_of_a_change_that_is_given_up_are_ended() -> None:
    """They still start when the change is withdrawn, so that nobody has been promised their seats."""
    scene = Scene(open_store("memory://roster-changes-withdrawn"))
    scene.write(replicas("r0s0"))
    dismissed: list[str] = []
    begun: list[str] = []
    changes = RosterChanges(
        scene.store,
        0,
        lambda seats, plan: begun.extend(seat.name for seat in seats),
        lambda name: False,
        dismiss=dismissed.append,
    )
    wanted = changes.scale(3, "more are wanted")
    poll(changes)
    assert begun == ["r1s0-1", "r2s0-1"]
    assert changes.withdraw(wanted)
    assert sorted(dismissed) == begun
    assert not changes.wanted


def test_a_fleet_that_is_chosen_ends_the_wait_for_lost_members() -> None:
    """There is no room for the lost member, so that another number of members is chosen; nobody comes back later."""
    scene = Scene(open_store("memory://roster-changes-forgotten"))
    lost = structs.replace(
        replicas("r0s0", change=1, former=("r1s0",)),
        ruling=Ruling(kind="unfinished"),
        num_planned_replicas=2,
        shares=(4,),
    )
    scene.write(lost)
    changes = RosterChanges(scene.store, 0, scene.start, lambda name: False, lambda seats, plan: False)
    changes.refill(())
    poll(changes)
    changes.scale(1, "one is enough")
    assert [wanted.cause for wanted in changes.wanted] == ["one is enough"]
    changes.has_room = lambda seats, plan: True
    for _ in range(3):
        poll(changes)
    assert not changes.wanted
    assert scene.started == []


def test_successors_of_members_with_the_same_stem_have_different_names() -> None:
    """After a refill, a survivor may have the first seat, and the new member the stem of its former one."""
    scene = Scene(open_store("memory://roster-changes-stems"))
    first = scene.write(replicas("r1s0", "r1s0-1"))
    changes = scene.changes()
    changes.succeed({"r1s0", "r1s0-1"}, "their lives end")
    poll(changes)
    planned = find_newest_change(scene.store, first)
    assert planned is not None
    assert [seat.name for seat in planned.seats] == ["r1s0-2", "r1s0-3"]

"""Whoever adopts members ends the processes for which the dead coordinator had no seat yet."""

from collections.abc import Collection, Mapping

import pytest

from tests.platforms import PretendedPlatform
from zooid.coordinator.runs.adoption import end_waiting
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberHandle
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Joining, Roster, RosterMember
from zooid.platforms import Exit
from zooid.store import ObjectStore, open_store


class Processes(PretendedPlatform):
    """A platform that sees every process, all of them running."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return True

    def members(self, run: str) -> Mapping[str, Exit | None]:
        return dict.fromkeys(("000000.r0s0", "000000.r1s0", "000000.r2s0-1"))

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        self.deleted += titles
        return ()


@pytest.fixture
def store() -> ObjectStore:
    """A run of two members, in which another process waits to join."""
    made = open_store("memory://end-waiting")
    members = tuple(RosterMember(name=name, stage=0, replica=replica) for replica, name in enumerate(("r0s0", "r1s0")))
    roster = Roster(run="run", number=0, resume_step=0, members=members, shares=(1, 1))
    made.put(keys.roster(0), encode_record(roster))
    for name in ("r0s0", "r1s0", "r2s0-1"):
        made.put(keys.spec(name), b"")
        handle = MemberHandle(run="run", member=name, platform="local", offer="", launched_at_s=0.0, place={})
        made.put(keys.handle(name, 0), encode_record(handle))
    made.put(keys.joining("r2s0-1", 0), encode_record(Joining(member="r2s0-1", change=0)))
    return made


def ended_in(store: ObjectStore) -> list[str]:
    processes = Processes()
    end_waiting(store, processes, 0)
    return processes.deleted


def test_a_process_without_a_seat_is_ended_and_its_request_is_gone(store: ObjectStore) -> None:
    assert ended_in(store) == ["000000.r2s0-1"]
    assert list(store.list(keys.joining_under(0))) == []


def test_a_process_whose_seat_is_planned_is_left_alone(store: ObjectStore) -> None:
    names = ("r0s0", "r1s0", "r2s0-1")
    change = PlannedChange(
        run="run",
        number=0,
        change=0,
        attempt=1,
        cause="three were asked for",
        members=tuple(RosterMember(name=name, stage=0, replica=replica) for replica, name in enumerate(names)),
        shares=(1, 1, 1),
    )
    store.put(keys.planned_change(0, 0, 1), encode_record(change))
    assert ended_in(store) == []

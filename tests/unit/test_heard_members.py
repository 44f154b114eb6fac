"""Members that the platform cannot reach or list: the store tells whether they live."""

import math
import time
from collections.abc import Mapping

import pytest

from tests.platforms import PretendedPlatform
from zooid.coordinator.runs import heard_members
from zooid.coordinator.runs.heard_members import HeardMembers
from zooid.coordinator.runs.run_progress import RunProgress
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import MemberTrained, StoreUsed
from zooid.core.runs.member_records import MemberEnd
from zooid.platforms import Exit
from zooid.store import ObjectStore, open_store

LOST = Exit(None, reason="is lost with its machine: no route", is_assumed=True)
DEFINITE = Exit(None, reason="is lost with its node: power")


def report(member: str) -> StoreUsed:
    return StoreUsed(at_s=0.0, member=member, num_puts=0, num_gets=0, num_lists=0, sent_bytes=0, received_bytes=0)


class Cut(PretendedPlatform):
    """A platform whose link to all members is broken."""

    def members(self, run: str) -> Mapping[str, Exit | None]:
        return {"000000.r0s0": LOST, "000000.r1s0": DEFINITE, "000001.r0s0": LOST}


@pytest.fixture
def store() -> ObjectStore:
    return open_store("memory://heard")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard_members, "EVENT_LOOK_S", 0.0)


def heard(store: ObjectStore, progress: RunProgress) -> HeardMembers:
    return HeardMembers(
        Cut(), store, 0, progress.last_heard_s, progress.trained.__contains__, 60.0, progress.last_report_s
    )


def test_who_reports_behind_a_broken_link_is_not_lost(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = RunProgress()
    members = heard(store, progress)
    assert members.members("run")["000000.r0s0"] is LOST, "it was never heard"
    progress.take(report("r0s0"))
    assert members.members("run") == {"000000.r0s0": None, "000000.r1s0": DEFINITE, "000001.r0s0": LOST}
    monkeypatch.setattr(heard_members, "_MAX_SILENCE_S", 0.0)
    assert members.members("run")["000000.r0s0"] is LOST, "it is silent there, too"


def test_reports_of_others_are_none_of_its_own(store: ObjectStore) -> None:
    progress = RunProgress()
    members = heard(store, progress)
    progress.take(report("r1s0"))
    assert members.members("run")["000000.r0s0"] is LOST


def test_its_end_is_found_in_the_store(store: ObjectStore) -> None:
    progress = RunProgress()
    members = heard(store, progress)
    progress.take(report("r0s0"))
    store.put(keys.end("r0s0", 0), encode_record(MemberEnd(member="r0s0", exit=Exit(-9))))
    assert members.members("run")["000000.r0s0"] == Exit(-9)
    progress.take(MemberTrained(at_s=0.0, member="r0s0", peak_bytes=1))
    assert members.members("run")["000000.r0s0"] == Exit(0)


def test_an_unseen_member_that_is_heard_has_ended_if_that_is_recorded(store: ObjectStore) -> None:
    members = heard(store, RunProgress())
    members.unseen.add("r5s0")
    assert members.members("run")["000000.r5s0"] is None
    store.put(keys.end("r5s0", 0), encode_record(MemberEnd(member="r5s0", exit=Exit(3))))
    assert members.members("run")["000000.r5s0"] == Exit(3)


def test_whom_the_others_have_left_out_is_not_waited_for() -> None:
    progress = RunProgress()
    progress.seated = frozenset(("r0s0", "r1s0"))
    progress.take(report("r0s0"))
    assert progress.last_report_s("r0s0") == pytest.approx(time.monotonic(), abs=5.0)
    progress.former, progress.seated = {"r0s0", "r1s0"}, frozenset({"r1s0"})
    assert progress.last_report_s("r0s0") == -math.inf

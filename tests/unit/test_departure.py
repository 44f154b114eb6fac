"""A member that will be ended while no coordinator lives plans that its replica leaves."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.succession.rosters import first_roster
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.requests import Notice
from zooid.core.runs.roster import Roster
from zooid.store import ObjectStore, open_store
from zooid.store.planned_changes import find_newest_change
from zooid.worker.member import departure

SILENCE_S = 0.3


def store_of(name: str, roster: Roster) -> ObjectStore:
    store = open_store(f"memory://{name}")
    store.put(keys.claim(0), b"a claim")
    store.put(keys.lease(0), b"0")
    store.put(keys.roster(0), encode_record(roster))
    return store


@contextmanager
def noticed(store: ObjectStore, member: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Thread]:
    monkeypatch.setattr(departure, "_SILENCE_S", SILENCE_S)
    monkeypatch.setattr(departure, "_LOOK_S", 0.02)
    ended = threading.Event()
    notice = Notice(member=member, source="the test")
    thread = threading.Thread(target=departure.plan_departure, args=(notice, 0, store, ended))
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join()


def test_a_replica_leaves_when_the_coordinator_has_been_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    roster = first_roster(3, 1)
    leaving = roster.members[1].name
    store = store_of("departure-silent", roster)
    with noticed(store, leaving, monkeypatch) as thread:
        thread.join(10)
        change = find_newest_change(store, roster)
    assert change is not None
    assert [seat.name for seat in change.seats] == [seat.name for seat in roster.seats if seat.name != leaving]
    assert sum(change.shares) == sum(roster.shares)
    assert leaving in change.cause


def test_a_coordinator_that_lives_is_left_to_act(monkeypatch: pytest.MonkeyPatch) -> None:
    roster = first_roster(2, 1)
    store = store_of("departure-alive", roster)
    with noticed(store, roster.members[0].name, monkeypatch) as thread:
        for beat in range(30):
            store.put(keys.lease(0), str(beat).encode())
            time.sleep(SILENCE_S / 10)
        assert thread.is_alive()
        assert find_newest_change(store, roster) is None


def test_the_only_replica_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    roster = first_roster(1, 2)
    store = store_of("departure-alone", roster)
    with noticed(store, roster.members[0].name, monkeypatch) as thread:
        thread.join(10)
        assert not thread.is_alive()
    assert find_newest_change(store, roster) is None

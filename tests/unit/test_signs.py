"""Signs of life in a store: who is silent is lost, who is only late is not, and a failing store is nobody's fault."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from lab.waiting import wait_until
from zooid.core.errors import StoreUnavailable
from zooid.schedule.heartbeats import requests_per_s
from zooid.store import ObjectStore, open_store
from zooid.worker.peers import store_heartbeats
from zooid.worker.peers.store_heartbeats import StoreHeartbeats

NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("HEARTBEAT_S", 0.1), ("LOOK_S", 0.05), ("CALL_S", 0.02), ("SILENCE_S", 0.6)):
        monkeypatch.setattr(store_heartbeats, name, seconds)


@contextmanager
def members(store: ObjectStore, names: list[str] = NAMES) -> Iterator[tuple[dict[str, StoreHeartbeats], list[str]]]:
    told: list[str] = []
    made = {name: StoreHeartbeats(store, "run/signs", name, partial(told.append, name)) for name in names}
    for member in made.values():
        member.watch(NAMES, "run/survey")
        member.start()
    try:
        yield made, told
    finally:
        for member in made.values():
            member.close()


@pytest.mark.usefixtures("fast")
def test_a_silent_member_is_lost_to_its_neighbours_and_a_call_tells_the_rest() -> None:
    store = open_store("memory://signs-silent")
    with members(store) as (made, told):
        time.sleep(1.0)
        assert told == [], "signs of life keep everybody"
        made["b"].close()
        wait_until(lambda: made["a"].lost == made["c"].lost == {"b"})
        assert made["d"].lost == set(), "it does not watch b"
        made["a"].announce_survey("run/survey")
        wait_until(lambda: made["d"].lost == {"b"} and "d" in told)


@pytest.mark.usefixtures("fast")
def test_who_has_never_been_there_is_not_lost() -> None:
    with members(open_store("memory://signs-absent"), ["a", "b"]) as (made, told):
        time.sleep(1.0)
        assert told == []
        assert made["a"].lost == set()


@pytest.mark.usefixtures("fast")
def test_nobody_is_lost_while_the_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://signs-outage")
    with members(store) as (made, told):
        wait_until(lambda: len(store.list("run/signs")) == len(NAMES))
        time.sleep(0.3)

        def fail(*_: object) -> None:
            raise StoreUnavailable("an outage")

        with monkeypatch.context() as outage:
            outage.setattr(type(store), "get", fail)
            outage.setattr(type(store), "put", fail)
            time.sleep(1.5)
        time.sleep(0.8)
        assert told == []
        assert all(member.lost == set() for member in made.values())


def test_requests_do_not_grow_with_the_roster() -> None:
    assert requests_per_s(4) == requests_per_s(64) == (0.5, 4.0)

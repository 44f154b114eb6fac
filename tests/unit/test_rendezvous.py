"""Ranks that share nothing but a folder find each other, whatever earlier runs left there."""

import json
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.faults import Faults, FaultyStore, Rates
from zooid.comm.rendezvous import Session, leave, meet
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, CommError, CommTimeout
from zooid.core.runs import keys
from zooid.store import ObjectStore, open_store

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri() if request.param == "file" else f"memory://{uuid.uuid4().hex}")


def new_store() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


def meet_all(store: ObjectStore, size: int, timeout_s: float = 10.0) -> list[Session]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: meet(store, rank, size, timeout_s=timeout_s, abort=Abort()), range(size)))


def leave_all(store: ObjectStore, session: Session, size: int) -> None:
    prefixes = (session.prefix, session.lobby)
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda rank: leave(store, prefixes, rank, size, timeout_s=10.0), range(size)))


def call_of(store: ObjectStore, session: str, size: int, *others: str) -> None:
    """What a run that crashed left in the lobby."""
    store.put(keys.lobby(session, "call"), json.dumps({"size": size}).encode())
    for name in others:
        store.put(keys.lobby(session, name), json.dumps({"latency_s": 1.0}).encode())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_everyone_agrees_on_one_session(store: ObjectStore, size: int) -> None:
    sessions = meet_all(store, size)
    assert len(set(sessions)) == 1
    assert 0 < sessions[0].latency_s < 10
    assert sessions[0].prefix not in sessions[0].lobby


LEFT = {
    "an unanswered call": ("call",),
    "a call that some answered": ("call", "here-2"),
    "a call that all answered": ("call", "here-1", "here-2"),
    "a run that went": ("call", "here-1", "here-2", "go"),
    "a go without its answers": ("call", "go"),
    "answers without their call": ("here-1", "here-2"),
    "a go without its call": ("here-1", "go"),
}


@pytest.mark.parametrize("left", LEFT)
def test_nothing_of_an_earlier_run_is_taken(store: ObjectStore, left: str) -> None:
    """Whatever it crashed at, and whether its session sorts before ours or after."""
    for session in ("0000000000000000", "ffffffffffffffff"):
        for name in LEFT[left]:
            store.put(keys.lobby(session, name), json.dumps({"size": 3, "latency_s": 1.0}).encode())
    sessions = meet_all(store, 3)
    assert len(set(sessions)) == 1
    assert not sessions[0].prefix.endswith(("0000000000000000", "ffffffffffffffff"))


def test_an_earlier_run_may_have_been_of_another_size() -> None:
    store = new_store()
    call_of(store, "0000000000000000", 4)
    assert len(set(meet_all(store, 2, timeout_s=1.0))) == 1


def test_runs_may_follow_each_other_in_one_folder(store: ObjectStore) -> None:
    earlier = {meet_all(store, 3)[0] for _ in range(3)}
    assert len(earlier) == 3, "none was left properly, and still each is another"


def test_a_run_may_begin_while_the_one_before_is_being_left(store: ObjectStore) -> None:
    """Ranks that are done with one run go on to the next at once."""
    size = 3

    def run_often(rank: int) -> list[str]:
        prefixes = []
        for _ in range(5):
            session = meet(store, rank, size, timeout_s=10.0, abort=Abort())
            prefixes.append(session.prefix)
            leave(store, (session.prefix, session.lobby), rank, size, timeout_s=10.0)
        return prefixes

    with ThreadPoolExecutor(size) as pool:
        runs = list(pool.map(run_often, range(size)))
    assert runs[0] == runs[1] == runs[2]
    assert len(set(runs[0])) == 5


def test_when_the_last_has_left_nothing_remains(store: ObjectStore, tmp_path: Path) -> None:
    (session, *_) = meet_all(store, 3)
    for number in range(5):
        store.put(f"{session.prefix}/group-0/calls/{number:08d}/000000", b"message")
    store.put("plan.json", b"of somebody else")
    for rank in (2, 0):
        leave(store, (session.prefix, session.lobby), rank, 3, timeout_s=10.0)
        assert len(store.list(session.prefix)) >= 5, "somebody may still read"
    leave(store, (session.prefix, session.lobby), 1, 3, timeout_s=10.0)
    assert store.list("") == ["plan.json"]
    if store.url.startswith("file:"):
        assert [path.name for path in tmp_path.iterdir()] == ["plan.json"], "folders are gone, too"


def test_ranks_that_leave_at_once_remove_everything(store: ObjectStore) -> None:
    for _ in range(5):
        (session, *_) = meet_all(store, 4)
        leave_all(store, session, 4)
        assert store.list("") == []


def test_ranks_that_did_not_come_are_named() -> None:
    store = new_store()
    with ThreadPoolExecutor(1) as pool:
        here = pool.submit(meet, store, 2, 4, timeout_s=0.5, abort=Abort())
        with pytest.raises(CommTimeout, match=r"ranks 1, 3 did not come to memory://\w+ within 0.5 s"):
            meet(store, 0, 4, timeout_s=0.5, abort=Abort())
        with pytest.raises(CommTimeout, match="rank 0 did not come to"):
            here.result()


def test_a_missing_rank_0_is_named() -> None:
    with pytest.raises(CommTimeout, match=r"rank 0 did not come to memory://\w+, or .* within 0.1 s"):
        meet(new_store(), 1, 2, timeout_s=0.1, abort=Abort())


def test_ranks_with_other_world_sizes_are_told() -> None:
    store = new_store()
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(meet, store, 0, 3, timeout_s=0.5, abort=Abort())
        why = r"rank 0 came to memory://\w+ with world_size=3, but rank 1 with world_size=2: give every rank the same"
        with pytest.raises(CommError, match=why):
            meet(store, 1, 2, timeout_s=1.0, abort=Abort())
        with pytest.raises(CommError, match=why):
            calling.result()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_abort_frees_who_waits(rank: int) -> None:
    abort = Abort()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, new_store(), rank, 2, timeout_s=60.0, abort=abort)
        abort.set("the run is over")
        with pytest.raises(CommAborted, match="the run is over"):
            waiting.result(timeout=2)


def test_a_store_that_fails_now_and_then_is_asked_again() -> None:
    store = new_store()
    faulty = FaultyStore(store, Faults.everywhere(Rates(error=0.15, lost_response=0.15)), seed=7)
    wanted = {f"{name}.{fault}" for name in ("put", "list") for fault in ("error", "lost_response")}
    num_meetings = 0
    while num_meetings < 3 or not wanted <= faulty.counts.keys():  # sessions have random names, so faults differ
        assert num_meetings < 100, f"only {sorted(faulty.counts)} were met"
        (session, *_) = meet_all(faulty, 3)
        leave_all(faulty, session, 3)
        num_meetings += 1
    assert all("/left/" in key for key in store.list("")), "at most a repeated farewell, which nobody reads"


class Vanishing:
    """A store in which what was listed is removed by others before it can be read."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self.num_vanished = 0
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._inner, name)  # type: ignore[no-any-return]

    def list(self, prefix: str, after: str = "") -> list[str]:
        found = self._inner.list(prefix, after)
        old = [key for key in found if "0000000000000000" in key]
        self._inner.delete(old)
        self.num_vanished += len(old)
        return found


def test_what_another_run_removes_meanwhile_does_no_harm() -> None:
    store = new_store()
    call_of(store, "0000000000000000", 2, "here-1", "go")
    vanishing = Vanishing(store)
    with ThreadPoolExecutor(2) as pool:
        met: list[Future[Session]] = [
            pool.submit(meet, vanishing, 1, 2, timeout_s=5.0, abort=Abort()),
            pool.submit(meet, store, 0, 2, timeout_s=5.0, abort=Abort()),
        ]
        assert met[0].result() == met[1].result()
    assert vanishing.num_vanished == 3


def test_a_store_that_cannot_be_cleaned_is_reported_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore(new_store(), Faults(delete=Rates(error=1)), seed=0)
    (session, *_) = meet_all(store, 1)
    leave(store, (session.prefix, session.lobby), 0, 1, timeout_s=0.05)
    assert "the messages of the group could not be deleted from memory://" in caplog.text
    assert store.counts["delete.error"] > 0

"""A store that is asked again: every retry is counted, it ends at its limit, and an abort frees it."""

import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lab.faults import Faults, FaultyStore, Rates
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, InputError, ObjectExists, ObjectNotFound, StoreError, StoreUnavailable
from zooid.store import ObjectStore, RetryingStore, open_store


def new_store() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("folder/key", b"content"),
    "create": lambda store: store.create("folder/key", b"content"),
    "get": lambda store: bytes(store.get("folder/there")),
    "list": lambda store: store.list("folder"),
    "list_folders": lambda store: store.list_folders(""),
    "is_empty": lambda store: store.is_empty(),
    "delete": lambda store: store.delete(key for key in ("folder/there", "folder/key")),
}


class Failing:
    """A store whose first calls fail."""

    def __init__(self, inner: ObjectStore, num_failures: int, error: Exception) -> None:
        self.url = inner.url
        self.num_calls = 0
        self._inner = inner
        self._num_failures = num_failures
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.num_calls += 1
            if self.num_calls <= self._num_failures:
                raise self._error
            return getattr(self._inner, name)(*arguments)

        return call


def retrying(inner: Any, give_up_s: float = 5.0) -> tuple[RetryingStore, list[float]]:
    """A store and the times at which it was asked again."""
    retried_s: list[float] = []
    return RetryingStore(
        inner, Abort(), give_up_s=give_up_s, on_retry=lambda: retried_s.append(time.monotonic())
    ), retried_s


@pytest.mark.parametrize("name", CALLS)
def test_every_operation_is_repeated_until_it_answers_and_each_retry_counted(name: str) -> None:
    inner = new_store()
    inner.put("folder/there", b"there")
    wanted = CALLS[name](inner)
    inner.delete(["folder/key"])
    inner.put("folder/there", b"there")
    failing = Failing(inner, 3, StoreUnavailable("down"))
    store, retried_s = retrying(failing)
    assert CALLS[name](store) == wanted
    assert (failing.num_calls, len(retried_s)) == (4, 3)
    CALLS[name](store)
    assert len(retried_s) == 3


def test_it_gives_up_in_time_with_the_stores_own_error() -> None:
    faulty = FaultyStore(new_store(), Faults(get=Rates(error=1)), seed=0)
    store, retries = retrying(faulty, give_up_s=0.3)
    began_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match="injected: get of 'key' failed"):
        store.get("key")
    assert 0.05 < time.monotonic() - began_s < 0.6
    assert faulty.counts["get.error"] == len(retries) + 1 >= 3
    assert len(retries) <= 8, "pauses grow"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda store: store.get("nothing"), ObjectNotFound),
        (lambda store: store.create("key", b"second"), ObjectExists),
        (lambda store: store.get("a//b"), InputError),
    ],
)
def test_answers_are_not_failures(call: Callable[[ObjectStore], object], error: type[Exception]) -> None:
    inner = new_store()
    inner.put("key", b"first")
    store, retries = retrying(inner)
    with pytest.raises(error):
        call(store)
    assert retries == []


def test_what_would_fail_again_is_not_repeated() -> None:
    store, retries = retrying(Failing(new_store(), 1, StoreError("it was refused; check your credentials")))
    with pytest.raises(StoreError, match="refused"):
        store.put("key", b"")
    assert retries == []


def test_an_abort_frees_it_at_once() -> None:
    abort = Abort()
    faulty = FaultyStore(new_store(), Faults(get=Rates(error=1)), seed=0)
    store = RetryingStore(faulty, abort, give_up_s=60.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "key")
        while faulty.counts.get("get.error", 0) < 5:  # its pauses have grown
            time.sleep(0.001)
        began_s = time.monotonic()
        abort.set("the run is over")
        with pytest.raises(CommAborted, match="the run is over"):
            waiting.result(timeout=5)
        assert time.monotonic() - began_s < 0.2
    with pytest.raises(CommAborted, match="the run is over"):
        store.put("key", b"")


class TestPatience:
    def test_wrapping_again_replaces_the_patience(self) -> None:
        failing = Failing(new_store(), 10**6, StoreUnavailable("down"))
        inner, _ = retrying(failing, give_up_s=3600.0)
        store, _ = retrying(inner, give_up_s=0.2)
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.get("key")
        assert time.monotonic() - began_s < 2.0

    def test_what_open_store_gives_is_patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ZOOID_STORE_PATIENCE", "7")
        store: Any = new_store()
        assert isinstance(store, RetryingStore)
        assert store._give_up_s == 7.0

    def test_it_can_be_shortened_while_somebody_waits(self) -> None:
        store, retried_s = retrying(Failing(new_store(), 10**6, StoreUnavailable("down")), give_up_s=3600.0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.get, "key")
            while len(retried_s) < 3:
                time.sleep(0.001)
            store.shorten(0.1)
            with pytest.raises(StoreUnavailable):
                waiting.result(timeout=5)

    def test_a_long_outage_is_said_now_and_then_and_its_end_too(self, caplog: pytest.LogCaptureFixture) -> None:
        failing = Failing(new_store(), 10**6, StoreUnavailable("503 Service Unavailable"))
        store, _ = retrying(failing, give_up_s=2.0)
        others = RetryingStore(store, give_up_s=2.0)
        with ThreadPoolExecutor(2) as pool:
            for waiting in [pool.submit(each.get, "key") for each in (store, others)]:
                with pytest.raises(StoreUnavailable):
                    waiting.result(timeout=10)
        said = [record.getMessage() for record in caplog.records]
        assert 2 <= len(said) <= 9, "not once for each request, nor for each who waits"
        assert "has not answered for 0 s (503 Service Unavailable); retrying for up to 2 s" in said[0]
        failing._num_failures = 0
        store.list("")
        assert "answers again after " in caplog.text

    def test_a_blip_is_not_worth_a_line(self, caplog: pytest.LogCaptureFixture) -> None:
        store, _ = retrying(Failing(new_store(), 2, StoreUnavailable("down")), give_up_s=60.0)
        store.list("")
        assert caplog.text == ""


def test_the_job_s_random_numbers_are_left_alone() -> None:
    """A thread that waits for the store runs beside the job's own code, whose numbers follow from its seeds."""
    store, retried_s = retrying(Failing(new_store(), 3, StoreUnavailable("down")))
    before = random.getstate()
    store.list("")
    assert len(retried_s) == 3
    assert random.getstate() == before

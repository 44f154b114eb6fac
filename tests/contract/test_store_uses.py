"""What is built on object stores: injected faults, waiting, events."""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.faults import Faults, FaultyStore, Rates
from lab.waiting import wait_until
from tests.contract.stores import OpenStore, content, new_memory
from zooid.core.abort import Abort
from zooid.core.errors import (
    CommAborted,
    CommTimeout,
    InputError,
    ObjectExists,
    ObjectNotFound,
    StoreUnavailable,
)
from zooid.core.runs.events import Metered, PhaseStarted, StepCommitted
from zooid.store import EventReader, EventWriter, ObjectStore, RetryingStore, wait_for


class TestFaults:
    def test_every_kind_fires_at_its_rate_and_is_counted(self) -> None:
        rates = Rates(delay=0.2, delay_s=0.0001, error=0.2, lost_response=0.2)
        store = FaultyStore(new_memory(), Faults.everywhere(rates), seed=1)
        num_raised = 0
        for number in range(300):
            calls: list[Callable[[], object]] = [
                lambda number=number: store.put(f"a/{number}", b"1"),  # type: ignore[misc]
                lambda number=number: store.get(f"a/{number}"),  # type: ignore[misc]
                lambda: store.list("a"),
                lambda number=number: store.delete([f"a/{number}"]),  # type: ignore[misc]
            ]
            for call in calls:
                try:
                    call()
                except StoreUnavailable:
                    num_raised += 1
                except ObjectNotFound:
                    pass
        counts = store.counts
        for operation in ("put", "get", "list", "delete"):
            assert 30 < counts[f"{operation}.delay"] < 90
            assert 30 < counts[f"{operation}.error"] < 90
        assert num_raised == sum(count for name, count in counts.items() if not name.endswith("delay"))

    def test_the_seed_decides(self) -> None:
        def outcomes(seed: int) -> list[bool]:
            store = FaultyStore(new_memory(), Faults(put=Rates(error=0.5)), seed)
            succeeded = []
            for number in range(50):
                try:
                    store.put(f"key/{number % 7}", b"")
                    succeeded.append(True)
                except StoreUnavailable:
                    succeeded.append(False)
            return succeeded

        assert outcomes(1) == outcomes(1) != outcomes(2)

    def test_a_lost_response_leaves_the_object(self) -> None:
        store = FaultyStore(new_memory(), Faults(put=Rates(lost_response=1)), seed=0)
        with pytest.raises(StoreUnavailable, match="response was lost"):
            store.put("key", b"content")
        assert content(store, "key") == b"content"
        assert store.counts == {"put.lost_response": 1}

    def test_a_lost_response_of_create_is_resolved(self) -> None:
        store = FaultyStore(new_memory(), Faults(create=Rates(lost_response=1)), seed=0)
        store.create("key", b"mine")
        with pytest.raises(ObjectExists):
            store.create("key", b"of another")
        assert content(store, "key") == b"mine"
        assert store.counts["create.lost_response"] >= 1

    def test_create_that_cannot_be_resolved_stays_ambiguous(self) -> None:
        store = FaultyStore(new_memory(), Faults(create=Rates(lost_response=1), get=Rates(error=1)), seed=0)
        with pytest.raises(StoreUnavailable):
            store.create("key", b"mine")
        with pytest.raises(StoreUnavailable):
            store.create("key", b"of another")

    def test_create_that_was_not_done_is_reported(self) -> None:
        store = FaultyStore(new_memory(), Faults(create=Rates(error=1)), seed=0)
        with pytest.raises(StoreUnavailable, match="before it was done"):
            store.create("key", b"mine")

    def test_one_winner_under_faults(self) -> None:
        faults = Faults(create=Rates(error=0.3, lost_response=0.3), get=Rates(error=0.2))
        store = FaultyStore(new_memory(), faults, seed=3)

        def wins(race: int, nonce: bytes) -> bool:
            while True:
                try:
                    store.create(f"races/{race}", nonce)
                    return True
                except ObjectExists:
                    return False
                except StoreUnavailable:
                    continue

        with ThreadPoolExecutor(8) as pool:
            for race in range(40):
                assert sum(pool.map(lambda n, race=race: wins(race, n), [uuid.uuid4().bytes for _ in range(8)])) == 1
        assert min(store.counts[name] for name in ("create.error", "create.lost_response", "get.error")) > 5

    def test_impossible_rates_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"`error` is 1.5; it must be from 0 to 1"):
            Rates(error=1.5)
        with pytest.raises(InputError, match="both"):
            Rates(delay=0.5)


class TestWaiting:
    def test_an_object_that_arrives_later_is_returned(self, store: ObjectStore) -> None:
        writer = threading.Timer(0.05, lambda: store.put("late", b"content"))
        writer.start()
        try:
            assert bytes(wait_for(store, "late", timeout_s=10, abort=Abort())) == b"content"
        finally:
            writer.join()

    def test_one_that_does_not_come_is_named(self) -> None:
        began_s = time.monotonic()
        with pytest.raises(CommTimeout, match=r"no 'never' in memory://.* after 0\.[12] s of waiting"):
            wait_for(new_memory(), "never", timeout_s=0.1, abort=Abort())
        assert 0.1 <= time.monotonic() - began_s < 0.5

    def test_an_abort_frees_the_wait_at_once(self, open_kind: OpenStore) -> None:
        for kind in ("memory", "rclone"):
            store, abort = open_kind(kind), Abort()
            set_at_s: list[float] = []

            def free(abort: Abort = abort, set_at_s: list[float] = set_at_s) -> None:
                set_at_s.append(time.monotonic())
                abort.set("a peer is gone")

            timer = threading.Timer(0.3, free)
            timer.start()
            with pytest.raises(CommAborted, match="a peer is gone"):
                wait_for(store, "never", timeout_s=30, abort=abort)
            assert time.monotonic() - set_at_s[0] < 0.1
            timer.join()

    def test_a_store_that_fails_for_a_while_is_waited_for(self) -> None:
        store = FaultyStore(new_memory(), Faults(get=Rates(error=0.7)), seed=4)
        store.put("key", b"content")
        assert bytes(wait_for(store, "key", timeout_s=10, abort=Abort())) == b"content"
        assert store.counts["get.error"] > 0

    def test_a_store_that_goes_on_failing_is_blamed(self) -> None:
        store = FaultyStore(new_memory(), Faults(get=Rates(error=1)), seed=0)
        with pytest.raises(CommTimeout, match="the store fails: injected"):
            wait_for(store, "key", timeout_s=0.05, abort=Abort())

    def test_waiting_asks_seldom(self) -> None:
        counting = FaultyStore(new_memory(), Faults(get=Rates(delay=1, delay_s=1e-9)), seed=0)
        with pytest.raises(CommTimeout):
            wait_for(counting, "never", timeout_s=1, abort=Abort())
        assert 20 < counting.counts["get.delay"] < 160  # often at first, in the end every 10 ms


def step(number: int, at_s: float) -> StepCommitted:
    return StepCommitted(at_s=at_s, step=number, epoch=0, loss=1.0, num_samples=8, step_s=0.1)


class TestEvents:
    def test_round_trip_in_order_and_only_once(self, store: ObjectStore) -> None:
        reader = EventReader(store)
        assert reader.read_new() == []
        with EventWriter(store, "coordinator") as coordinator, EventWriter(store, "worker-1") as worker:
            coordinator.write(PhaseStarted(at_s=1.0, phase="train"))
            worker.write(step(0, 2.0))
            worker.write(step(1, 4.0))
            coordinator.write(Metered(at_s=3.0, usd=0.5))
        assert [event.at_s for event in reader.read_new()] == [1.0, 2.0, 3.0, 4.0]
        assert reader.read_new() == []
        with EventWriter(store, "worker-1") as again:
            again.write(step(2, 5.0))
        with EventWriter(store, "a-late-worker") as late:
            late.write(step(3, 6.0))
        assert [event.at_s for event in reader.read_new()] == [5.0, 6.0]
        assert [event.at_s for event in EventReader(store).read_new()] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        assert store.list("events/000000/worker-1") == [
            "events/000000/worker-1/00000000.jsonl",
            "events/000000/worker-1/00000001.jsonl",
        ]

    def test_each_roster_has_its_own(self, store: ObjectStore) -> None:
        for roster in (0, 1):
            with EventWriter(store, "worker", roster) as writer:
                writer.write(step(roster, float(roster)))
        assert [event.at_s for event in EventReader(store, 1).read_new()] == [1.0]

    def test_what_does_not_belong_there_is_left_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        store = new_memory()
        with EventWriter(store, "worker") as writer:
            writer.write(step(0, 0.0))
        for key in ("stray", "000000/stray", "000000/worker/stray-7", "000000/worker/1.jsonl"):
            store.put(f"events/{key}", b"stray")
        assert EventReader(store).read_new() == [step(0, 0.0)]
        with EventWriter(store, "worker") as again:
            again.write(step(1, 1.0))
        assert len(EventReader(store).read_new()) == 2
        assert "is ignored: nothing of a run has this name" in caplog.text

    def test_events_appear_while_the_writer_is_open(self) -> None:
        store = new_memory()
        reader = EventReader(store)
        with EventWriter(store, "worker") as writer:
            for number in range(3):
                writer.write(step(number, float(number)))
                deadline_s = time.monotonic() + 5
                while not (events := reader.read_new()) and time.monotonic() < deadline_s:
                    time.sleep(0.01)
                assert events == [step(number, float(number))]

    def test_the_first_event_waits_for_no_interval(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("zooid.store.event_log.EVENT_FLUSH_S", 3600.0)
        store = new_memory()
        writer = EventWriter(store, "worker")
        try:
            for number in range(3):  # each pause is twice as long as the one before
                writer.write(step(number, float(number)))
                wait_until(lambda count=number + 1: len(store.list("events/000000/worker")) == count)  # type: ignore[misc]
        finally:
            writer.close()

    def test_nothing_is_lost_or_doubled_by_a_failing_store(self) -> None:
        inner = new_memory()
        rates = Rates(error=0.3, lost_response=0.3)
        faulty = FaultyStore(inner, Faults(put=rates, list=rates, get=rates), seed=6)
        written = [step(number, float(number)) for number in range(40)]
        reader, read = EventReader(faulty), []
        with EventWriter(RetryingStore(faulty, give_up_s=10.0), "worker") as writer:
            for event in written:
                writer.write(event)
                time.sleep(0.05)
                try:
                    read += reader.read_new()
                except StoreUnavailable:
                    continue
        read += EventReader(inner).read_new()[len(read) :]
        assert read == written
        assert min(faulty.counts[name] for name in ("put.error", "put.lost_response", "get.error", "list.error")) > 0

    def test_a_store_that_goes_on_failing_is_reported_at_close(self, caplog: pytest.LogCaptureFixture) -> None:
        store = FaultyStore(new_memory(), Faults(put=Rates(error=1)), seed=0)
        writer = EventWriter(store, "worker")
        writer.write(step(0, 0.0))
        deadline_s = time.monotonic() + 10
        while not caplog.text and time.monotonic() < deadline_s:
            time.sleep(0.01)
        with pytest.raises(StoreUnavailable, match="injected"):
            writer.close()
        assert "could not be written, and will be retried" in caplog.text

    def test_the_first_error_of_a_with_block_is_the_one_raised(self, caplog: pytest.LogCaptureFixture) -> None:
        store = FaultyStore(new_memory(), Faults(put=Rates(error=1)), seed=0)

        def fail() -> None:
            with EventWriter(store, "worker") as writer:
                writer.write(step(0, 0.0))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert "are lost" in caplog.text

    def test_a_damaged_object_is_named_and_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        store = new_memory()
        store.put("events/000000/worker/00000000.jsonl", b"{}\n")
        with EventWriter(store, "worker") as writer:
            writer.write(step(1, 1.0))
        assert EventReader(store).read_new() == [step(1, 1.0)]
        assert "events/000000/worker/00000000.jsonl, line 1 is not an event" in caplog.text

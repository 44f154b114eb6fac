"""A newer claim ends whoever works under an earlier one, and keeps it from changing anything."""

import threading
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from lab.faults import Faults, FaultyStore, Rates
from lab.waiting import wait_until
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, StoreUnavailable, Superseded
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule, Division, Ledger
from zooid.core.runs.events import StepCommitted
from zooid.core.runs.spec import Adoption
from zooid.core.runs.store_rules import FENCE_FRESH_S, FENCE_LOOK_S
from zooid.store import EventReader, EventWriter, Fence, ObjectStore, fences, open_store
from zooid.worker.checkpoints import keeper as keeping
from zooid.worker.member.stop_listener import StopListener
from zooid.worker.state.loss_scaling import LossScale


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FENCE_LOOK_S", "FENCE_FRESH_S", "_HEED_S"):
        monkeypatch.setattr(fences, name, 0.05)


def never() -> None:
    raise AssertionError("it heeded the flag")


class TestLooking:
    def test_only_a_newer_claim_counts(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fences, "FENCE_FRESH_S", 0.0)
        first, second = Fence(store, 0), Fence(store, 1)
        first.check()
        store.put(keys.claim(1), b"")
        with pytest.raises(Superseded, match=r"claims/000001.json replaces claim 0; this process ends, and"):
            first.check()
        second.check()

    def test_an_adoption_replaces_the_coordinator_but_not_its_members(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fences, "FENCE_FRESH_S", 0.0)
        member, coordinator = Fence(store, 0), Fence(store, 0, coordinates=True)
        for number in (1, 2):
            store.put(keys.claim(number), encode_record(Adoption(run="7", roster=0, nonce=str(number))))
            member.check()
            assert coordinator.is_superseded()
        assert Fence(store, 1, coordinates=True).is_superseded(), "of two who adopt, the later one coordinates"
        store.put(keys.claim(3), encode_record(Adoption(run="7", roster=1, nonce="of others")))
        with pytest.raises(Superseded, match=r"claims/000003.json replaces claim 0"):
            member.check()

    def test_a_look_is_good_for_a_moment_only(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        counting = FaultyStore(store, Faults(get=Rates(delay=1, delay_s=1e-9)), seed=0)
        fence = Fence(counting, 0)
        for _ in range(10):
            assert not fence.is_superseded()
        assert counting.counts["get.delay"] == 1
        store.put(keys.claim(1), b"")
        monkeypatch.setattr(fences, "FENCE_FRESH_S", 0.0)
        assert fence.is_superseded()
        assert fence.is_superseded()
        assert counting.counts["get.delay"] == 2, "what is certain is not asked again"


@pytest.mark.usefixtures("quick")
class TestWatching:
    def test_a_member_is_freed_within_seconds(self, store: ObjectStore) -> None:
        abort = Abort()
        with Fence(store, 3).watched(abort, never):
            store.put(keys.claim(4), b"")
            with pytest.raises(CommAborted, match=r"claims/000004.json replaces claim 3"):
                abort.sleep(20.0)

    def test_a_member_that_starts_late_does_not_begin(self, store: ObjectStore) -> None:
        store.put(keys.claim(1), b"")
        with pytest.raises(Superseded), Fence(store, 0).watched(Abort(), never):
            raise AssertionError("it has begun")

    def test_one_that_does_not_heed_the_flag_is_ended(self, store: ObjectStore) -> None:
        ended = threading.Event()
        with Fence(store, 0).watched(Abort(), ended.set):
            store.put(keys.claim(1), b"")
            assert ended.wait(20.0), "it waits in somebody else's code"

    def test_a_store_that_fails_ends_nobody(self, store: ObjectStore) -> None:
        failing: Any = Flaky(store)
        abort = Abort()
        with Fence(failing, 0).watched(abort, never):
            failing.is_failing = True
            wait_until(lambda: failing.num_failures > 2)
            assert not abort.is_set
            store.put(keys.claim(1), b"")
            failing.is_failing = False
            wait_until(lambda: abort.is_set)

    def test_only_the_first_member_looks_for_a_request_to_stop(self, store: ObjectStore) -> None:
        counting = FaultyStore(store, Faults(get=Rates(delay=1, delay_s=1e-9)), seed=0)
        listener = StopListener(counting, 3)
        store.put(keys.stop_request(2), b"of earlier members")
        listener.look()
        assert "get.delay" not in counting.counts
        listener.is_first = True
        with Fence(store, 3).watched(Abort(), never, listener.look):
            wait_until(lambda: counting.counts.get("get.delay", 0) > 2)
            assert not listener.is_stop_asked()
            store.put(keys.stop_request(3), b"")
            wait_until(listener.is_stop_asked)
        num_gets = counting.counts["get.delay"]
        listener.look()
        assert counting.counts["get.delay"] == num_gets, "what is found is not looked for again"
        listener.is_first = False
        assert not listener.is_stop_asked(), "the others leave it to the first member"


class Flaky:
    """A store that fails while it is told to."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self.is_failing = False
        self.num_failures = 0
        self._inner = inner

    def get(self, key: str) -> memoryview:
        if self.is_failing:
            self.num_failures += 1
            raise StoreUnavailable("gone for a while")
        return self._inner.get(key)


class TestNothingIsChanged:
    @pytest.fixture(autouse=True)
    def superseded(self, store: ObjectStore) -> None:
        store.put(keys.claim(1), b"")

    def test_nothing_is_told(self, store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
        with EventWriter(store, "r0s0", 0, Fence(store, 0)) as writer:
            writer.write(step_committed(0))
        assert EventReader(store, 0).read_new() == []
        assert "are dropped" in caplog.text

    def test_no_checkpoint_is_written_or_pruned(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        done: list[Any] = []

        def write_manifest(*_: Any, **__: Any) -> str:
            done.append("written")
            return "url"

        monkeypatch.setattr(keeping, "write_manifest", write_manifest)
        monkeypatch.setattr(keeping, "prune", lambda *a, **b: done.append("pruned"))
        with EventWriter(store, "r0s0") as events:
            keeper = a_keeper(store, events)
            with pytest.raises(Superseded):
                keeper._complete(5, LossScale.for_job(None), Ledger())
        assert done == ["written"], "whoever writes the manifest looks for itself; pruning is refused"


def test_steps_are_told_before_the_checkpoint_that_contains_them_counts(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that is killed right after its manifest would otherwise leave a gap: nobody runs these steps again."""
    told: list[int] = []

    def write_manifest(*_: Any, **__: Any) -> str:
        told.extend(event.step for event in EventReader(store).read_new() if isinstance(event, StepCommitted))
        return "url"

    monkeypatch.setattr(keeping, "write_manifest", write_manifest)
    with EventWriter(store, "r0s0") as events:
        keeper = a_keeper(store, events)
        events.write(step_committed(4))
        keeper._complete(5, LossScale.for_job(None), Ledger())
    assert told == [4]


def a_keeper(store: ObjectStore, events: EventWriter) -> keeping.CheckpointKeeper:
    """The first member's, with nothing to write."""
    seat: Any = SimpleNamespace(rank=0, stage=0, replica=0)
    division = Division(stages=({},), parameters=frozenset(), roster=0)
    state: Any = SimpleNamespace(manifest=SimpleNamespace(step=0), saved=(0, 0.0), pause_s=None)
    return keeping.CheckpointKeeper(store, CheckpointRule(), division, state, seat, events, Abort())


def step_committed(step: int) -> StepCommitted:
    return StepCommitted(at_s=1.0, step=step, epoch=0, loss=1.0, num_samples=8, step_s=0.1)


def test_the_grace_outlasts_a_look_and_what_follows_it() -> None:
    assert fences.GRACE_S >= FENCE_LOOK_S + FENCE_FRESH_S + fences._HEED_S
    assert fences.GRACE_S < 10.0

"""Runs that end while their coordinator does not reach the members, but the store; and runs that have switched."""

import threading
from collections.abc import Collection
from pathlib import Path

import pytest

import zooid
from lab.waiting import wait_until
from tests.unit.profiles import offer
from tests.unit.scripted_runs import ScriptedPlatform, write_run
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.runs import cleanup, lease, supervision
from zooid.coordinator.runs.platform_choice import opened_platform
from zooid.core.errors import InputError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import CheckpointSaved, Event
from zooid.core.runs.member_records import MemberEnd, MemberHandle
from zooid.core.runs.steering import Steering
from zooid.platforms import Exit, Launch
from zooid.platforms.local import LocalPlatform
from zooid.store import Fence, ObjectStore, fences, open_store
from zooid.store.claims import last_claim
from zooid.store.member_starts import claim_start


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return write_run(tmp_path)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SILENCE_S", 1.0)
    monkeypatch.setattr(supervision, "GRACE_S", 0.1)
    monkeypatch.setattr(cleanup, "_BUSY_POLL_S", 0.05)
    monkeypatch.setattr(fences, "FENCE_FRESH_S", 0.05)


class CutOffPlatform(ScriptedPlatform):
    """Members that train until they are ended, and cannot be reached then."""

    def begin(self, launch: Launch) -> Exit | None:
        store = open_store(keys.split_spec_url(launch.ticket.spec_url)[0])
        claim_start(store, launch.ticket.member, launch.ticket.roster)
        end = super().begin(launch)
        return end if launch.member == "checker" else None

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        return [title for title in titles if self.ends[title] is None]


class TestCutOff:
    """The coordinator is interrupted while it does not reach its members, but the store."""

    def test_members_see_that_they_are_to_end_and_stay_known(
        self, store: ObjectStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        def interrupt(event: Event) -> None:
            if isinstance(event, CheckpointSaved):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            zooid.resume(store.url, platform=CutOffPlatform(), on_event=interrupt)
        assert Fence(store, 1).is_superseded()
        assert list(store.list(keys.LEFT)) == [keys.left("r0s0", 1), keys.left("r0s1", 1)]
        assert store.list(keys.HANDLES) == store.list(keys.LEASES) == []
        assert "members may still run: r0s0 on local" in caplog.text
        with pytest.raises(InputError, match="members may still run"):
            zooid.clean(store.url)
        zooid.resume(store.url, platform=ScriptedPlatform())
        assert not Fence(store, 3).is_superseded(), "nobody of this run was left"

    def test_those_that_end_meanwhile_are_forgotten(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervision, "GRACE_S", 5.0)

        def interrupt(event: Event) -> None:
            if isinstance(event, CheckpointSaved):
                threading.Thread(target=end_all).start()
                raise KeyboardInterrupt

        def end_all() -> None:
            wait_until(Fence(store, 1, coordinates=True).is_superseded, timeout_s=10.0)
            for member in ("r0s0", "r0s1"):
                store.put(keys.end(member, 1), encode_record(MemberEnd(member=member, exit=Exit(1))))

        with pytest.raises(KeyboardInterrupt):
            zooid.resume(store.url, platform=CutOffPlatform(), on_event=interrupt)
        assert list(store.list(keys.LEFT)) == []


def test_a_run_that_may_switch_to_other_machines_takes_its_job_along(store: ObjectStore) -> None:
    elsewhere = offer(0.0, name="ssh.gpu1", platform="ssh")
    store.put(keys.STEERING, encode_record(Steering(offers=(resolve_offer("local"), elsewhere))))
    zooid.resume(store.url, platform=ScriptedPlatform())
    assert last_claim(store)[1].code


def test_whoever_resumes_finds_members_on_any_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the plan with which the run began has offers of this machine alone."""
    monkeypatch.setattr(LocalPlatform, "expect", lambda self, num_threads, *, uses_gpus: None)
    place = {"host": "gpu1", "python": "python3", "config": ""}
    handle = MemberHandle(run="7", member="r0s0", platform="ssh", offer="ssh.gpu1", launched_at_s=0.0, place=place)
    with opened_platform(None, [resolve_offer("local")]) as platform:
        assert platform.watch(handle, "000000.r0s0")

"""Members that were left behind: `zooid clean` finds them by their handles, and ends them."""

from collections.abc import Collection
from pathlib import Path

import pytest

import zooid
from tests.platforms import PretendedPlatform
from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.runs import cleanup, lease, left_members
from zooid.core.errors import InputError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit, MemberEnd, MemberHandle
from zooid.core.runs.spec import RunClaim
from zooid.store import Fence, ObjectStore, open_store
from zooid.store.member_starts import claim_start

GPU1 = {"host": "gpu1", "python": "python3", "config": ""}
EVIL = {"address": "ray://evil:10001"}


class Found(PretendedPlatform):
    """A platform that ends whom it is told, if it reaches them."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[str] = []
        self.ended: list[str] = []
        self.is_cut_off = False
        self.trusts_handles = False

    def watch(self, handle: MemberHandle, title: str) -> bool:
        self.watched.append(title)
        return True

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        if self.is_cut_off:
            return titles
        self.ended += sorted(titles)
        return ()


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Found:
    made = Found()

    def any_platform(*, forks: bool, trusts_handles: bool) -> Found:
        made.trusts_handles = trusts_handles
        return made

    monkeypatch.setattr(left_members, "any_platform", any_platform)
    monkeypatch.setattr(cleanup, "GRACE_S", 0.05)
    monkeypatch.setattr(cleanup, "_BUSY_POLL_S", 0.05)
    monkeypatch.setenv("ZOOID_MACHINES", str(tmp_path / "none.toml"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return made


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A run whose coordinator has ended."""
    made = open_store((tmp_path / "run").as_uri())
    made.put(keys.CLAIM, encode_record(RunClaim(run="run", job_file="job.py")))
    return made


def put_handle(store: ObjectStore, key: str, member: str = "r0s0", place: dict[str, str] | None = None) -> None:
    platform = "ray" if place == EVIL else "ssh"
    handle = MemberHandle(run="run", member=member, platform=platform, offer="", launched_at_s=0.0, place=place or GPU1)
    store.put(key, encode_record(handle))
    claim_start(store, member, 0)


def test_members_that_could_not_be_ended_are_named_and_ended_by_force(store: ObjectStore, platform: Found) -> None:
    put_handle(store, keys.left("r0s0", 0))
    with pytest.raises(InputError, match=r"members may still run .*: r0s0 on ssh \(host gpu1, .*; --force ends them"):
        zooid.clean(store.url)
    assert (platform.ended, list(store.list(keys.LEFT))) == ([], [keys.left("r0s0", 0)])
    zooid.clean(store.url, force=True)
    assert platform.ended == ["000000.r0s0"]
    assert list(store.list(keys.LEFT)) == []
    assert Fence(store, 0).is_superseded()
    zooid.clean(store.url)


def test_those_that_still_cannot_be_reached_stay_known(
    store: ObjectStore, platform: Found, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SILENCE_S", 0.5)
    put_handle(store, keys.handle("r0s0", 0))
    store.put(keys.lease(0), b"a coordinator that was killed")
    platform.is_cut_off = True
    zooid.clean(store.url, force=True)
    assert list(store.list(keys.LEFT)) == [keys.left("r0s0", 0)]
    assert "members may still run: r0s0 on ssh (host gpu1" in caplog.text
    store.put(keys.end("r0s0", 0), encode_record(MemberEnd(member="r0s0", exit=Exit(0))))
    zooid.clean(store.url)


@pytest.mark.parametrize("folder", ["profiling", "probing", "sweeping", "rehearsal"])
def test_members_of_measurements_are_found_ended_and_removed(store: ObjectStore, platform: Found, folder: str) -> None:
    name = f"{folder}-0123456789abcdef"
    put_handle(open_store(f"{store.url}/{name}"), keys.handle("profiler-1", 0), "profiler-1")
    put_handle(open_store(f"{store.url}/{name}/ssh.gpu1+gpu2"), keys.handle("profiler-2", 0), "profiler-2")
    store.put(f"{name}/links.json", b"")
    with pytest.raises(InputError, match=r"profiler-1 on ssh .* profiler-2 on ssh"):
        zooid.clean(store.url)
    zooid.clean(store.url, force=True)
    assert platform.ended == ["000000.profiler-1", "000000.profiler-2"]
    assert list(store.list(name)) == []


def test_a_store_that_was_only_measured_from_can_be_cleaned(tmp_path: Path, platform: Found) -> None:
    name = "probing-0123456789abcdef"
    folder = open_store((tmp_path / "probes").as_uri())
    put_handle(open_store(f"{folder.url}/{name}"), keys.handle("m0", 0), "m0")
    zooid.clean(folder.url, force=True)
    assert platform.ended == ["000000.m0"]
    assert list(folder.list("")) == []


def test_a_temporary_folder_keeps_the_handles_of_members_that_may_still_run(tmp_path: Path) -> None:
    with scratch_folder(tmp_path.as_uri(), "probing") as folder:
        put_handle(folder, keys.left("m0", 0), "m0")
        folder.put("links.json", b"")
    [key] = open_store(tmp_path.as_uri()).list("")
    assert key.endswith("/left/000000/m0.json")


class TestUnnamedPlaces:
    def test_they_are_refused_before_anything_is_removed(self, store: ObjectStore, platform: Found) -> None:
        put_handle(store, keys.handle("r0s0", 0), place=EVIL)
        put_handle(store, keys.handle("r1s0", 0), "r1s0")
        store.put("comm/run/000000/letter", b"")
        before = store.list("")
        with pytest.raises(InputError, match=r"r0s0 on ray \(address ray://evil:10001\); nothing was removed: name"):
            zooid.clean(store.url, force=True)
        assert store.list("") == before
        assert platform.watched == []

    def test_they_are_followed_if_the_user_trusts_the_folder(self, store: ObjectStore, platform: Found) -> None:
        put_handle(store, keys.handle("r0s0", 0), place=EVIL)
        zooid.clean(store.url, force=True, trust_handles=True)
        assert platform.trusts_handles
        assert platform.ended == ["000000.r0s0"]

    def test_who_has_ended_is_not_looked_for(self, store: ObjectStore, platform: Found) -> None:
        put_handle(store, keys.handle("r0s0", 0), place=EVIL)
        store.put(keys.end("r0s0", 0), encode_record(MemberEnd(member="r0s0", exit=Exit(0))))
        zooid.clean(store.url, force=True)
        assert platform.watched == []

    @pytest.mark.parametrize("place", [{"hosts": "gpu1"}, {**GPU1, "port": "22"}])
    def test_a_malformed_one_does_not_stop_the_others_from_being_ended(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: dict[str, str]
    ) -> None:
        """With the real platforms, which do not look for it; and a handle that is none at all."""
        monkeypatch.setattr(cleanup, "GRACE_S", 0.05)
        monkeypatch.setenv("ZOOID_MACHINES", str(tmp_path / "none.toml"))
        put_handle(store, keys.handle("r0s0", 0), place=place)
        store.put(keys.handle("r1s0", 0), b'{"record":"member_handle","version":2,"place":7}')
        for trusts in (False, True):
            zooid.clean(store.url, force=True, trust_handles=trusts)

"""Crews: what is written for members, what they are billed for, and who may still run when the crew has ended."""

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.platforms import PretendedPlatform
from tests.unit.profiles import offer
from zooid.coordinator.runs import crew as crew_module
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.errors import MemberFailed
from zooid.core.records import encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberEnd, MemberStart
from zooid.core.runs.spec import WorkerSpec
from zooid.platforms import Exit
from zooid.store import ObjectStore, open_store
from zooid.store.member_starts import claim_start

PRICED = offer(3600.0, name="slurm.short", platform="slurm", billing_grain_s=1e-3)
"""A dollar a second."""
HERE = offer(3600.0, name="local", platform="local", billing_grain_s=1e-3)


class Unreachable(PretendedPlatform):
    """A platform that does not reach some of its members any more."""

    def __init__(self, *titles: str) -> None:
        super().__init__()
        self.lost = titles

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        return set(titles) & set(self.lost)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr(crew_module, "_START_LOOK_S", 0.0)
    monkeypatch.setattr(crew_module, "store_package", lambda store: "digest")
    return open_store(tmp_path.as_uri())


def specs(store: ObjectStore, *members: str) -> list[WorkerSpec]:
    common: dict[str, Any] = {"store": store.url, "job_file": "job.py", "num_threads": 1, "timeout_s": 1.0}
    return [WorkerSpec(run="run", member=name, task="train", **common) for name in members]


def started(
    platform: PretendedPlatform, store: ObjectStore, *members: str, on: Offer = PRICED, meter: RunMeter | None = None
) -> Crew:
    crew = Crew(platform, store, checks_input=False, meter=meter, trains=True)
    crew.start("worker", specs(store, *members), [on] * len(members))
    return crew


class TestLaunch:
    def test_specs_and_handles_of_all_are_there_before_any_is_created(self, store: ObjectStore) -> None:
        names = [f"r{number}s0" for number in range(40)]
        seen: list[Sequence[str]] = []

        class Noting(PretendedPlatform):
            def create(self, launches: Sequence[Any]) -> None:
                seen.extend([store.list(keys.SPECS), store.list(keys.HANDLES)])
                assert [launch.package for launch in launches] == ["digest"] * len(names)
                assert [launch.member for launch in launches] == names
                super().create(launches)

        started(Noting(), store, *names)
        assert [len(listed) for listed in seen] == [40, 40]

    def test_zooid_itself_is_stored_once_for_all(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[ObjectStore] = []

        def store_package(store: ObjectStore) -> str:
            calls.append(store)
            return "digest"

        monkeypatch.setattr(crew_module, "store_package", store_package)
        started(PretendedPlatform(), store, "r0s0", "r1s0", "r2s0")
        assert len(calls) == 1
        started(PretendedPlatform(), store, "r3s0", on=HERE)
        assert len(calls) == 1, "members here need none"


def test_a_member_that_grew_too_large_is_named_with_limit_peak_and_prediction(store: ObjectStore) -> None:
    platform = PretendedPlatform()
    [spec] = specs(store, "r0s0")
    crew = Crew(platform, store, checks_input=False)
    crew.start("worker", [structs.replace(spec, predicted_bytes=400_000_000)], [PRICED])
    platform.ends["000000.r0s0"] = Exit(-9, exceeded_bytes=500_000_000, peak_bytes=499_000_000)
    with pytest.raises(MemberFailed) as caught:
        crew.is_done()
    assert str(caught.value) == (
        "member r0s0 was ended by the kernel: it used more than its 500 MB of memory, and had up to 499 MB; "
        "predicted: 400 MB"
    )


class TestBill:
    def ends(self, store: ObjectStore, end: Exit | None, on: Offer = PRICED) -> tuple[RunMeter, Crew]:
        meter, platform = RunMeter(), PretendedPlatform()
        crew = started(platform, store, "r0s0", on=on, meter=meter)
        platform.ends["000000.r0s0"] = end
        return meter, crew

    def usd(self, meter: RunMeter, after_s: float = 100.0) -> float:
        return meter.read(time.time() + after_s).usd

    @pytest.mark.parametrize("on", [PRICED, HERE], ids=["queued", "here"])
    def test_who_could_not_be_started_costs_nothing(self, store: ObjectStore, on: Offer) -> None:
        meter, crew = self.ends(store, Exit(None, reason="could not be started: no quota"), on)
        assert crew.has_ended("r0s0")
        assert self.usd(meter) == 0.0

    def test_who_was_cancelled_in_the_queue_costs_nothing(self, store: ObjectStore) -> None:
        meter, crew = self.ends(store, None)
        crew.end()
        assert self.usd(meter) == 0.0
        assert meter.running == ()

    def test_the_time_in_the_queue_is_not_billed(self, store: ObjectStore) -> None:
        meter, crew = self.ends(store, None)
        assert not crew.has_ended("r0s0")
        assert self.usd(meter) == 0.0, "it waits"
        start = MemberStart(member="r0s0", nonce="1", at_s=time.time())
        store.create(keys.start("r0s0", 0), encode_record(start))
        assert not crew.has_ended("r0s0")
        assert self.usd(meter) == pytest.approx(100.0, abs=5.0)
        assert [member.member for member in meter.running] == ["r0s0"]

    def test_a_clock_that_is_wrong_bills_no_more_than_since_the_launch(self, store: ObjectStore) -> None:
        meter, crew = self.ends(store, None)
        store.create(keys.start("r0s0", 0), encode_record(MemberStart(member="r0s0", nonce="1", at_s=0.0)))
        assert not crew.has_ended("r0s0")
        assert self.usd(meter) == pytest.approx(100.0, abs=5.0)

    def test_who_has_begun_and_says_nothing_more_is_billed(self, store: ObjectStore) -> None:
        meter, crew = self.ends(store, None, HERE)
        claim_start(store, "r0s0", 0)
        time.sleep(0.05)
        crew.end()
        assert self.usd(meter) == pytest.approx(0.05, abs=1.0)
        assert self.usd(meter) > 0

    def test_who_still_waits_when_all_others_have_ended_is_billed_to_its_end(self, store: ObjectStore) -> None:
        class Billing(PretendedPlatform):
            def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
                assert set(titles) == {"000000.r0s0-1"}
                self.ends |= dict.fromkeys(titles, Exit(None, billed_s=7.0))
                return ()

        meter, platform = RunMeter(), Billing()
        crew = started(platform, store, "r0s0", "r0s0-1", meter=meter)
        platform.ends["000000.r0s0"] = Exit(0, billed_s=5.0)
        assert crew.has_ended("r0s0")
        crew.end_waiting()
        assert meter.running == ()
        assert self.usd(meter) == pytest.approx(12.0)

    def test_starts_that_an_older_zooid_has_claimed_can_be_read(self, store: ObjectStore) -> None:
        meter, crew = self.ends(store, None)
        store.create(keys.start("r0s0", 0), b'{"record":"member_start","version":1,"member":"r0s0","nonce":"1"}')
        assert not crew.has_ended("r0s0")
        assert self.usd(meter) == pytest.approx(100.0, abs=5.0)


class TestLeft:
    def test_handles_of_members_that_could_not_be_ended_stay(self, store: ObjectStore) -> None:
        crew = started(Unreachable("000000.r0s0"), store, "r0s0", "r1s0")
        for member in ("r0s0", "r1s0"):
            claim_start(store, member, 0)
        handle = bytes(store.get(keys.handle("r0s0", 0)))
        crew.end()
        assert list(store.list(keys.LEFT)) == [keys.left("r0s0", 0)]
        assert bytes(store.get(keys.left("r0s0", 0))) == handle

    def test_who_never_begins_or_has_ended_is_not_left(self, store: ObjectStore) -> None:
        """The store cancels the start of the first, and the second has recorded its end."""
        crew = started(Unreachable("000000.r0s0", "000000.r1s0"), store, "r0s0", "r1s0")
        claim_start(store, "r1s0", 0)
        store.put(keys.end("r1s0", 0), encode_record(MemberEnd(member="r1s0", exit=Exit(0))))
        crew.end()
        assert list(store.list(keys.LEFT)) == []

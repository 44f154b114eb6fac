"""Profiles on several offers: who measures when, what each is told, and how all of it ends."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import structs

from tests.platforms import PretendedPlatform
from tests.unit.profiles import layer, link, offer, profile
from zooid import coordinator
from zooid.coordinator.measurements.job_profiles import rounds
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.runs.relay import ProgressSum
from zooid.core.errors import InputError, MemberFailed
from zooid.core.plans.profile import Profile
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import Event, PhaseStarted, ProfileProgress
from zooid.core.runs.spec import ProfilerSpec
from zooid.platforms import Exit, Launch
from zooid.store import EventWriter, open_store

NUM_PARTS = 3
QUARTER, HALF, WHOLE = "limited:aws.lambda.512", "limited:aws.lambda.1024", "limited:aws.lambda.1769"


def limited(name: str, vcpus: float, memory_bytes: int = 1) -> Offer:
    return offer(name=f"limited:{name}", platform="local", vcpus=vcpus, memory_bytes=memory_bytes)


def named(*offers: Offer) -> dict[str, Offer]:
    return {each.name.rpartition(":")[2]: each for each in offers}


class TestRounds:
    def test_limited_members_share_the_machine_as_long_as_it_has_cores(self) -> None:
        offers = named(limited("a", 1.0), limited("b", 1.0), limited("c", 0.5), limited("d", 2.0))
        assert rounds(offers, 2.0, 10**9) == [["a", "b"], ["c"], ["d"]]
        assert rounds(offers, 4.0, 10**9) == [["a", "b", "c"], ["d"]]
        assert rounds(offers, 4.5, 10**9) == [["a", "b", "c", "d"]]

    def test_and_as_long_as_it_has_memory(self) -> None:
        offers = named(limited("a", 0.1, 6), limited("b", 0.1, 5), limited("c", 0.1, 4))
        assert rounds(offers, 2.0, 10) == [["a", "c"], ["b"]]
        assert rounds(offers, 2.0, 15) == [["a", "b", "c"]]

    def test_a_member_without_limits_has_the_machine_to_itself(self) -> None:
        free, priced = offer(name="local", platform="local"), offer(name="local:p", platform="local")
        assert rounds(named(limited("a", 0.1), free, limited("b", 0.1), priced), 8.0, 10**9) == [
            ["a", "b"],
            ["local"],
            ["p"],
        ]

    def test_elsewhere_all_measure_at_once(self) -> None:
        away = [offer(name=f"cloud.{number}", platform="cloud", vcpus=64.0) for number in range(3)]
        free = offer(name="local", platform="local")
        assert rounds(named(free, limited("a", 0.1), *away), 1.0, 10) == [
            ["local", "cloud.0", "cloud.1", "cloud.2"],
            ["a"],
        ]

    def test_an_offer_that_is_too_large_for_all_of_it_is_still_tried(self) -> None:
        """Offers that are larger than the machine are refused before; nobody is left out here."""
        assert rounds(named(limited("a", 9.0)), 2.0, 10) == [["a"]]


def test_parts_of_members_add_up() -> None:
    seen: list[Event] = []
    parts = ProgressSum(3, seen.append)
    first, second = parts.of("first"), parts.of("second")
    for take, done in ((first, 0), (second, 0), (first, 2), (second, 1), (first, 7)):
        take(ProfileProgress(at_s=1.0, done=done, total=7))
    first(PhaseStarted(at_s=2.0, phase="other"))
    assert [(event.done, event.total) for event in seen if isinstance(event, ProfileProgress)] == [
        (0, 21),
        (0, 21),
        (2, 21),
        (3, 21),
        (8, 21),
    ]
    assert seen[-1] == PhaseStarted(at_s=2.0, phase="other")


@dataclass
class Member:
    """One that measures nothing: on every look it has done one more part, and at the end it leaves its profile."""

    launch: Launch
    spec: ProfilerSpec
    num_looks: int = 0
    is_terminated: bool = False


class Pretending(PretendedPlatform):
    """A platform whose members only pretend; those of the named offer fail half-way."""

    def __init__(self, failing: str = "") -> None:
        super().__init__()
        self.failing = failing
        self.launched: list[Member] = []
        self.most_at_once = 0

    def begin(self, launch: Launch) -> None:
        url, key = keys.split_spec_url(launch.ticket.spec_url)
        store = open_store(url)
        store.put(keys.log(launch.member, 0), b"its last words")
        member = Member(launch, decode_record(bytes(store.get(key)), ProfilerSpec, key))
        self.launched.append(member)
        self.most_at_once = max(self.most_at_once, sum(self._is_running(each) for each in self.launched))

    def members(self, run: str) -> Mapping[str, Exit | None]:
        of_run = [member for member in self.launched if member.spec.run == run]
        return {member.launch.ticket.title: self._look(member) for member in of_run}

    def _look(self, member: Member) -> Exit | None:
        if member.num_looks <= NUM_PARTS:
            self._go_on(member)
            member.num_looks += 1
        if self._fails(member) and member.num_looks > 1:
            return Exit(9)
        return None if self._is_running(member) else Exit(0)

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        for member in self.launched:
            if member.spec.run == run:
                member.is_terminated = True
        return ()

    def _go_on(self, member: Member) -> None:
        store = open_store(member.spec.store)
        with EventWriter(store, member.spec.member) as events:
            events.write(ProfileProgress(at_s=1.0, done=member.num_looks, total=NUM_PARTS))
        if member.num_looks == NUM_PARTS:
            made = profile([layer(1.0)], links=(link(from_site=member.spec.site),))
            store.put(keys.PROFILE, encode_record(member.spec.known or made))

    def _is_running(self, member: Member) -> bool:
        return member.num_looks <= NUM_PARTS

    def _fails(self, member: Member) -> bool:
        return bool(self.failing) and member.spec.site.endswith(self.failing)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, 8 GB."""
    for module in ("measurements.job_profiles", "plans.offer_names"):
        monkeypatch.setattr(f"zooid.coordinator.{module}.cpu_quota", lambda: 2.0)
        monkeypatch.setattr(f"zooid.coordinator.{module}.memory_bytes", lambda: 8 * 10**9)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.py"
    file.write_text("job = None\n")
    return file


def sites(found: dict[str, Profile]) -> dict[str, str]:
    return {name: each.links[0].from_site for name, each in found.items()}


def test_each_offer_gets_a_member_and_a_profile_of_its_own(job: Path) -> None:
    platform, seen = Pretending(), list[Event]()
    found = coordinator.profiles(job, on=[WHOLE, "local", QUARTER], platform=platform, on_event=seen.append)
    assert sites(found) == {"aws.lambda.1769": WHOLE, "local": "local", "aws.lambda.512": QUARTER}
    assert list(found) == ["aws.lambda.1769", "local", "aws.lambda.512"]
    assert [member.spec.site for member in platform.launched] == [WHOLE, QUARTER, "local"]
    assert platform.most_at_once == 2
    assert [member.launch.member for member in platform.launched] == [
        "profiler-1",
        "profiler-3",
        "profiler-2",
    ]
    for member, on in zip(platform.launched, (WHOLE, QUARTER, "local"), strict=True):
        size = member.launch.ticket.size
        assert (size is None) == (on == "local")
        assert size is None or size.vcpus == resolve_offer(on).vcpus
    progress = [event for event in seen if isinstance(event, ProfileProgress)]
    done = [event.done for event in progress]
    assert done == sorted(done)
    assert (done[-1], {event.total for event in progress}) == (3 * NUM_PARTS, {3 * NUM_PARTS})
    assert [type(event) for event in seen].count(PhaseStarted) == 1


def test_one_offer_is_measured_as_ever(job: Path) -> None:
    platform = Pretending()
    found = coordinator.profile(job, on=HALF, platform=platform)
    assert found.links[0].from_site == HALF
    assert [member.launch.member for member in platform.launched] == ["profiler"]


def test_what_is_known_goes_to_the_offer_that_it_is_of(job: Path) -> None:
    platform = Pretending()
    known = profile([layer(2.0)], date="2026-11-02")
    found = coordinator.profiles(job, on=[QUARTER, HALF], known={"aws.lambda.1024": known}, platform=platform)
    assert [member.spec.known for member in platform.launched] == [None, known]
    assert found["aws.lambda.1024"].date == "2026-11-02"
    alone = coordinator.profile(job, on=HALF, known=structs.replace(known, date="2026-11-03"), platform=platform)
    assert alone.date == "2026-11-03"


def test_when_one_fails_all_end_and_the_failed_one_is_named(job: Path) -> None:
    platform = Pretending(failing="512")
    with pytest.raises(MemberFailed, match=r"measured on limited:aws\.lambda\.512, its process exited with") as failed:
        coordinator.profiles(job, on=[WHOLE, QUARTER, "local"], platform=platform)
    assert failed.value.details == "its last words"
    assert [member.spec.site for member in platform.launched] == [WHOLE, QUARTER]
    assert all(member.is_terminated for member in platform.launched)


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ([HALF, HALF], f"{HALF} and {HALF} name the same offer; give it once"),
        (["local:aws.lambda.1024", HALF], f"local:aws.lambda.1024 and {HALF} name the same offer"),
        (["local", "local"], "local and local name the same offer"),
        ([], "no offer is given; give one or more, for example local"),
        (["local", "moon"], "members cannot be started on 'moon'"),
    ],
)
def test_offers_that_cannot_be_told_apart_are_refused(job: Path, on: Sequence[str], message: str) -> None:
    platform = Pretending()
    with pytest.raises(InputError, match=message):
        coordinator.profiles(job, on=on, platform=platform)
    assert platform.launched == []


def test_a_known_profile_of_another_offer_is_refused(job: Path) -> None:
    with pytest.raises(InputError, match=r"`known` has profiles of aws\.lambda\.512, but `on` names local"):
        coordinator.profiles(job, on=["local"], known={"aws.lambda.512": profile([layer(1.0)])}, platform=Pretending())

"""Probes of links by real members: what they measure on links that are known, and how they end when a member does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import zooid
from lab.namespaces import Star, connect_members, shape
from lab.servers import rclone_s3
from tests.integration.interpreters import run_zooid
from tests.integration.laboratory import star_or_skip
from tests.integration.recording import RecordingPlatform, still_running
from zooid.core.errors import InputError, MemberFailed
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.link import STORE_SITE, Link, Links
from zooid.core.runs import keys
from zooid.core.runs.events import Event, ProfileProgress
from zooid.core.runs.spec import Failure, LinkEnd, ProbeMember, ProbeSpec
from zooid.store import EventReader, ObjectStore, open_store

pytestmark = pytest.mark.timeout(60)

LINK_BYTES_PER_S = 20_000_000
SLOW_BYTES_PER_S = 10_000_000
TOLERANCE = 0.05
PATIENCE_S = 15.0


def by_ends(links: Links) -> dict[tuple[str, str, int, int], Link]:
    return {(link.from_site, link.to_site, link.num_members, link.num_streams): link for link in links.links}


def assert_sensible(links: Links, source: str) -> None:
    assert all(link.bandwidth_bytes_per_s > 1e6 and 0 < link.rtt_s < 1 and link.spread >= 0 for link in links.links)
    assert {(link.source, link.date) for link in links.links} == {(source, links.date)}
    assert links.missing == ()


class TestOnThisMachine:
    def test_links_to_the_store(self, tmp_path: Path) -> None:
        platform = RecordingPlatform()
        events: list[Event] = []
        links = zooid.probe(
            store=tmp_path.as_uri(),
            sites=["home", "away"],
            ends=["store"],
            streams=[2],
            seconds=0.05,
            on_event=events.append,
            platform=platform,
        )
        up = {(site, STORE_SITE, number, 2) for site in ("home", "away") for number in (1, 2)}
        down = {(STORE_SITE, site, number, 2) for site in ("home", "away") for number in (1, 2)}
        assert set(by_ends(links)) == up | down
        assert_sensible(links, "probe of file")
        progress = [event for event in events if isinstance(event, ProfileProgress)]
        assert progress[-1].done == progress[-1].total > 0
        assert still_running(list(platform.pids.values())) == []
        assert list(tmp_path.iterdir()) == []

    def test_links_between_members(self) -> None:
        links = zooid.probe(members=3, sites=["home", "home", "away"], ends=["peers"], streams=[2], seconds=0.05)
        inside = {("home", "home", number, 2) for number in (1, 2, 3)}
        outside = {(*ends, number, 2) for ends in (("home", "away"), ("away", "home")) for number in (1, 3)}
        assert set(by_ends(links)) == inside | outside
        assert_sensible(links, "probe of tcp")

    def test_the_command_writes_a_file_that_can_be_read_back(self, tmp_path: Path) -> None:
        ended = run_zooid("probe", "--members", "1", "--seconds", "0.2", "--json", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        written = (tmp_path / "links.json").read_bytes()
        links = decode_record(written, Links, "links.json")
        assert written == ended.stdout.encode()
        assert {(link.from_site, link.to_site) for link in links.links} == {("local", "store"), ("store", "local")}
        assert [path.name for path in tmp_path.iterdir()] == ["links.json"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--members", "0"], "`members` is 0; give 1 or more"),
            (["--members", "2", "--site", "home"], "1 site(s) are given for 2 member(s)"),
            (["--only", "moon"], "--only is 'moon'; give store, peers or all-reduce"),
            (["--members", "1", "--only", "peers"], "there is only one member"),
            (["--seconds", "0"], "`seconds` is 0; give a number from 0.05 to 60"),
            (["--store", "memory://here"], "memory://here lives in one process"),
            (["--on", "moon"], "members cannot be started on 'moon'"),
            (["--size", "1MiB"], "--size is for --only all-reduce; leave it out"),
            (["--only", "all-reduce", "--seconds", "1"], "--seconds is for links; leave it out"),
            (["--only", "all-reduce", "--members", "1"], "`members` is 1; an all-reduce needs 2 or more"),
            (["--only", "all-reduce", "--library", "mpi"], "--library is 'mpi'; give gloo or nccl"),
            (["--only", "all-reduce", "--size", "1B"], "the size(s) in bytes are (1,); give different ones from 4 on"),
            (["--only", "all-reduce", "--size", "6B"], "the sizes are (6,) bytes; give multiples of 4"),
            (["--only", "all-reduce", "--size", "9TiB"], "give smaller sizes, or fewer at once"),
            (["--only", "all-reduce", "--at-once", "0"], "the number(s) of all-reduces at once are (0,)"),
            (["--only", "all-reduce", "--repeats", "0"], "`repeats` is 0; give 1 or more"),
            (["--only", "all-reduce", "--join", "no.json"], "no.json cannot be read"),
            (["--only", "all-reduce", "--site", "home", "--site", "away"], "all-reduces are measured at one site"),
        ],
    )
    def test_bad_input_is_refused_with_one_line(self, arguments: list[str], message: str, tmp_path: Path) -> None:
        ended = run_zooid("probe", *arguments, cwd=tmp_path)
        assert ended.returncode == 2
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr
        assert list(tmp_path.iterdir()) == []

    def test_the_same_number_of_streams_twice_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"`streams` is \(4, 4\)"):
            zooid.probe(streams=(4, 4))


@pytest.fixture
def lab() -> Iterator[Star]:
    with star_or_skip(2) as made:
        shape(made, LINK_BYTES_PER_S)
        yield made


def in_namespaces(lab: Star) -> RecordingPlatform:
    return RecordingPlatform(lambda launch: lab.members[int(launch.member.removeprefix("m"))].prefix)


def assert_rates(links: Links, expected: dict[tuple[str, str, int, int], int]) -> None:
    rates = {ends: link.bandwidth_bytes_per_s for ends, link in by_ends(links).items()}
    print(rates)
    assert rates.keys() == expected.keys()
    assert max(abs(rates[ends] / expected[ends] - 1) for ends in expected) <= TOLERANCE, rates


class TestOnLinksThatAreKnown:
    @pytest.fixture(autouse=True)
    def half_as_often_as_usual(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ZOOID_PROFILE_EFFORT", "0.5")

    def test_between_members_each_way_has_its_own_bandwidth(self, lab: Star, tmp_path: Path) -> None:
        connect_members(lab)
        slow = ["rate", f"{8 * SLOW_BYTES_PER_S}bit", "burst", "64k", "limit", "512k"]
        home = lab.members[0]
        subprocess.run(
            [*home.prefix, "tc", "qdisc", "replace", "dev", home.device, "root", "tbf", *slow], check=True, timeout=10
        )
        links = zooid.probe(
            store=tmp_path.as_uri(),
            sites=["home", "away"],
            ends=["peers"],
            streams=[4],
            seconds=0.6,
            platform=in_namespaces(lab),
        )
        slow_way = {("home", "away", number, 4): SLOW_BYTES_PER_S for number in (1, 2)}
        fast_way = {("away", "home", number, 4): LINK_BYTES_PER_S for number in (1, 2)}
        assert_rates(links, slow_way | fast_way)

    def test_to_the_store(self, lab: Star, monkeypatch: pytest.MonkeyPatch) -> None:
        with rclone_s3(lab.store.address, lab.store.prefix) as server:
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            url = server.bucket_url("probes")
            links = zooid.probe(store=url, ends=["store"], streams=[4], seconds=0.4, platform=in_namespaces(lab))
            assert open_store(url).is_empty()
        both_ways = (("local", STORE_SITE), (STORE_SITE, "local"))
        assert_rates(links, {(*ends, number, 4): LINK_BYTES_PER_S for ends in both_ways for number in (1, 2)})

    def test_members_that_cannot_reach_each_other_have_no_link(self, lab: Star, tmp_path: Path) -> None:
        links = zooid.probe(
            store=tmp_path.as_uri(), sites=["home", "away"], ends=["peers"], seconds=0.1, platform=in_namespaces(lab)
        )
        assert links.links == ()
        assert [(gap.from_site, gap.to_site) for gap in links.missing] == [("home", "away"), ("away", "home")]
        assert links.missing[0].reason.startswith(f"m0 cannot connect to m1 ({lab.members[1].address}: ")


class TestLostMember:
    @pytest.mark.parametrize("ends", [["store"], ["peers"]], ids=["store", "peers"])
    def test_is_named_and_nothing_is_left(self, ends: list[LinkEnd], tmp_path: Path) -> None:
        platform = RecordingPlatform()
        killed_s: list[float] = []

        def kill_in_the_middle(event: Event) -> None:
            if isinstance(event, ProfileProgress) and event.done > 0 and not killed_s:
                os.kill(platform.pids["m1"], signal.SIGKILL)
                killed_s.append(time.monotonic())

        with pytest.raises(MemberFailed) as caught:
            zooid.probe(store=tmp_path.as_uri(), ends=ends, seconds=5, on_event=kill_in_the_middle, platform=platform)
        assert str(caught.value) == "member m1 was killed by signal 9 (SIGKILL)"
        assert time.monotonic() - killed_s[0] < PATIENCE_S
        assert still_running(list(platform.pids.values())) == []
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("names", "said"),
        [
            (["m0", "m1"], "member m1 was lost while"),
            (["m0"], "member m1 did not reach the start within 2 s"),
        ],
        ids=["while bytes flow", "at a meeting"],
    )
    def test_is_missed_by_one_that_is_left_alone(self, names: list[str], said: str, tmp_path: Path) -> None:
        """There is no coordinator that would end it."""
        store = open_store(tmp_path.as_uri())
        started = start_members(store, timeout_s=2.0, names=names)
        try:
            if "m1" in started:
                wait_until(lambda: bytes_flow(store))
                started["m1"].kill()
            assert started["m0"].wait(PATIENCE_S) == 1
        finally:
            for process in started.values():
                process.kill()
                process.wait()
        failure = decode_record(bytes(store.get(keys.failure("m0"))), Failure, "m0")
        assert failure.message.startswith(said)
        assert failure.is_consequence


def start_members(store: ObjectStore, *, timeout_s: float, names: list[str]) -> "dict[str, subprocess.Popen[bytes]]":
    """Members of a probe as a platform would start them, or only some of them."""
    started = {}
    for name in names:
        spec = ProbeSpec(
            run="alone",
            member=name,
            store=store.url,
            num_threads=1,
            members=(ProbeMember(name="m0", site="home"), ProbeMember(name="m1", site="home")),
            ends=("peers",),
            num_streams=(4,),
            num_repeats=1,
            seconds=30.0,
            timeout_s=timeout_s,
        )
        store.put(keys.spec(name), encode_record(spec))
        command = [sys.executable, "-m", "zooid.profiler", f"{store.url}/{keys.spec(name)}"]
        started[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return started


def bytes_flow(store: ObjectStore) -> bool:
    """Whether the first measurement, of a round trip, is over, and that of a bandwidth has begun."""
    has_begun = bool(store.list(f"{keys.probes_of('alone')}/meeting-000004"))
    return has_begun and any(
        isinstance(event, ProfileProgress) and event.done == 1 for event in EventReader(store).read_new()
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)

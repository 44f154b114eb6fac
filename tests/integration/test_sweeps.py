"""All-reduces of Gloo, timed by real members: what becomes of a sweep, and how it ends when a member does."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

import zooid
from lab.namespaces import connect_members, shape
from tests.integration.interpreters import run_zooid
from tests.integration.laboratory import star_or_skip
from tests.integration.recording import RecordingPlatform, still_running
from zooid.core.errors import InputError, MemberFailed
from zooid.core.plans.all_reduce_samples import AllReduceSamples
from zooid.core.records import decode_record
from zooid.core.runs.events import Event, ProfileProgress
from zooid.platforms import Launch
from zooid.predictor.learned.all_reduce_model import fit_all_reduce

pytestmark = pytest.mark.timeout(90)

KIB, MIB = 2**10, 2**20
LINK_BYTES_PER_S = 20_000_000
PATIENCE_S = 15.0


def test_members_time_all_reduces_in_groups_of_growing_size(tmp_path: Path) -> None:
    platform = RecordingPlatform()
    events: list[Event] = []
    began_s = time.time()
    measured = zooid.probe_all_reduce(
        members=3,
        store=tmp_path.as_uri(),
        site="home",
        sizes=[MIB, 4 * KIB],
        at_once=[1, 3],
        repeats=2,
        on_event=events.append,
        platform=platform,
    )
    settings = Counter((each.num_members, each.num_bytes, each.concurrency) for each in measured.samples)
    assert settings == {(n, size, c): 2 for n in (2, 3) for size in (4 * KIB, MIB) for c in (1, 3)}
    assert {(each.library, each.offer, each.site) for each in measured.samples} == {("gloo", "local", "home")}
    assert all(began_s <= each.at_s <= time.time() and 0 < each.took_s < 10 for each in measured.samples)
    progress = [event for event in events if isinstance(event, ProfileProgress)]
    assert progress[-1].done == progress[-1].total == len(measured.samples)
    assert still_running(list(platform.pids.values())) == []
    assert list(tmp_path.iterdir()) == []


def test_the_command_joins_what_was_measured_before(tmp_path: Path) -> None:
    command = ["probe", "--only", "all-reduce", "--at-once", "1", "--repeats", "4"]
    sizes = ["4KiB", "16KiB", "64KiB", "256KiB", "1MiB"]
    for options in ([f"--size={size}" for size in sizes], ["--size=2MiB", "--join=all-reduces.json", "--json"]):
        ended = run_zooid(*command, *options, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
    written = (tmp_path / "all-reduces.json").read_bytes()
    assert ended.stdout.encode() == written
    joined = decode_record(written, AllReduceSamples, "all-reduces.json")
    assert Counter(each.num_bytes for each in joined.samples) == dict.fromkeys(
        (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB), 4
    )
    assert [path.name for path in tmp_path.iterdir()] == ["all-reduces.json"]
    estimate = fit_all_reduce(joined.samples, time.time()).predict(128 * KIB, 2)
    assert 0 < estimate.low_s <= estimate.median_s <= estimate.high_s < 10


def test_on_links_that_are_known_bus_bandwidth_is_theirs(tmp_path: Path) -> None:
    with star_or_skip(2) as lab:
        connect_members(lab)
        shape(lab, LINK_BYTES_PER_S)

        def inside(launch: Launch) -> list[str]:
            home = lab.members[int(launch.member.removeprefix("m"))]
            return [*home.prefix, "env", f"GLOO_SOCKET_IFNAME={home.device}"]

        measured = zooid.probe_all_reduce(
            store=tmp_path.as_uri(), sizes=[4 * MIB], at_once=[1, 2], repeats=3, platform=RecordingPlatform(inside)
        )
    for each in measured.samples:
        at_best_s = each.concurrency * each.bus_bytes_per_s * each.took_s / LINK_BYTES_PER_S
        assert 0.95 * at_best_s < each.took_s < 1.5 * at_best_s


def test_a_lost_member_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    platform = RecordingPlatform()
    killed_s: list[float] = []

    def kill_in_the_middle(event: Event) -> None:
        if isinstance(event, ProfileProgress) and event.done > 0 and not killed_s:
            os.kill(platform.pids["m1"], signal.SIGKILL)
            killed_s.append(time.monotonic())

    with pytest.raises(MemberFailed) as caught:
        zooid.probe_all_reduce(store=tmp_path.as_uri(), repeats=1000, on_event=kill_in_the_middle, platform=platform)
    assert str(caught.value) == "member m1 was killed by signal 9 (SIGKILL)"
    assert time.monotonic() - killed_s[0] < PATIENCE_S
    assert still_running(list(platform.pids.values())) == []
    assert list(tmp_path.iterdir()) == []


def test_more_members_than_are_started_are_refused() -> None:
    with pytest.raises(InputError, match="`crowds` has 4 members, but 2 are started"):
        zooid.probe_all_reduce(members=2, crowds=[2, 4])


def test_nccl_takes_a_gpu_for_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match=r"2 members are to measure nccl, .*; this machine has 0"):
        zooid.probe_all_reduce(library="nccl", sizes=[1024], at_once=[1], repeats=1)

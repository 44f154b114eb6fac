"""What every platform does with members, whoever starts them and however they end."""

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from lab.members import Members
from lab.platform_scenes import MIB, SCENES, Scene, running
from lab.provider_scenes import PROVIDER_SCENES
from lab.real_scene import real_scene
from lab.waiting import wait_until
from tests.scenes import or_skip
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.size import Size
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit, MemberHandle, MemberStart
from zooid.core.runs.ticket import Versions, title_of
from zooid.core.units import format_bytes

TEST_LIMIT_S = 180.0
pytestmark = pytest.mark.timeout(TEST_LIMIT_S)

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
WITH_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("here", flush=True)
time.sleep(600)
"""
NOTICED = """
import os, signal, time
def notice(number, frame):
    print("noticed", flush=True)
    os._exit(5)
signal.signal(signal.SIGUSR1, notice)
print("here", flush=True)
time.sleep(600)
"""
GROWING = """
print("growing", flush=True)
held = []
while True:
    held.append(bytearray(2**20))
"""


REAL = "real"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run on every platform of the laboratory, or on an offer of the user's own account instead."""
    if "scene" in metafunc.fixturenames:
        names = [REAL] if metafunc.config.getoption("--real") else [*SCENES, *PROVIDER_SCENES]
        metafunc.parametrize("scene", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    if request.param != REAL:
        with or_skip({**SCENES, **PROVIDER_SCENES}[request.param]()) as made:
            yield made
        return
    offer, store, limit_usd = map(request.config.getoption, ("--real", "--real-store", "--spend-usd"))
    with real_scene(offer, store, limit_usd, TEST_LIMIT_S) as made:
        yield made


@pytest.fixture
def members(scene: Scene, tmp_path: Path) -> Iterator[Members]:
    made = scene.members(tmp_path)
    yield made
    made.end()
    wait_until(lambda: not [left for left in scene.leftovers(made.run) if "os.read(0" not in left])


def start(
    scene: Scene, members: Members, program: str, size: Size | None = None, lifetime_s: float | None = None
) -> str:
    own_size = None if scene.tight is not None else size
    launch = members.launch(f"m{len(members.launched)}", "", own_size, lifetime_s)
    if size is not None and scene.tight is not None:
        launch = replace(launch, offer=scene.tight.name)
    members.create([running(program, scene, launch)])
    return launch.member


@pytest.mark.parametrize("status", [0, 7])
def test_the_exit_status_is_known(scene: Scene, members: Members, status: int) -> None:
    ended = members.end_of(start(scene, members, f"raise SystemExit({status})"))
    assert ended.status == status
    assert ended.ran_s is not None
    assert ended.ran_s > 0


def test_a_killed_member_tells_its_signal(scene: Scene, members: Members) -> None:
    member = start(scene, members, "import os; os.kill(os.getpid(), 9)")
    assert str(members.end_of(member)) == "was killed by signal 9 (SIGKILL)"


def test_a_member_that_grows_too_large_is_ended_with_limit_and_peak_named(scene: Scene, members: Members) -> None:
    limit_bytes = 64 * MIB if scene.tight is None else scene.tight.memory_bytes
    ended = members.end_of(start(scene, members, GROWING, Size(1.0, 64 * MIB)))
    assert ended.exceeded_bytes == limit_bytes
    assert ended.peak_bytes is not None
    assert ended.peak_bytes <= limit_bytes
    assert str(ended) == (
        f"was ended by the kernel: it used more than its {format_bytes(limit_bytes)} of memory, and had up to "
        f"{format_bytes(ended.peak_bytes)}"
    )


def test_a_lifetime_ends_a_member(scene: Scene, members: Members) -> None:
    ended = members.end_of(start(scene, members, SLEEP, lifetime_s=2.0))
    assert ended.status == -signal.SIGKILL
    assert str(ended) == "was ended, because its 2 s were over"
    assert ended.ran_s is not None
    assert 2.0 <= ended.ran_s < 10.0, "on a busy machine, its time may be over before it has begun"


def test_what_a_member_prints_can_be_read_while_it_runs_and_later(scene: Scene, members: Members) -> None:
    member = start(scene, members, SLEEP)
    assert members.first_line(member) == "here"
    assert members.is_running(member)
    members.delete(member)
    assert members.log(member) == "here\n"


def test_the_log_of_a_member_that_died_is_complete(scene: Scene, members: Members) -> None:
    member = start(scene, members, "print('last words', flush=True); import os; os.kill(os.getpid(), 9)")
    members.end_of(member)
    assert members.log(member) == "last words\n"


def test_deleting_ends_everything_that_a_member_has_started(scene: Scene, members: Members) -> None:
    member = start(scene, members, WITH_CHILD)
    members.first_line(member)
    members.delete(member)
    assert not members.is_running(member)
    assert members.status_of(member) == -signal.SIGTERM


def test_deleting_is_repeatable_and_knows_no_strangers(scene: Scene, members: Members) -> None:
    member = start(scene, members, SLEEP)
    members.delete(member)
    members.delete(member)
    members.platform.delete(members.run, [title_of("nobody", 0)])
    members.platform.delete("nothing", [title_of("nobody", 0)])
    assert not members.is_running(member)


def test_a_launch_that_was_doubled_starts_one_member(scene: Scene, members: Members) -> None:
    launch = running(f"{SLEEP}", scene, members.launch("m0", ""))
    members.create([launch])
    members.first_line("m0")
    members.platform.create([launch])
    again = scene.make()
    again.create([launch])
    time.sleep(1.0)
    again.release()
    assert members.is_running("m0")
    starts = members.store.list(keys.STARTS)
    assert starts == [keys.start("m0", 0)]
    assert members.log("m0") == "here\n"


def test_a_start_that_was_cancelled_never_happens(scene: Scene, members: Members) -> None:
    launch = running(SLEEP, scene, members.launch("m0", ""))
    cancelled = MemberStart(member="m0", nonce="coordinator", is_cancelled=True)
    members.store.create(keys.start("m0", 0), encode_record(cancelled))
    members.create([launch])
    wait_until(lambda: not members.is_running("m0"))
    assert members.log("m0") == ""
    assert members.store.list(keys.ENDS) == []


def test_a_changed_spec_is_not_run(scene: Scene, members: Members) -> None:
    launch = running(SLEEP, scene, members.launch("m0", ""))
    members.store.put(keys.spec("m0"), bytes(members.store.get(keys.spec("m0"))) + b"\n")
    members.create([launch])
    ended = members.end_of("m0")
    assert "m0.json has changed since m0 was launched" in ended.reason
    assert members.store.list(keys.STARTS) == []


def test_changed_code_is_not_run(scene: Scene, members: Members) -> None:
    if scene.is_here:
        pytest.skip("members of this machine read the job file in place")
    launch = running(SLEEP, scene, members.launch("m0", "print('tampered')"))
    [other] = [key for key in members.store.list(keys.CODE) if launch.package not in key]
    members.store.put(other, b"something else")
    members.create([launch])
    assert "instead of" in members.end_of("m0").reason
    assert members.log("m0") == ""


def test_a_changed_package_is_not_run(scene: Scene, members: Members) -> None:
    if scene.is_here:
        pytest.skip("members of this machine import the installed package")
    launch = running(SLEEP, scene, members.launch("m0", ""))
    members.store.put(keys.code(launch.package), b"something else")
    members.create([launch])
    assert "it is not run" in members.end_of("m0").reason
    assert members.store.list(keys.STARTS) == []


def test_other_versions_are_named_and_refused(scene: Scene, members: Members) -> None:
    if scene.is_here:
        pytest.skip("members of this machine have the versions of the coordinator")
    launch = running(SLEEP, scene, members.launch("m0", ""))
    ticket = structs.replace(launch.ticket, versions=Versions("3.8", "1.13.1"))
    members.create([replace(launch, ticket=ticket)])
    ended = members.end_of("m0")
    assert "the coordinator has Python 3.8 and torch 1.13.1, but " in ended.reason


def test_a_failing_launch_says_why_and_hurts_no_other(scene: Scene, members: Members) -> None:
    good, bad = (running(SLEEP, scene, members.launch(f"m{number}", "")) for number in range(2))
    gone = structs.replace(bad.ticket, spec_url=bad.ticket.spec_url.replace("m1.json", "m9.json"))
    members.create([good, replace(bad, ticket=gone)])
    assert "m9.json does not exist" in members.end_of("m1").reason
    assert members.first_line("m0") == "here"
    assert members.is_running("m0")


def test_a_member_starts_in_the_folder_of_its_code_and_without_the_coordinators_secrets(
    scene: Scene, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "a secret")
    looking = "import json, os; print(json.dumps([sorted(os.listdir()), 'CANARY' in os.environ]))"
    member = start(scene, members, looking)
    assert members.status_of(member) == 0
    files, has_canary = json.loads(members.log(member))
    if not scene.is_here:
        assert files == ["job.py"]
        assert not has_canary


def test_a_notice_reaches_the_member(scene: Scene, members: Members) -> None:
    if scene.is_real:
        pytest.skip("the provider cannot be asked to give a notice")
    if not scene.gives_notice:
        pytest.skip("its members end at a time that is known from their start, and get no other notice")
    member = start(scene, members, NOTICED)
    members.first_line(member)
    scene_notice(scene, members, member)
    assert members.status_of(member) == 5
    assert members.log(member) == "here\nnoticed\n"


def scene_notice(scene: Scene, members: Members, member: str) -> None:
    """Send SIGTERM to the program that attends a member, as a platform does that will soon end it."""
    title = title_of(member, 0)
    if scene.notify is not None:
        scene.notify(members.run, title)
        return
    if scene.is_here:
        [pid] = [pid for pid, command in commands().items() if "zooid.entry" in command and members.run in command]
        os.kill(pid, signal.SIGTERM)
        return
    [process] = [
        process for machine in scene.machines for process in machine.processes() if scene.attendant in process.command
    ]
    assert title
    os.kill(process.outer_pid, signal.SIGTERM)


def commands() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def test_many_members_start_at_once(scene: Scene, members: Members) -> None:
    count = 32
    launches = [
        running("print('here', flush=True)", scene, members.launch(f"m{number}", "")) for number in range(count)
    ]
    members.create(launches)
    assert [members.end_of(launch.member, timeout_s=120.0).status for launch in launches] == [0] * count
    assert {members.log(launch.member) for launch in launches} == {"here\n"}


def test_any_process_finds_and_ends_members_by_their_handles(scene: Scene, members: Members) -> None:
    member = start(scene, members, SLEEP)
    members.first_line(member)
    other = scene.make()
    handle = decode_record(bytes(members.store.get(keys.handle(member, 0))), MemberHandle, member)
    title = title_of(member, 0)
    assert other.watch(handle, title)
    assert other.members(members.run) == {title: None}
    other.delete(members.run, [title])
    assert other.members(members.run).get(title, Exit(None)) is not None
    assert members.status_of(member) == -signal.SIGTERM
    other.release()


def test_members_outlive_whoever_started_them(scene: Scene, members: Members) -> None:
    member = start(scene, members, SLEEP)
    members.first_line(member)
    members.platform.release()
    other = scene.make()
    handle = decode_record(bytes(members.store.get(keys.handle(member, 0))), MemberHandle, member)
    assert other.watch(handle, title_of(member, 0))
    assert other.members(members.run) == {title_of(member, 0): None}
    other.release()


def test_a_machine_that_dies_takes_its_members_along_and_their_logs_stay(scene: Scene, tmp_path: Path) -> None:
    """The last test of a scene, since the machine does not come back."""
    if scene.is_here:
        pytest.skip("this machine must not die")
    if scene.is_real:
        pytest.skip("no machine of a provider can be broken on purpose")
    members = scene.members(tmp_path)
    launches = [running(SLEEP, scene, members.launch(f"m{number}", "")) for number in range(len(scene.offers))]
    launches = [replace(launch, offer=offer.name) for launch, offer in zip(launches, scene.offers, strict=True)]
    members.create(launches)
    for launch in launches:
        members.first_line(launch.member)
    lost = launches[-1].member
    if scene.lose is None:
        scene.machines[-1].power_off()
    else:
        scene.lose(members.run, title_of(lost, 0))
    wait_until(lambda: not members.is_running(lost), timeout_s=scene.is_lost_after_s)
    assert scene.is_lost_in_words in str(members.end_of(lost))
    assert members.log(lost) == "here\n"
    assert members.is_running(launches[0].member)
    members.end()
    assert scene.leftovers(members.run) == [] or all("os.read(0" in left for left in scene.leftovers(members.run))

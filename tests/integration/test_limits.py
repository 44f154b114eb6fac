"""Members held to the size of an offer, by real cgroups: no more time, no more memory, and nothing left behind."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec import structs

import zooid
from lab.load import ForeignLoad
from lab.members import Members
from lab.waiting import wait_until
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.reference import train_composed_layers
from tests.platforms import a_launch
from tests.processes import parent_of
from tests.unit.profiles import device, layer, offer, profile
from zooid.coordinator.plans.offer_names import enforced_size, prices_in_words, resolve_offer
from zooid.coordinator.runs.crew import Crew, wait_for_all
from zooid.core.errors import CatalogError, InputError, MemberFailed
from zooid.core.plans.plan import Limits
from zooid.core.resources.machine import cpu_quota
from zooid.core.resources.offer import Offer
from zooid.core.resources.size import Size
from zooid.core.runs.spec import WorkerSpec
from zooid.entry.cgroups import confine
from zooid.planner import search, single
from zooid.platforms import Launch
from zooid.platforms.local import LocalPlatform
from zooid.store import open_store

pytestmark = pytest.mark.timeout(60)

MIB = 2**20
NOBODY = 65534
TOLERANCE = 0.03
ATTEMPTS = 3

BUSY = """
import time
begin_s, used_s = time.perf_counter(), time.process_time()
while time.perf_counter() - begin_s < 1.2:
    pass
print((time.process_time() - used_s) / (time.perf_counter() - begin_s))
"""
GROWING = """
held = []
while True:
    held.append(bytearray(2**20))
"""
LOOKING = """
from zooid.core.resources.machine import cpu_quota, memory_bytes, num_cores
print(cpu_quota(), num_cores(), memory_bytes())
"""
WAITING = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WAITING!r}], start_new_session=True)
print(child.pid, flush=True)
"""


@pytest.fixture(scope="module")
def cgroups() -> None:
    try:
        confine(Size(1.0, 64 * MIB)).remove()
    except InputError as error:
        pytest.skip(str(error))


def running(program: str) -> LocalPlatform:
    """A platform whose members run this program; what they would run otherwise becomes its arguments."""
    return LocalPlatform(lambda launch: [sys.executable, "-c", program])


def members_running(program: str, folder: Path) -> Members:
    return Members(running(program), folder)


def folders_of(members: Members, member: str) -> list[Path]:
    """The cgroups of a member that runs."""
    group = Path(f"/proc/{members.pid(member)}/cgroup")

    def names() -> set[str]:
        return {Path(line).name for line in group.read_text().splitlines() if "/zooid-" in line}

    wait_until(names)
    return [folder for name in names() for folder in Path("/sys/fs/cgroup").glob(f"**/{name}")]


def is_alive(pid: int) -> bool:
    """Not so a process that has ended, even if nobody has asked for its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def left(folders: list[Path]) -> list[Path]:
    return [folder for folder in folders if folder.exists()]


@pytest.mark.usefixtures("cgroups")
class TestTime:
    def test_a_busy_member_gets_its_share_of_a_core(self, tmp_path: Path) -> None:
        members = members_running(BUSY, tmp_path)
        for _ in range(ATTEMPTS):
            with ForeignLoad() as foreign:
                member = members.start("", Size(0.25, 256 * MIB))
                assert members.status_of(member) == 0, members.log(member)
            share = float(members.log(member))
            print(f"{share:.4f} of a core, while others kept {foreign.num_cores:.2f} busy")
            assert share <= 0.25 + TOLERANCE
            if share >= 0.25 - TOLERANCE:
                return
            assert foreign.num_cores > cpu_quota() - 1, "the machine had time for it"
        pytest.skip(f"other programs kept {foreign.num_cores:.2f} cores busy, {ATTEMPTS} times")

    def test_a_small_share_is_smooth(self) -> None:
        """Of any tenth of a second it gets its share; the kernel's own period would let it run for nothing else."""
        confinement = confine(Size(0.05, 64 * MIB))
        written = {
            file.name: file.read_text().split() for folder in confinement.folders for file in folder.glob("cpu.*")
        }
        confinement.remove()
        quota, period = written.get("cpu.max") or [*written["cpu.cfs_quota_us"], *written["cpu.cfs_period_us"]]
        assert int(quota) / int(period) == 0.05
        assert int(period) <= 20_000

    def test_a_member_knows_its_share(self, tmp_path: Path) -> None:
        members = members_running(LOOKING, tmp_path)
        member = members.start("", Size(0.5, 256 * MIB))
        assert members.status_of(member) == 0, members.log(member)
        assert members.log(member).split() == ["0.5", "1", str(256 * MIB)]


@pytest.mark.usefixtures("cgroups")
class TestMemory:
    def test_a_member_that_grows_too_large_is_ended_and_the_reason_named(self, tmp_path: Path) -> None:
        small = structs.replace(resolve_offer("limited:aws.lambda.512"), memory_bytes=64 * MIB)
        store = open_store(tmp_path.as_uri())
        spec = WorkerSpec(
            run="run", member="r0s0", store=store.url, job_file="", num_threads=1, task="train", roster=0, timeout_s=1.0
        )
        with Crew(running(GROWING), store, checks_input=False) as crew:
            crew.start("worker", [spec], [small])
            with pytest.raises(MemberFailed) as caught:
                wait_for_all([crew], lambda: None)
        assert str(caught.value) == (
            "member r0s0 was ended by the kernel: it used more than its 67.11 MB of memory, and had up to 67.11 MB"
        )

    def test_a_member_that_somebody_killed_is_not_blamed(self, tmp_path: Path) -> None:
        members = members_running(WAITING, tmp_path)
        member = members.start("", Size(0.5, 64 * MIB))
        os.kill(members.pid(member), signal.SIGKILL)
        assert str(members.end_of(member)) == "was killed by signal 9 (SIGKILL)"


@pytest.mark.usefixtures("cgroups")
class TestNothingIsLeft:
    def test_when_a_member_has_ended(self, tmp_path: Path) -> None:
        members = members_running("import time; time.sleep(0.2)", tmp_path)
        member = members.start("", Size(0.5, 64 * MIB))
        folders = folders_of(members, member)
        assert members.status_of(member) == 0
        assert left(folders) == []
        members.delete(member)

    def test_when_a_member_is_deleted(self, tmp_path: Path) -> None:
        members = members_running(WAITING, tmp_path)
        member = members.start("", Size(0.5, 64 * MIB))
        folders = folders_of(members, member)
        members.delete(member)
        assert left(folders) == []
        assert not members.is_running(member)

    def test_of_what_a_member_has_started_and_sent_away(self, tmp_path: Path) -> None:
        """A process in another session is still in the cgroup."""
        members = members_running(PARENT, tmp_path)
        member = members.start("", Size(0.5, 256 * MIB))
        folders = folders_of(members, member)
        assert members.status_of(member) == 0
        assert not is_alive(int(members.log(member)))
        assert left(folders) == []

    def test_of_a_member_whose_attendant_was_killed(self, tmp_path: Path) -> None:
        """The member dies with it. Its cgroup goes when the next one comes."""
        members = members_running(WAITING, tmp_path)
        member = members.start("", Size(0.5, 64 * MIB))
        pid, folders = members.pid(member), folders_of(members, member)
        os.kill(parent_of(pid), signal.SIGKILL)
        assert str(members.end_of(member)) == "is gone; how it ended is not known"
        wait_until(lambda: not is_alive(pid))
        members.delete(member)
        confine(Size(0.5, 64 * MIB)).remove()
        assert left(folders) == []


class TestRefusals:
    @pytest.fixture
    def unprivileged(self) -> Iterator[None]:
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    @pytest.mark.usefixtures("cgroups", "unprivileged")
    def test_without_privileges_nothing_starts(self) -> None:
        ticket = structs.replace(a_launch("r0s0").ticket, size=Size(0.5, 64 * MIB))
        with pytest.raises(InputError) as caught:
            running(WAITING).create([Launch(ticket)])
        message = str(caught.value)
        assert message.startswith("a member cannot be limited to 0.5 vCPUs and 67.11 MB, which needs cgroups: /sys/")
        assert message.endswith(
            "cannot be made: Permission denied; run as root where cgroups may be made, or give local:OFFER for an "
            "offer's prices without its size"
        )

    def test_without_cgroups(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no cgroups are mounted under /sys/fs/cgroup"):
            confine(Size(0.5, 64 * MIB), tmp_path)

    @pytest.mark.parametrize(
        ("on", "message"),
        [
            ("limited", "names no size; give limited:OFFER"),
            ("limited:azure.aci.k80", "azure.aci.k80 has a K80, which this machine cannot emulate"),
            ("limited:aws.ec2.c5.24xlarge.of.dreams", "there is no offer"),
            ("restricted:aws.lambda.512", "limited:OFFER for its size as well"),
        ],
    )
    def test_what_cannot_be_imitated(self, on: str, message: str) -> None:
        with pytest.raises((InputError, CatalogError), match=message):
            resolve_offer(on)

    def test_more_than_the_machine_has(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("zooid.coordinator.plans.offer_names.cpu_quota", lambda: 0.5)
        monkeypatch.setattr("zooid.coordinator.plans.offer_names.memory_bytes", lambda: 10**9)
        with pytest.raises(InputError) as caught:
            resolve_offer("limited:aws.lambda.1769")
        assert str(caught.value) == (
            "aws.lambda.1769 has 1 vCPUs and 1.855 GB of memory, which is more than this machine's 0.5 and 1 GB; "
            "give a smaller offer, or local:aws.lambda.1769 for its prices alone"
        )


class TestVersion2:
    """Only what would be written: this takes a kernel that has its controllers there."""

    def machine(self, folder: Path, handed_down: str) -> Path:
        """A session under a slice, as a login makes them, with the process's folder under /proc."""
        session = folder / "tree/user.slice/session.scope"
        session.mkdir(parents=True)
        (session / "cgroup.subtree_control").write_text("")
        (session.parent / "cgroup.subtree_control").write_text(handed_down)
        process = folder / "proc"
        process.mkdir()
        (process / "cgroup").write_text("0::/user.slice/session.scope\n")
        mount = f"30 25 0:26 / {folder / 'tree'} rw - cgroup2 cgroup2 rw,nsdelegate\n"
        (process / "mountinfo").write_text(mount)
        return process

    def test_a_member_stands_beside_this_process(self, tmp_path: Path) -> None:
        made = confine(Size(0.25, 64 * MIB), self.machine(tmp_path, "cpuset cpu memory\n"))
        (folder,) = made.folders
        assert folder.parent == tmp_path / "tree/user.slice"
        assert (folder / "cpu.max").read_text() == "2500 10000"
        assert (folder / "memory.max").read_text() == str(64 * MIB)
        assert made.exceeded_bytes() is None
        (folder / "memory.events").write_text("low 0\nhigh 0\nmax 31\noom 1\noom_kill 1\noom_group_kill 0\n")
        assert made.exceeded_bytes() == 64 * MIB

    def test_controllers_that_are_not_handed_down(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"delegates the controllers cpu and memory in cgroup\.subtree_control"):
            confine(Size(0.25, 64 * MIB), self.machine(tmp_path, "memory pids\n"))


class TestOffers:
    def test_a_limited_offer_has_size_and_prices_of_its_model(self) -> None:
        limited, priced = resolve_offer("limited:aws.lambda.512"), resolve_offer("local:aws.lambda.512")
        assert (limited.platform, limited.site) == ("local", "limited:aws.lambda.512")
        assert (limited.vcpus, limited.memory_bytes) == (0.2894, 512 * MIB)
        assert limited.usd_per_hour == priced.usd_per_hour > 0
        assert enforced_size(limited) == Size(0.2894, 512 * MIB)
        assert enforced_size(priced) is None
        assert prices_in_words(limited) == (
            "at the prices of aws.lambda.512; nothing is charged, because members run on this machine, limited to "
            "its size"
        )

    def test_members_with_a_share_contend_for_the_machine_only_together(self) -> None:
        """Four quarters of one core are planned, and no more."""
        made = profile([layer(1.0)], device=device(num_cores=1.0))
        quarter: Offer = offer(platform="local", vcpus=0.25)
        assert search(single(made, quarter), Limits(max_members=8), "fastest").pick.num_members == 4

    @pytest.mark.usefixtures("cgroups")
    def test_every_member_of_a_run_is_held_to_its_offer(self, tmp_path: Path) -> None:
        """Of a plan that is given. In place of the worker, a program looks around and gives up."""
        launched: list[Launch] = []

        class Watched(LocalPlatform):
            def create(self, launches: Sequence[Launch]) -> None:
                super().create(launches)
                launched.extend(launches)

        job_file = write_job(tmp_path / "job.py", fields={"epochs": "1"})
        limited = resolve_offer("limited:aws.lambda.1769")
        by_hand = plan_by_hand(job_file, num_replicas=1, cuts=())
        stages = tuple(structs.replace(stage, offer=limited.name) for stage in by_hand.stages)
        plan = structs.replace(by_hand, offers=(limited,), stages=stages)
        look = [sys.executable, "-c", f"{LOOKING}raise SystemExit(7)"]
        platform = Watched(lambda launch: look if launch.member == "r0s0" else [])
        with pytest.raises(MemberFailed, match="member r0s0 exited with status 7") as caught:
            zooid.train(job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=platform)
        assert caught.value.details.split() == ["1.0", "1", str(1769 * MIB)]
        assert [launch.member for launch in launched] == ["preparer", "r0s0"]
        assert {launch.ticket.size for launch in launched} == {Size(1.0, 1769 * MIB)}
        assert {launch.ticket.num_threads for launch in launched} == {1}

    @pytest.mark.usefixtures("cgroups")
    @pytest.mark.timeout(120)
    def test_replicas_on_different_offers_train_and_are_held_each_to_its_own(self, tmp_path: Path) -> None:
        launched: dict[str, Launch] = {}

        class Watched(LocalPlatform):
            def create(self, launches: Sequence[Launch]) -> None:
                launched.update({launch.member: launch for launch in launches})
                super().create(launches)

        job_file = write_job(tmp_path / "job.py", fields={"epochs": "1", "batch_size": "32", "grain_size": "8"})
        large, small = resolve_offer("limited:aws.lambda.1769"), resolve_offer("limited:aws.lambda.1024")
        by_hand = plan_by_hand(job_file, num_replicas=2, cuts=(), shares=(3, 1))
        stages = tuple(structs.replace(stage, offer=large.name) for stage in by_hand.stages)
        plan = structs.replace(by_hand, offers=(large, small), stages=stages, replica_offers=(large.name, small.name))
        result = zooid.train(job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=Watched())
        sizes = {member: launch.ticket.size for member, launch in launched.items()}
        assert sizes == {
            "preparer": Size(1.0, 1769 * MIB),
            "r0s0": Size(1.0, 1769 * MIB),
            "r1s0": Size(small.vcpus, 1024 * MIB),
        }
        wanted = train_composed_layers(job_file)
        assert result.losses == pytest.approx(wanted.losses, rel=1e-9)
        assert 0 < result.usd < large.usd_per_hour

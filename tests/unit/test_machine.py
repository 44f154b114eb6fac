"""A process sees what it may use of the machine, whichever cgroups hold it."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from zooid.core.resources.machine import Cgroup, cpu_quota, memory_bytes, num_cores, own_cgroup

ALL_CORES = len(os.sched_getaffinity(0))
ALL_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
NO_LIMIT_IN_VERSION_1 = "9223372036854771712"
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """A copy of the files in which the kernel tells a process about its cgroups."""

    folder: Path

    @property
    def process(self) -> Path:
        return self.folder / "proc"

    def place(self, groups: str, mounts: list[tuple[str, str, str]]) -> None:
        """The process is in `groups`; of each tree, `root` is seen at `point`, with these options."""
        lines = ["25 1 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw"]
        for root, point, options in mounts:
            kind = "cgroup" if options else "cgroup2"
            lines.append(f"34 25 0:31 {root} {self.folder / point} rw,relatime shared:9 - {kind} cgroup rw,{options}")
        self.process.mkdir()
        (self.process / "cgroup").write_text(groups)
        (self.process / "mountinfo").write_text("\n".join(lines))

    def write(self, file: str, text: str) -> None:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def version_1(machine: Machine) -> Machine:
    """As on a machine that has both: the tree of version 2 is there, too, but has no controllers."""
    machine.place(
        "9:name=systemd:/\n4:memory:/jobs/one\n1:cpu,cpuacct:/\n0::/\n",
        [("/", "cpu", "cpu,cpuacct"), ("/", "memory", "memory"), ("/", "unified", "")],
    )
    return machine


@pytest.fixture
def version_2(machine: Machine) -> Machine:
    machine.place("0::/jobs/one\n", [("/", "all", "")])
    return machine


class TestVersion1:
    def test_each_controller_has_its_own_tree(self, version_1: Machine) -> None:
        root = version_1.folder
        assert own_cgroup("cpu", version_1.process) == Cgroup(1, root / "cpu", root / "cpu")
        assert own_cgroup("memory", version_1.process) == Cgroup(1, root / "memory", root / "memory/jobs/one")

    def test_a_quota_counts_exactly_and_rounded_up(self, version_1: Machine) -> None:
        version_1.write("cpu/cpu.cfs_quota_us", "2500")
        version_1.write("cpu/cpu.cfs_period_us", "10000")
        assert cpu_quota(version_1.process) == 0.25
        assert num_cores(version_1.process) == 1

    def test_no_quota_means_all_cores(self, version_1: Machine) -> None:
        version_1.write("cpu/cpu.cfs_quota_us", "-1")
        version_1.write("cpu/cpu.cfs_period_us", "100000")
        assert cpu_quota(version_1.process) == ALL_CORES
        assert num_cores(version_1.process) == ALL_CORES

    @pytest.mark.parametrize(("own", "above"), [(GIB, 2 * GIB), (2 * GIB, GIB)])
    def test_the_smallest_limit_of_memory_holds(self, version_1: Machine, own: int, above: int) -> None:
        version_1.write("memory/memory.limit_in_bytes", NO_LIMIT_IN_VERSION_1)
        version_1.write("memory/jobs/memory.limit_in_bytes", str(above))
        version_1.write("memory/jobs/one/memory.limit_in_bytes", str(own))
        assert memory_bytes(version_1.process) == min(GIB, ALL_MEMORY)

    def test_no_limit_means_all_memory(self, version_1: Machine) -> None:
        version_1.write("memory/jobs/one/memory.limit_in_bytes", NO_LIMIT_IN_VERSION_1)
        assert memory_bytes(version_1.process) == ALL_MEMORY


class TestVersion2:
    def test_one_tree_has_every_controller(self, version_2: Machine) -> None:
        expected = Cgroup(2, version_2.folder / "all", version_2.folder / "all/jobs/one")
        assert own_cgroup("cpu", version_2.process) == own_cgroup("memory", version_2.process) == expected
        assert expected.upwards() == [version_2.folder / path for path in ("all/jobs/one", "all/jobs", "all")]

    @pytest.mark.parametrize(("own", "above"), [("50000 100000", "max 100000"), ("max 100000", "5000 10000")])
    def test_the_smallest_quota_holds(self, version_2: Machine, own: str, above: str) -> None:
        version_2.write("all/jobs/one/cpu.max", own)
        version_2.write("all/jobs/cpu.max", above)
        assert cpu_quota(version_2.process) == 0.5
        assert num_cores(version_2.process) == 1

    def test_memory(self, version_2: Machine) -> None:
        assert memory_bytes(version_2.process) == ALL_MEMORY
        version_2.write("all/jobs/one/memory.max", "max")
        assert memory_bytes(version_2.process) == ALL_MEMORY
        version_2.write("all/jobs/one/memory.max", str(GIB))
        assert memory_bytes(version_2.process) == min(GIB, ALL_MEMORY)


class TestContainers:
    @pytest.mark.parametrize(
        ("path", "root"),
        [("/docker/1f", "/docker/1f"), ("/docker/1f", "/docker/2a"), ("/../2a", "/")],
        ids=["the tree's part is mounted", "the path is of another part", "the path is outside"],
    )
    def test_what_is_seen_of_a_tree_is_the_containers_own(self, machine: Machine, path: str, root: str) -> None:
        machine.place(f"4:memory:{path}\n", [(root, "memory", "memory")])
        machine.write("memory/memory.limit_in_bytes", str(GIB))
        assert memory_bytes(machine.process) == min(GIB, ALL_MEMORY)

    def test_a_group_below_what_is_seen_is_found(self, machine: Machine) -> None:
        machine.place("4:memory:/docker/1f/member\n", [("/docker/1f", "memory", "memory")])
        group = own_cgroup("memory", machine.process)
        assert group is not None
        assert group.folder == machine.folder / "memory/member"

    def test_without_cgroups_the_machine_is_the_limit(self, tmp_path: Path) -> None:
        assert own_cgroup("cpu", tmp_path) is None
        assert cpu_quota(tmp_path) == num_cores(tmp_path) == ALL_CORES
        assert memory_bytes(tmp_path) == ALL_MEMORY


def test_this_process_has_something_to_run_on() -> None:
    assert 0 < cpu_quota() <= num_cores() <= ALL_CORES
    assert 0 < memory_bytes() <= ALL_MEMORY

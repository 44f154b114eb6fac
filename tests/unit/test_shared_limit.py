"""Whose memory it was that was exceeded, as the kernel tells it in different places."""

from pathlib import Path

import pytest

from zooid.entry.cgroups import SharedLimit

GIVEN = 512 * 2**20


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """A process of a machine on which the kernel has killed 3 processes so far; it sees no cgroups."""
    folder = tmp_path / "proc" / "self"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text("0::/\n")
    (folder / "mountinfo").write_text("")
    write_machine(folder, 3)
    return folder


def write_machine(process: Path, num_killed: int) -> None:
    (process.parent / "vmstat").write_text(f"pgfault 1\noom_kill {num_killed}\n")


def show_cgroup(process: Path, tmp_path: Path, kind: str) -> Path:
    """Mount the cgroup of the process, as containers see theirs."""
    group = tmp_path / "cgroup"
    group.mkdir()
    options = "rw,memory" if kind == "cgroup" else "rw"
    (process / "cgroup").write_text("4:memory:/\n" if kind == "cgroup" else "0::/\n")
    (process / "mountinfo").write_text(f"34 33 0:31 / {group} rw - {kind} cgroup {options}\n")
    return group


def test_a_function_that_sees_no_cgroup_counts_what_its_machine_kills(process: Path) -> None:
    limit = SharedLimit(GIVEN, process)
    assert limit.exceeded_bytes() is None
    write_machine(process, 4)
    assert limit.exceeded_bytes() == GIVEN


@pytest.mark.parametrize(("kind", "file"), [("cgroup", "memory.oom_control"), ("cgroup2", "memory.events")])
def test_a_container_that_sees_its_cgroup_does_not_count_its_neighbours(
    process: Path, tmp_path: Path, kind: str, file: str
) -> None:
    group = show_cgroup(process, tmp_path, kind)
    (group / file).write_text("oom_kill 0\n")
    limit = SharedLimit(GIVEN, process)
    write_machine(process, 9)
    assert limit.exceeded_bytes() is None, "these were others on the machine"
    (group / file).write_text("oom_kill 1\n")
    assert limit.exceeded_bytes() == GIVEN


def test_a_machine_of_ones_own_counts_itself_if_its_root_cgroup_does_not(process: Path, tmp_path: Path) -> None:
    show_cgroup(process, tmp_path, "cgroup2")
    limit = SharedLimit(GIVEN, process)
    write_machine(process, 4)
    assert limit.exceeded_bytes() == GIVEN

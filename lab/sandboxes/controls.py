"""The cgroups of a sandbox: limits, what it has used, and standing still, with the files of either version."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.machines.keeper import Hierarchy, hierarchies

_PERIOD_US = 10_000
"""A short period makes a share of a core look like a slower core; see `zooid.entry.cgroups`."""
_MIN_QUOTA_US = 1_000
"""The shortest quota that the kernel accepts; smaller shares of a core get a longer period."""
_UNIFIED = "cgroup2"
_LIMITED = {"cpu", "memory"}
_CONTROLLERS = {*_LIMITED, "freezer"}


def sandbox_hierarchies() -> list[Hierarchy]:
    """All cgroup hierarchies, each with the folder in which sandboxes get theirs.

    In version 2, that is the root: others have either processes or limits for the cgroups below them.
    """
    found = hierarchies()
    if not _is_unified(found):
        return found
    return [replace(each, own=Path(each.mount)) if each.type == _UNIFIED else each for each in found]


def missing_controllers() -> str | None:
    """Say which cgroup controllers this machine lacks; None if it has all that sandboxes need."""
    found = hierarchies()
    mounted = {name for each in found if each.type == "cgroup" for name in each.options.split(",")}
    unified = next((each for each in found if each.type == _UNIFIED), None)
    if mounted >= _CONTROLLERS:
        return None
    if mounted & _CONTROLLERS or unified is None:
        return f"the cgroup controllers {', '.join(sorted(_CONTROLLERS - mounted))}"
    enabling = Path(unified.mount) / "cgroup.subtree_control"
    absent = sorted(_LIMITED.difference(enabling.read_text().split()))
    return f"the cgroup controllers {', '.join(absent)}, which {enabling} does not enable" if absent else None


def _is_unified(found: Sequence[Hierarchy]) -> bool:
    """Whether version 2 limits memory, and not version 1."""
    return not any("memory" in each.options.split(",") for each in found if each.type == "cgroup")


@dataclass(frozen=True)
class Controls:
    """The folders of one sandbox's cgroups. In version 2 they are the same."""

    cpu: str
    memory: str
    freezer: str
    is_unified: bool

    @classmethod
    def of(cls, mounted: Sequence[Hierarchy], folders: Sequence[Path]) -> "Controls":
        """The controls among a sandbox's folders, one in each hierarchy."""
        is_unified = _is_unified(mounted)
        by_controller: dict[str, str] = {}
        for hierarchy, folder in zip(mounted, folders, strict=True):
            if hierarchy.type == _UNIFIED:
                by_controller |= dict.fromkeys(_CONTROLLERS, str(folder)) if is_unified else {}
            else:
                by_controller |= dict.fromkeys(hierarchy.options.split(","), str(folder))
        return cls(**{name: by_controller[name] for name in _CONTROLLERS}, is_unified=is_unified)

    def limit(self, memory_bytes: int, vcpus: float) -> None:
        """Hold the sandbox to so much memory, and so much processor time per time."""
        period_us = max(_PERIOD_US, round(_MIN_QUOTA_US / vcpus))
        quota_us = round(vcpus * period_us)
        cpu, memory = Path(self.cpu), Path(self.memory)
        if self.is_unified:
            (cpu / "cpu.max").write_text(f"{quota_us} {period_us}")
            (memory / "memory.max").write_text(str(memory_bytes))
            with_swap, limit = memory / "memory.swap.max", 0
        else:
            (cpu / "cpu.cfs_period_us").write_text(str(period_us))
            (cpu / "cpu.cfs_quota_us").write_text(str(quota_us))
            (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            with_swap, limit = memory / "memory.memsw.limit_in_bytes", memory_bytes
        if with_swap.exists():  # only where the kernel counts swap
            with_swap.write_text(str(limit))

    def peak_bytes(self) -> int:
        """The most memory that was charged to the sandbox so far."""
        file = "memory.peak" if self.is_unified else "memory.max_usage_in_bytes"
        return int((Path(self.memory) / file).read_text())

    def num_oom_kills(self) -> int:
        """How many of its processes the kernel has killed because their memory was over the limit."""
        file = "memory.events" if self.is_unified else "memory.oom_control"
        lines = (Path(self.memory) / file).read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])

    def stand_still(self, *, is_frozen: bool) -> bool:
        """Let no process run, or all; returns whether that is so already."""
        freezer = Path(self.freezer)
        if self.is_unified:
            (freezer / "cgroup.freeze").write_text(str(int(is_frozen)))
            return f"frozen {int(is_frozen)}" in (freezer / "cgroup.events").read_text().splitlines()
        state = "FROZEN" if is_frozen else "THAWED"
        (freezer / "freezer.state").write_text(state)
        return (freezer / "freezer.state").read_text().strip() == state

    @property
    def are_there(self) -> bool:
        """Whether the cgroups exist, which end with the sandbox."""
        return Path(self.freezer).exists()

    def processes(self) -> list[int]:
        return [int(pid) for pid in (Path(self.freezer) / "cgroup.procs").read_text().split()]

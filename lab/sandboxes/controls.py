"""The cgroups of a sandbox, of version 1 or 2: limits, what it has used, and standing still."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lab.machines.keeper import Hierarchy, hierarchies
from zooid.core.resources.cgroup_files import cpu_limits, kill_all, memory_limits, num_killed, peak_bytes, write_limits
from zooid.core.resources.machine import own_cgroup

_UNIFIED = "cgroup2"
_LIMITED = ("cpu", "memory")
_CONTROLLERS = (*_LIMITED, "freezer")


def sandbox_hierarchies() -> list[Hierarchy]:
    """All cgroup hierarchies, each with the folder in which sandboxes get theirs."""
    group = own_cgroup("memory")
    parent = group.delegating(*_LIMITED) if group is not None and group.version == 2 else None
    if parent is None:
        return hierarchies()
    return [replace(each, own=parent) if each.type == _UNIFIED else each for each in hierarchies()]


def missing_controllers() -> str | None:
    """Say which cgroup controllers this machine lacks; None if it has all that sandboxes need."""
    group = own_cgroup("memory")
    if group is not None and group.version == 2:  # where every cgroup can be frozen
        is_enough = group.delegating(*_LIMITED) is not None
        return None if is_enough else f"a folder of {group.mount} that delegates the controllers cpu and memory"
    absent = [name for name in _CONTROLLERS if (own := own_cgroup(name)) is None or own.version == 2]
    return f"the cgroup controllers {', '.join(absent)}" if absent else None


@dataclass(frozen=True)
class Controls:
    """The folders of one sandbox's cgroups. In version 2 they are the same."""

    cpu: str
    memory: str
    freezer: str
    version: Literal[1, 2]

    @classmethod
    def of(cls, mounted: Sequence[Hierarchy], folders: Sequence[Path]) -> "Controls":
        """The controls among a sandbox's folders, one in each hierarchy."""
        by_controller: dict[str, str] = {}
        unified = ""
        for hierarchy, folder in zip(mounted, folders, strict=True):
            if hierarchy.type == _UNIFIED:
                unified = str(folder)
            else:
                by_controller |= dict.fromkeys(hierarchy.options.split(","), str(folder))
        version: Literal[1, 2] = 1 if "memory" in by_controller else 2
        cpu, memory, freezer = (by_controller[name] if version == 1 else unified for name in _CONTROLLERS)
        return cls(cpu, memory, freezer, version)

    def limit(self, memory_bytes: int, vcpus: float) -> None:
        """Hold the sandbox to so much memory, and so much processor time per time."""
        write_limits(Path(self.cpu), cpu_limits(vcpus, self.version))
        write_limits(Path(self.memory), memory_limits(memory_bytes, self.version))

    def peak_bytes(self) -> int:
        """The most memory that was charged to the sandbox so far. OSError if it has ended."""
        peak = peak_bytes(Path(self.memory))
        if peak is None:
            raise FileNotFoundError(f"{self.memory} does not tell its peak")
        return peak

    def num_oom_kills(self) -> int:
        """How many of its processes the kernel has killed for lack of memory. OSError if it has ended."""
        num_kills = num_killed(Path(self.memory))
        if not self.are_there:
            raise FileNotFoundError(f"{self.memory} is gone, and may have been when it was read")
        return num_kills

    def stand_still(self, *, is_frozen: bool) -> bool:
        """Let no process run, or all; returns whether that is so already."""
        freezer = Path(self.freezer)
        if self.version == 2:
            (freezer / "cgroup.freeze").write_text(str(int(is_frozen)))
            return f"frozen {int(is_frozen)}" in (freezer / "cgroup.events").read_text().splitlines()
        state = "FROZEN" if is_frozen else "THAWED"
        (freezer / "freezer.state").write_text(state)
        return (freezer / "freezer.state").read_text().strip() == state

    @property
    def are_there(self) -> bool:
        """Whether the cgroups exist, which end with the sandbox."""
        return Path(self.freezer).exists()

    def kill(self) -> None:
        """Kill all processes, which the frozen do not notice before they go on."""
        kill_all(Path(self.freezer))
        self.stand_still(is_frozen=False)

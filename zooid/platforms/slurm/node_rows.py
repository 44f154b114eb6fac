"""The rows that `sinfo` prints about the nodes of a partition: their sizes, and what is free on them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zooid.core.errors import InputError, ZooidError
from zooid.core.units import parse_bytes
from zooid.platforms.slurm.batch_script import MIB
from zooid.platforms.slurm.cluster_commands import Cluster, ClusterCommands

_COLUMNS = {
    "NodeHost": 100,
    "StateLong": 30,
    "CPUsState": 40,
    "Memory": 20,
    "AllocMem": 20,
    "Time": 30,
    "Gres": 200,
}
_USABLE = ("idle", "mixed", "allocated", "completing", "planned")
"""States of nodes on which jobs run or can be started. Nodes that do not answer have a star behind the state."""
_FREE = ("idle", "mixed", "planned")


@dataclass(frozen=True)
class NodeRow:
    """A node, as Slurm tells it."""

    name: str
    state: str
    num_cpus: int
    num_free_cpus: int
    memory_mib: int
    free_memory_mib: int
    limit_s: float | None
    """The longest time limit of a job in its partition; None if there is none."""
    gpu: str
    """Model of its GPUs, or `gpu` if Slurm does not know it; empty if it has none."""
    num_gpus: int

    @property
    def is_usable(self) -> bool:
        """Whether jobs may run there."""
        return self.state in _USABLE

    def num_fitting(self, num_cpus: int, memory_mib: int) -> int:
        """Return how many members of this size fit on the node if nothing else runs there."""
        return min(self.num_cpus // max(1, num_cpus), self.memory_mib // max(1, memory_mib))

    def num_members(self, num_cpus: int, memory_mib: int) -> int:
        """Return how many members of this size can be started there now."""
        if self.state not in _FREE:
            return 0
        return min(self.num_free_cpus // num_cpus, self.free_memory_mib // memory_mib)


def sinfo_command(partition: str) -> list[str]:
    """Return the command that lists the nodes of a partition."""
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    return ["sinfo", "--noheader", "--Node", f"--partition={partition}", f"--Format={columns}"]


def parse_nodes(printed: str) -> list[NodeRow]:
    """Return the nodes; lines that are no rows, such as warnings, are left out."""
    return [row for line in printed.splitlines() if (row := _row(line)) is not None]


def asked_sizes(cluster: Cluster, partition: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Ask Slurm what the file of machines does not give: the size of a member, how many there can be, and how long.

    A member gets a whole node, or the part of it that belongs to one GPU. Nodes may differ, so that each number is the
    smallest of all nodes.
    """
    commands = ClusterCommands(cluster)
    try:
        nodes = parse_nodes(commands.give(sinfo_command(partition)))
        others = [] if nodes else commands.give(["sinfo", "--noheader", "--format=%R"]).split()
    except ZooidError as error:
        raise InputError(f"the size of the partition {partition} is not known: {error}") from error
    finally:
        commands.close()
    if not nodes:
        raise InputError(
            f"Slurm has no nodes in a partition {partition!r}; it has {', '.join(sorted(set(others))) or 'none'}: give "
            "`partition` in the file of machines"
        )
    return _member_sizes([node for node in nodes if node.is_usable] or nodes, given)


def _member_sizes(nodes: Sequence[NodeRow], given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    num_gpus = min(node.num_gpus for node in nodes)
    if not {"vcpus", "memory"} <= given.keys():
        num_parts = max(1, num_gpus)
        found["vcpus"] = float(max(1, min(node.num_cpus for node in nodes) // num_parts))
        found["memory"] = min(node.memory_mib for node in nodes) // num_parts * MIB
        if num_gpus:
            found |= {"gpu": nodes[0].gpu, "num_gpus": 1}
    sizes = {**found, **given}
    num_cpus, memory_bytes = math.ceil(sizes["vcpus"]), _bytes(sizes["memory"])
    found["members"] = sum(node.num_fitting(num_cpus, memory_bytes // MIB) for node in nodes)
    limits_s = [node.limit_s for node in nodes if node.limit_s is not None]
    if limits_s:
        found["lifetime"] = f"{min(limits_s):g} s"
    return found


def _row(line: str) -> NodeRow | None:
    cells, begin = {}, 0
    for name, width in _COLUMNS.items():
        cells[name] = line[begin : begin + width].strip()
        begin += width
    cpus = re.fullmatch(r"(\d+)/(\d+)/(\d+)/(\d+)", cells["CPUsState"])  # allocated, idle, other, total
    if cpus is None or not cells["Memory"].isdigit():
        return None
    memory_mib = int(cells["Memory"])
    allocated_mib = int(cells["AllocMem"]) if cells["AllocMem"].isdigit() else 0
    gpu, num_gpus = _gpus(cells["Gres"])
    return NodeRow(
        name=cells["NodeHost"],
        state=cells["StateLong"],
        num_cpus=int(cpus[4]),
        num_free_cpus=int(cpus[2]),
        memory_mib=memory_mib,
        free_memory_mib=memory_mib - allocated_mib,
        limit_s=_limit_s(cells["Time"]),
        gpu=gpu,
        num_gpus=num_gpus,
    )


def _limit_s(text: str) -> float | None:
    """Read a time limit.

    >>> _limit_s("2:00"), _limit_s("1-12:00:00"), _limit_s("infinite")
    (120.0, 129600.0, None)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _gpus(text: str) -> tuple[str, int]:
    """Read the GPUs among the generic resources of a node.

    >>> _gpus("gpu:a100:4(S:0-1),nvme:1"), _gpus("gpu:2"), _gpus("(null)")
    (('a100', 4), ('gpu', 2), ('', 0))
    """
    found = re.search(r"(?:^|,)gpu(?::([^:,(]+))?:(\d+)", text)
    return ("", 0) if found is None else (found[1] or "gpu", int(found[2]))


def _bytes(memory: str | int) -> int:
    return memory if isinstance(memory, int) else parse_bytes(memory)

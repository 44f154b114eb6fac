"""A Slurm cluster on the laboratory's machines: a controller, where users log in as well, and compute nodes.

How Slurm 22.05 behaves with these settings, as measured:

- A job starts 0.3 to 1.0 s after `sbatch`, since the scheduler looks once a second.
- Exit status 3 is `JobState=FAILED ExitCode=3:0`; a batch script killed by SIGKILL is `FAILED` with `0:9`.
- `squeue` lists waiting and running jobs. `squeue -t all` and `scontrol show job` know a job for MinJobAge, and up to
  a second longer, after its end. Then they exit with status 1 and say "Invalid job id specified".
- `scontrol update JobId=N Comment=TEXT` works from within the job, on its node.
- `scancel N` sends SIGTERM to the batch script and all it has started, and SIGKILL about 2.5 s after KillWait is over.
  The job is `CANCELLED` at once; a program that exits with 7 upon SIGTERM leaves `ExitCode=7:0`, a killed one `0:9`.
- `scancel --batch --signal=TERM N` reaches the batch script alone, and `--full` all processes. The job goes on, and
  ends as its script does.
- Time limits are whole minutes and are checked every 30 s. A job of `--time=1` got SIGTERM after 89 s and SIGKILL
  4.4 s later, and was `TIMEOUT`. `--signal=B:TERM@10` signals at the last check that is at least 10 s before the
  limit: after 29 s of that minute. Without `B:` the batch script itself gets no signal.
- A job that is longer than its partition's MaxTime is accepted, and waits for ever with the reason `PartitionConfig`.
  One that needs more memory than a node has is refused.
- Memory limits hold: a job that needs more is killed by the kernel and is `OUT_OF_MEMORY` with `0:125`.
- A node without power shows as `mixed*` or `idle*` after 9 s and as `down*` after 17 s, with SlurmdTimeout and
  MessageTimeout of 5 s; after 7 and 8 s with 3 s each. Its jobs are then `NODE_FAIL` if they were submitted with
  `--no-requeue`. Otherwise they are `PENDING` again, under the same number, and may start two minutes later.
"""

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.machines.machine import Machine, MachineFailed
from zooid.core.errors import InputError

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
"""What must be installed."""
_DAEMONS = ("munged", "slurmctld", "slurmctld-wlm", "slurmd", "slurmd-wlm", "slurmstepd")
"""Debian appends the name of the package to some."""
_MUNGE_SOCKET = "/run/munge/munge.socket.2"
_MUNGE_KEY = "/run/munge/key"
_START_TIMEOUT_S = 30.0
_POLL_S = 0.02

_SLURM_CONF = """
ClusterName=zooid
SlurmctldHost={controller.name}({controller.address})
SlurmUser=root
AuthInfo=socket={socket}
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
{tracking}
MpiDefault=none
PropagateResourceLimits=NONE
DebugFlags=NO_CONF_HASH
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait={settings.kill_wait_s}
SlurmdTimeout={settings.node_timeout_s}
MessageTimeout={settings.node_timeout_s}
MinJobAge={settings.min_job_age_s}
DefMemPerCPU={settings.default_memory_mib_per_cpu}
NodeName={nodes} CPUs={settings.num_cpus} RealMemory={settings.memory_mib}
PartitionName=short Nodes=ALL MaxTime={settings.short_limit_minutes}
PartitionName=long Nodes=ALL Default=YES
"""
_CGROUP_CONF = """
CgroupPlugin=cgroup/v1
ConstrainRAMSpace=yes
"""
_MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")
_WITH_CGROUPS = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup"
_WITHOUT_CGROUPS = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none"
_START_MUNGE = f"mkdir -p /var/lib/munge /var/log/munge && munged --key-file={_MUNGE_KEY}"


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """What a cluster offers, and how patient it is."""

    num_cpus: int = 4
    """Processors that each node claims to have; nobody enforces them."""
    memory_mib: int = 4096
    """Memory that each node claims to have."""
    default_memory_mib_per_cpu: int = 512
    """Limit of a job that does not say what it needs."""
    short_limit_minutes: int = 2
    """Longest time limit in the partition `short`; `long` has none."""
    kill_wait_s: int = 2
    """Pause between SIGTERM and SIGKILL when a job is ended."""
    node_timeout_s: int = 5
    """Patience with a node that does not answer."""
    min_job_age_s: int = 300
    """Time for which the controller remembers a job that has ended."""


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster."""

    controller: Machine
    """Runs no jobs. Slurm's commands work there, too, without any variables."""
    nodes: tuple[Machine, ...]
    environment: dict[str, str]
    """The variables with which sbatch, squeue, scancel and scontrol work on the calling process's side."""
    has_memory_limits: bool
    """False where this computer has no cgroups of version 1, which is what this Slurm limits memory with."""


@contextmanager
def slurm_cluster(machines: Sequence[Machine], settings: SlurmSettings | None = None) -> Iterator[SlurmCluster]:
    """Make the first machine the controller and the others nodes; wait until all nodes are idle."""
    if len(machines) < 2:
        raise InputError(f"{len(machines)} machine is given; a Slurm cluster needs a controller and at least one node")
    controller, *nodes = machines
    chosen = settings or SlurmSettings()
    key = secrets.token_bytes(128)
    for machine in machines:
        machine.add_daemons(*_DAEMONS)
        machine.write(_MUNGE_KEY, key, mode=0o400)
        machine.write("/etc/slurm/cgroup.conf", _CGROUP_CONF)
        machine.write("/etc/slurm/slurm.conf", _slurm_conf(controller, nodes, chosen, _MUNGE_SOCKET))
        machine.run(["sh", "-c", _START_MUNGE])
    # The commands of the calling process's side authenticate themselves through the controller's munged.
    socket = controller.folder / "munge.socket"
    socket.symlink_to(controller.outer_path(_MUNGE_SOCKET))
    config = controller.folder / "slurm.conf"
    config.write_text(_slurm_conf(controller, nodes, chosen, str(socket)))
    environment = {"SLURM_CONF": str(config)}
    try:
        _start(controller, "slurmctld")
        for node in nodes:
            _start(node, "slurmd")
        _wait_until_idle(controller, nodes, environment)
        yield SlurmCluster(controller, tuple(nodes), environment, _MEMORY_CGROUPS.is_dir())
    finally:
        for machine in machines:
            if machine.is_on:
                machine.run(["sh", "-c", "kill $(cat /run/slurmctld.pid /run/slurmd.pid 2> /dev/null)"], check=False)


def _slurm_conf(controller: Machine, nodes: Sequence[Machine], settings: SlurmSettings, socket: str) -> str:
    names = ",".join(node.name for node in nodes)
    addresses = ",".join(node.address for node in nodes)
    return _SLURM_CONF.format(
        controller=controller,
        nodes=f"{names} NodeAddr={addresses}",
        settings=settings,
        socket=socket,
        tracking=_WITH_CGROUPS if _MEMORY_CGROUPS.is_dir() else _WITHOUT_CGROUPS,
    )


def _start(machine: Machine, daemon: str) -> None:
    machine.run(["sh", "-c", f"mkdir -p /var/spool/{daemon} && {daemon}"])


def _wait_until_idle(controller: Machine, nodes: Sequence[Machine], environment: dict[str, str]) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    command = ["sinfo", "--noheader", "--Node", "--partition=long", "--format=%T"]
    while True:
        answer = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        if answer.stdout.split() == ["idle"] * len(nodes):
            return
        if time.monotonic() > deadline_s:
            log = controller.read("/var/log/slurmctld.log")
            raise MachineFailed(
                f"the cluster did not start: {answer.stdout}{answer.stderr}; its controller said: {log}"
            )
        time.sleep(_POLL_S)

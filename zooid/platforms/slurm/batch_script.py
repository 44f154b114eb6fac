"""Batch scripts: what Slurm runs for members, and the options of `sbatch` with which it does so."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from zooid.core.errors import InputError
from zooid.core.runs import keys
from zooid.core.runs.ticket import Ticket
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch
from zooid.platforms.programs import bootstrap_program, program_text
from zooid.platforms.slurm.cluster_commands import Cluster
from zooid.platforms.ssh.agent_link import shell_path

MIB = 2**20
_SEPARATOR = "\n# ---- a part of the program of a member of zooid ----\n"
_LOAD = f"""
import sys
parts = open(sys.argv[1], encoding="utf-8").read().split({_SEPARATOR!r})
exec(compile(parts[1], "zooid", "exec"))
run_job(parts[2], parts[3])
"""
"""Slurm keeps the script in a file on the node and removes it. Python reads its program there, and leaves nothing."""
_SCRIPT = """#!/bin/sh -l
python={python}
if ! command -v "$python" > /dev/null; then
  job=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
  scontrol update JobId="$job" Comment={titles}": there is no program $python on $(hostname)"
  exit 127
fi
exec "$python" -c {load} "$0"
"""
"""The shell reads the user's profile, as at a login. Python replaces it, so that signals reach it."""
_ENTRY_BYTES = 256 * MIB
"""Memory that a job gets beyond its member's limit, for the program that attends the member."""
_NOTICE_S = 60
"""How long before its time limit a member gets a notice; Slurm may give it up to a minute earlier."""
_NOTICE_FRACTION = 0.25
"""The largest part of a job's time that a notice may take away."""
_MAX_TITLES = 600
"""Characters of a comment that titles may use; the rest is for the last words of a start that fails."""
_MAX_JOBS = 1000
"""Slurm's default limit for the size of an array is 1,001."""


_OWN_OPTIONS = {"--comment": "", "--job-name": "-J", "--array": "-a", "--output": "-o", "--clusters": "-M"}
"""Options of sbatch that zooid needs to find its jobs and to leave no files, with their letters. sbatch accepts the
beginning of a name, too."""


@dataclass(frozen=True)
class SlurmPartition:
    """A partition of a cluster, and what each member gets there."""

    partition: str
    cluster: Cluster
    vcpus: float
    memory_bytes: int
    has_gpu: bool = False
    """Whether each member gets a GPU, with `--gres=gpu:1`."""
    python: str = "python3"
    """Path of the interpreter on the nodes, which has torch and obstore."""
    options: str = ""
    """Further options of `sbatch`, such as an account; they are stronger than zooid's own."""

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.options)
        except ValueError as error:
            raise InputError(
                f"the options {self.options!r} of sbatch cannot be read: {error}; close all quotes"
            ) from error
        refused = [word for word in words if _refused_name(word)]
        if refused:
            raise InputError(
                f"the options of sbatch have {refused[0].partition('=')[0]}, with which zooid would lose its jobs or "
                "leave files behind; leave it out"
            )


def _refused_name(word: str) -> str:
    """Return the option that a word gives, or begins to give, if members need it themselves; otherwise nothing.

    >>> _refused_name("--comment=mine"), _refused_name("--arr"), _refused_name("-Jmine"), _refused_name("--account=a")
    ('--comment', '--array', '--job-name', '')
    """
    name = word.partition("=")[0]
    if name.startswith("--"):
        return next((option for option in _OWN_OPTIONS if len(name) > 2 and option.startswith(name)), "")
    return next((option for option, letter in _OWN_OPTIONS.items() if letter and word.startswith(letter)), "")


@dataclass(frozen=True)
class JobSize:
    """What one job asks for."""

    num_cpus: int
    memory_mib: int
    limit_minutes: int | None
    """The time limit; None for the partition's own."""

    @staticmethod
    def of(partition: SlurmPartition, ticket: Ticket | None = None) -> "JobSize":
        """Return the size of the job of a member. Slurm counts whole processors, mebibytes and minutes."""
        size = None if ticket is None else ticket.size
        lifetime_s = None if ticket is None else ticket.lifetime_s
        vcpus = partition.vcpus if size is None else size.vcpus
        memory_bytes = partition.memory_bytes if size is None else size.memory_bytes + _ENTRY_BYTES
        limit_minutes = None if lifetime_s is None else max(1, math.ceil(lifetime_s / 60))
        return JobSize(max(1, math.ceil(vcpus)), max(1, memory_bytes // MIB), limit_minutes)

    @property
    def notice_s(self) -> int:
        """Seconds between the notice and the time limit."""
        if self.limit_minutes is None:
            return _NOTICE_S
        return min(_NOTICE_S, int(_NOTICE_FRACTION * 60 * self.limit_minutes))


def job_name(run: str) -> str:
    """Return the name that all jobs of a run have."""
    return f"zooid-{run}"


def titles_comment(launches: Sequence[Launch]) -> str:
    """Name the members of one roster in the order of their jobs, such as `000000.m0,m1`."""
    label = keys.label(launches[0].ticket.roster)
    return f"{label}.{','.join(launch.member for launch in launches)}"


def fits_array(launches: Sequence[Launch]) -> bool:
    """Whether these members can be the jobs of one array."""
    return len(launches) <= _MAX_JOBS and len(titles_comment(launches)) <= _MAX_TITLES


def sbatch_command(launches: Sequence[Launch], partition: SlurmPartition) -> list[str]:
    """Return the command that submits members of the same run, roster and size."""
    size = JobSize.of(partition, launches[0].ticket)
    options = [
        "--parsable",
        f"--job-name={job_name(launches[0].ticket.run)}",
        f"--comment={titles_comment(launches)}",
        f"--partition={partition.partition}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={size.num_cpus}",
        f"--mem={size.memory_mib}M",
        "--no-requeue",  # its start was claimed, so that a second one would do nothing
        "--export=ALL",  # of the few that sbatch gets; NONE makes Slurm run a login first, for half a second
        "--chdir=/",
        "--output=/dev/null",
        f"--signal=B:TERM@{size.notice_s}",
    ]
    if size.limit_minutes is not None:
        options.append(f"--time={size.limit_minutes}")
    if partition.has_gpu:
        options.append("--gres=gpu:1")
    if len(launches) > 1:
        options.append(f"--array=0-{len(launches) - 1}")
    return ["sbatch", *options, *shlex.split(partition.options)]


def batch_script(launches: Sequence[Launch], partition: SlurmPartition) -> str:
    """Return the script of all jobs of an array; each finds its order by its number in the array."""
    notice = {"ZOOID_NOTICE_SECONDS": str(JobSize.of(partition, launches[0].ticket).notice_s)}
    orders = []
    for launch in launches:
        order = order_of(launch)
        order["environment"] = {**notice, **order["environment"]}
        # a node may have GPUs that Slurm has given to others
        order["ticket"]["gpu"] = "assigned" if partition.has_gpu else "none"
        orders.append(json.dumps(order))
    shell = _SCRIPT.format(
        python=shell_path(partition.python), titles=shlex.quote(titles_comment(launches)), load=shlex.quote(_LOAD)
    )
    launcher = program_text("zooid.entry", "batch_job")
    return _SEPARATOR.join((shell, launcher, bootstrap_program(), "\n".join(orders) + "\n"))

"""The rows that `squeue` prints about jobs, and what they say about the members of a run."""

import re
import signal
from dataclasses import dataclass

from zooid.core.runs.member_records import Exit
from zooid.core.text import printable
from zooid.platforms.platform import not_started
from zooid.platforms.slurm.batch_script import MIB, job_name

_COLUMNS = {
    "ArrayJobID": 20,
    "ArrayTaskID": 20,
    "State": 20,
    "Reason": 60,
    "exit_code": 20,
    "MinMemory": 20,
    "TimeLimit": 20,
    "NodeList": 200,
    "Comment": 1100,
}
"""Names of columns, and their widths in characters, which `squeue` fills up."""
_BEFORE_START = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_LIVING = (*_BEFORE_START, "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")
_HOPELESS = re.compile(
    "PartitionConfig|PartitionTimeLimit|PartitionNodeLimit|BadConstraints|AccountNotAllowed|QOSNotAllowed"
    "|InvalidAccount|InvalidQOS|JobHeldAdmin|(Assoc|QOS)Max.*Per(Job|Node).*|.*requeued held.*"
)
"""Reasons for which a pending job is never started, even when other jobs end."""
_UNITS = {"K": 2**10, "M": MIB, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class JobRow:
    """A job of a member, as Slurm tells it."""

    job: str
    """Its number, such as `12`, or `12_3` in an array."""
    title: str
    words: str
    """Last words of a start that failed; empty if there are none."""
    state: str
    reason: str
    """Why the job waits or has ended, as one word of Slurm's."""
    wait_status: int
    """How its script ended, as `os.wait` tells it."""
    memory: str
    time_limit: str
    node: str

    @property
    def is_living(self) -> bool:
        """Whether the job waits, runs, or has processes that are being ended."""
        return self.state in _LIVING

    @property
    def has_begun(self) -> bool:
        """Whether a living job can be signalled."""
        return self.state == "RUNNING"

    @property
    def is_waiting(self) -> bool:
        return self.state in _BEFORE_START

    @property
    def is_hopeless(self) -> bool:
        """Whether the job waits for something that other jobs cannot give."""
        return self.is_waiting and _HOPELESS.fullmatch(self.reason) is not None

    @property
    def end(self) -> Exit | None:
        """How the job ended; None if its member tells that itself."""
        if self.state == "COMPLETED":
            return None
        if self.words:
            return not_started(self.words)
        if self.state == "OUT_OF_MEMORY" and (limit_bytes := _bytes(self.memory)) is not None:
            return Exit(-signal.SIGKILL, exceeded_bytes=limit_bytes)
        words = {
            "OUT_OF_MEMORY": "was ended by Slurm: it used more than its memory",
            "TIMEOUT": f"was ended by Slurm: the time limit of its job, {self.time_limit}, was over",
            "NODE_FAIL": f"is lost with its node {self.node}, which has failed",
            "BOOT_FAIL": f"is lost with its node {self.node}, which did not boot",
            "PREEMPTED": "was ended by Slurm, which needed its node for another job",
            "CANCELLED": "was cancelled in Slurm",
            "DEADLINE": "was ended by Slurm: its deadline was over",
        }
        if self.state in words:
            return Exit(None, reason=words[self.state])
        if self.wait_status & 0x7F:
            return Exit(-(self.wait_status & 0x7F))
        status, reason = self.wait_status >> 8, "" if self.reason == "None" else f" ({self.reason})"
        return Exit(None, reason=f"could not be started: its job {self.job} is {self.state}{reason}, status {status}")

    @property
    def hopelessness(self) -> Exit:
        """The end of a member whose job Slurm will never start."""
        return Exit(
            None,
            reason=f"could not be started: Slurm keeps its job {self.job} pending ({self.reason}); compare "
            "size and lifetime in the file of machines with what the partition allows: scontrol show partition",
        )


def squeue_command(run: str) -> list[str]:
    """Return the command that lists all jobs of a run that belong to this user, with those that have just ended."""
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    return [
        "squeue",
        "--me",
        "--noheader",
        "--array",
        "--states=all",
        f"--name={job_name(run)}",
        f"--Format={columns}",
    ]


def parse_rows(printed: str) -> dict[str, JobRow]:
    """Return the newest job of each title. Lines that are no rows, such as warnings, are left out."""
    rows = [row for line in printed.splitlines() if (row := _row(line)) is not None]
    rows.sort(key=lambda row: (row.is_living, [int(number) for number in row.job.split("_")]))
    return {row.title: row for row in rows}


def _row(line: str) -> JobRow | None:
    cells, begin = {}, 0
    for name, width in _COLUMNS.items():
        cells[name] = line[begin : begin + width].strip()
        begin += width
    array, task = cells["ArrayJobID"], cells["ArrayTaskID"]
    titles, _, words = cells["Comment"].partition(": ")
    title = _title(titles, int(task) if task.isdigit() else 0)
    if not array.isdigit() or not cells["exit_code"].isdigit() or not title:
        return None
    return JobRow(
        job=f"{array}_{task}" if task.isdigit() else array,
        title=title,
        words=printable(words).replace("\\n", "\n"),
        state=cells["State"],
        reason=cells["Reason"],
        wait_status=int(cells["exit_code"]),
        memory=cells["MinMemory"],
        time_limit=cells["TimeLimit"],
        node=cells["NodeList"],
    )


def _title(titles: str, number: int) -> str:
    """Return the title of a job from the comment of its array, such as `000000.m0,m1`; empty if there is none.

    >>> _title("000000.m0,m1", 1), _title("000000.m1", 1)
    ('000000.m1', '000000.m1')
    """
    label, _, members = titles.partition(".")
    names = members.split(",")
    name = names[0] if len(names) == 1 else names[number] if number < len(names) else ""
    return f"{label}.{name}" if name else ""


def _bytes(text: str) -> int | None:
    """Read an amount of memory such as `512M`."""
    found = re.fullmatch(r"([0-9.]+)([KMGT])[nc]?", text)
    return None if found is None else int(float(found[1]) * _UNITS[found[2]])

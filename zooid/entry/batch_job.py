"""The part of a Slurm job around the program of its member: it reports the last words of a start that failed.

A member that does not reach its store cannot say so there. But a job may change its own comment, which `squeue` shows
wherever the coordinator is.

The text of this file is a part of the job's script. It must run in any Python 3, so that an interpreter that is too
old is reported, too.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from typing import Any

_OLDEST_COMPILER = (3, 8)
"""The oldest Python that can compile the member's program, which then reports other lacks itself."""
_STATUS_NOT_STARTED, _STATUS_INTERRUPTED = 3, 130
_MAX_WORDS = 800
"""Slurm takes comments of at most 1,024 characters."""
_TELL_LIMIT_S = 20.0
_FORGOTTEN_S = 3600.0
"""Age at which the folder of a dead run is removed. Slurm may have killed the processes that should have removed it."""


def run_job(program: str, orders: str) -> None:
    """Begin the member of this job, and end this process. `orders` has a line for every job of the array."""
    order = json.loads(orders.splitlines()[int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))])
    words = tempfile.TemporaryFile()  # noqa: SIM115  # it has no name, and ends with the process
    os.dup2(words.fileno(), 2)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        status = _begun(program, order, names)
    except KeyboardInterrupt:  # the coordinator has cancelled the member while it was started
        status = _STATUS_INTERRUPTED
    except BaseException:  # noqa: BLE001  # whatever it is, nothing can be started
        traceback.print_exc()
        status = _STATUS_NOT_STARTED
    names.get("leave_wholly", str)(order["run"])  # the program may not have defined it
    sys.stderr.flush()
    if status not in (0, _STATUS_INTERRUPTED):
        words.seek(0)
        _tell(order["title"], words.read().decode("utf-8", "replace"))
    os._exit(status)


def _begun(program: str, order: "dict[str, Any]", names: "dict[str, Any]") -> int:
    """Execute the program that brings zooid here, and return its exit status when the member has ended."""
    if sys.version_info < _OLDEST_COMPILER:
        versions = order["ticket"].get("versions") or {}
        sys.stderr.write(
            f"the coordinator has Python {versions.get('python', '3')}, and {sys.executable} on this machine is Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}; give another one as `python` in the file of machines\n"
        )
        return _STATUS_NOT_STARTED
    exec(compile(program, "zooid", "exec"), names)
    names["sweep_dead"](_FORGOTTEN_S)
    return int(names["begin"](order))


def _tell(title: str, words: str) -> None:
    """Append the end of a text to the title in the comment of this job."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if "SLURM_ARRAY_TASK_ID" in os.environ:  # the number of the last job of an array means all of them
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    line = words.strip()[-_MAX_WORDS:].replace("\n", "\\n").encode("ascii", "replace").decode()[-_MAX_WORDS:]
    comment = "".join(character if character.isprintable() else "?" for character in line)
    try:
        subprocess.call(["scontrol", "update", f"JobId={job}", f"Comment={title}: {comment}"], timeout=_TELL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        traceback.print_exc()

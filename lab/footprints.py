"""What a job notes while it trains: every sample that a member reads, and every step that a member applies.

`SOURCE` is code for a job file. Each process appends to a file of its own beside the job file, one system call a line,
so that nothing is lost when the process is killed.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

FOLDER = "footprints"

SOURCE = f'''
import os
import sys
import time
from pathlib import Path

_FOLDER = Path(__file__).parent / "{FOLDER}"
_FOLDER.mkdir(exist_ok=True)
_FILE = _FOLDER / "-".join([Path(sys.argv[-1]).stem, str(os.getpid())])  # the spec of a member has the member's name


def note(what, number):
    line = " ".join([str(time.monotonic()), what, str(number)]) + "\\n"
    file = os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


def note_applied(num_steps, tensors):
    note("applied", num_steps)
'''
"""Defines `note("read", index)` for data sets, and `note_applied` for `on_weights`. It has no braces, so that it may be
part of a text that is formatted."""

_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Footprint:
    """One line."""

    at_s: float
    """Monotonic time, which all processes of a machine share."""
    what: Literal["read", "applied"]
    number: int
    """Index of the sample that was read, or steps applied so far."""


def read_footprints(folder: Path) -> dict[str, list[Footprint]]:
    """The lines of every member that trains, by the name of its file: `r0s1-PID`, or `c0s1-PID` for a copy."""
    return {file.name: _parse(file.read_text()) for file in sorted((folder / FOLDER).glob("[rc]*s*-*"))}


def last_applied(folder: Path) -> tuple[int, float]:
    """The most steps that any member has applied, and when a member first had so many; (0, 0) before the first."""
    lines = [line for file in (folder / FOLDER).glob("*") for line in _parse(_tail(file)) if line.what == "applied"]
    if not lines:
        return 0, 0.0
    most = max(line.number for line in lines)
    return most, min(line.at_s for line in lines if line.number == most)


def _tail(file: Path) -> str:
    """The last whole lines of a file; empty if it is gone."""
    with suppress(FileNotFoundError), file.open("rb") as opened:
        begin = max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES)
        opened.seek(begin)
        text = opened.read().decode()
        return text.partition("\n")[2] if begin else text
    return ""


def _parse(text: str) -> list[Footprint]:
    lines = []
    for line in text.splitlines():
        at_s, what, number = line.split()
        lines.append(Footprint(float(at_s), cast(Literal["read", "applied"], what), int(number)))
    return lines


def reads_by_step(
    footprints: Mapping[str, Sequence[Footprint]], batches: Sequence[Sequence[int]]
) -> list[dict[str, list[Footprint]]]:
    """For every step, the reads of its samples by each process. `batches` are the samples of each step.

    A sample belongs to one step of every epoch. A read belongs to that one of them which the process was at: between
    the steps that it applied last and next, where steps that were skipped leave a gap, or nearest to the latter.
    """
    steps_of: dict[int, list[int]] = {}
    for step, samples in enumerate(batches):
        for sample in samples:
            steps_of.setdefault(sample, []).append(step)
    found: list[dict[str, list[Footprint]]] = [{} for _ in batches]
    for process, lines in footprints.items():
        applied = [(place, line.number) for place, line in enumerate(lines) if line.what == "applied"]
        for place, line in enumerate(lines):
            if line.what == "read":
                before = [number for at, number in applied if at < place][-1:]
                after = [number - 1 for at, number in applied if at > place][:1]
                first, last = (before or after or [0])[0], (after or before or [0])[0]
                own = steps_of[line.number]
                nearest = min(own, key=lambda step: abs(step - last))
                for step in [step for step in own if first <= step <= last] or [nearest]:
                    found[step].setdefault(process, []).append(line)
    return found

"""What footprints tell about a loss: when the next step came, and what was computed again for it."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.footprints import Footprint, reads_by_step

Footprints = Mapping[str, Sequence[Footprint]]


@dataclass(frozen=True)
class Resumption:
    """How a run has gone on after a fault."""

    step_s: float
    """Median of the undisturbed steps before the fault."""
    wait_s: float
    """From the fault to the next step that was committed."""
    steps_lost: int
    """Steps that had been committed before and were computed again."""

    @property
    def recovery_s(self) -> float:
        """The wait beyond a step's own time."""
        return self.wait_s - self.step_s


def commits(footprints: Footprints) -> dict[int, float]:
    """When each number of steps was first applied by any member."""
    times: dict[int, float] = {}
    for lines in footprints.values():
        for line in lines:
            if line.what == "applied":
                times[line.number] = min(line.at_s, times.get(line.number, line.at_s))
    return times


def resumption(footprints: Footprints, fault_s: float) -> Resumption | None:
    """None if no step was committed after the fault."""
    times = commits(footprints)
    before = [number for number, at_s in times.items() if at_s <= fault_s]
    num_before = max(before)
    if num_before + 1 not in times:
        return None
    step_s = statistics.median(times[number] - times[number - 1] for number in before if number - 1 in times)
    again = {
        line.number
        for lines in footprints.values()
        for line in lines
        if line.what == "applied" and line.at_s > fault_s and line.number <= num_before
    }
    return Resumption(step_s, times[num_before + 1] - fault_s, len(again))


def redone_grains(footprints: Footprints, batches: Sequence[Sequence[int]], step: int, grain_size: int) -> float:
    """How many grains of a step were computed again, each stage counted by itself.

    A grain that was interrupted counts by the part of it that had been read.
    """
    counts: Counter[tuple[str, int]] = Counter()
    for process, lines in reads_by_step(footprints, batches)[step].items():
        stage = process.partition("s")[2].partition("-")[0]
        counts.update((stage, line.number) for line in lines)
    return sum(count - 1 for count in counts.values()) / grain_size

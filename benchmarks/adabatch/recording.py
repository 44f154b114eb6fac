"""What one run did over time: its accuracy, its workers and its cost, from the events that it reports.

Evaluations are left out of times and costs. They take the time of this machine, whatever is rehearsed, and a run that
is evaluated more often would seem slower.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from zooid.core.runs.events import (
    BatchChanged,
    Evaluated,
    Event,
    Metered,
    PaceMissed,
    RosterChanged,
    RunStarted,
    StepCommitted,
)

Points = Sequence[tuple[float, float]]
"""Moments in seconds since the first step began, without evaluations, and the values then."""
_BEFORE_TRAINING = ("start-up", "preparation")
"""Costs of a run before its first step. On this machine, they depend on how many processes start at once."""


@dataclass
class Recording:
    """The events of one run that its curves are made of. All times are Unix times."""

    began_s: float | None = None
    """When the first step began."""
    ended_s: float = 0.0
    """When the last step was committed."""
    num_steps: int = 0
    evaluations: list[tuple[float, float]] = field(default_factory=list)
    """When each evaluation ended, and the accuracy that it found."""
    left_out: list[tuple[float, float, float]] = field(default_factory=list)
    """When each evaluation ended, how long it took, and what it cost."""
    usd_per_s: float = 0.0
    num_tested: int = 0
    """Number of pictures in an evaluation."""
    rosters: list[tuple[float, int, int]] = field(default_factory=list)
    """Moments, number of members, and the first step of each roster."""
    bills: list[tuple[float, float]] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)
    """The first step of each piece, and its batch size."""
    late: set[str] = field(default_factory=set)
    """Members that could not keep the rehearsed pace."""

    def take(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.rosters.append((event.at_s, len(event.members), event.first_step))
                self.batches.append((event.first_step, event.batch_size))
            case RosterChanged():
                self.rosters.append((event.at_s, len(event.members), event.step))
            case StepCommitted():
                if self.began_s is None:
                    self.began_s = event.at_s - event.step_s
                self.ended_s, self.num_steps = event.at_s, event.step + 1
            case Evaluated():
                self.evaluations.append((event.at_s, event.metrics["accuracy"]))
                self.num_tested = event.num_samples
                self.left_out.append((event.at_s, event.wall_s, event.wall_s * self.usd_per_s))
            case Metered():
                training = [term.usd for term in event.terms if term.kind not in _BEFORE_TRAINING]
                self.bills.append((event.at_s, sum(training)))
                self.usd_per_s = event.usd_per_s
            case BatchChanged():
                self.batches.append((event.step, event.batch_size))
            case PaceMissed():
                self.late.add(event.member)

    def since(self, at_s: float) -> float:
        """Seconds since the first step began, without evaluations."""
        assert self.began_s is not None, "a run has steps"
        return at_s - self.began_s - sum(wall_s * done for wall_s, _, done in self._evaluated(at_s))

    def _evaluated(self, at_s: float) -> list[tuple[float, float, float]]:
        """The time and the cost of each evaluation, and the fraction of it that was done at this moment."""
        return [
            (wall_s, usd, min(1.0, max(0.0, 1.0 - (end_s - at_s) / wall_s))) for end_s, wall_s, usd in self.left_out
        ]

    @property
    def accuracy(self) -> Points:
        return [(self.since(at_s), value) for at_s, value in self.evaluations]

    @property
    def certain_accuracy(self) -> float:
        """The last accuracy, less one standard error of a test with so many pictures."""
        _, value = self.evaluations[-1]
        return value - math.sqrt(value * (1 - value) / self.num_tested)

    @property
    def workers(self) -> Points:
        """The number of members that train, at each moment at which it changes."""
        return [(max(0.0, self.since(at_s)), float(number)) for at_s, number, _ in self.rosters]

    @property
    def cost(self) -> Points:
        """The cost in dollars, without evaluations and what came before the first step."""
        return [
            (self.since(at_s), usd - sum(cost * done for _, cost, done in self._evaluated(at_s)))
            for at_s, usd in self.bills
            if self.began_s is not None and at_s >= self.began_s
        ]

    @property
    def run_s(self) -> float:
        return self.since(self.ended_s)

    def workers_at(self, seconds: float) -> int:
        """The number of members that train so many seconds after the first step began."""
        return int(max((point for point in self.workers if point[0] <= seconds), default=(0.0, 1.0))[1])

    def usd_at(self, seconds: float) -> float:
        """The cost after so many seconds, between two readings of the bill."""
        times, amounts = zip(*self.cost, strict=True)
        after = bisect_right(times, seconds)
        if after == 0:
            return float(amounts[0])
        if after == len(times):
            return float(amounts[-1])
        fraction = (seconds - times[after - 1]) / max(1e-9, times[after] - times[after - 1])
        return float(amounts[after - 1] + fraction * (amounts[after] - amounts[after - 1]))

    def reached_s(self, accuracy: float) -> float | None:
        """When an evaluation first showed this accuracy; None if none did."""
        return next((at_s for at_s, value in self.accuracy if value >= accuracy), None)

    def waits(self) -> list[int]:
        """For each larger batch, how many steps it had before more workers had their seats."""
        larger = [step for (_, before), (step, size) in pairwise(self.batches) if size > before]
        sizes = [number for _, number, _ in self.rosters]
        # Those that join are told of twice: first as guests, and then with their seats.
        joined = [sizes.index(size) + 1 for size in sorted(set(sizes))[1:]]
        return [self.rosters[index][2] - step for index, step in zip(joined, larger, strict=False)]

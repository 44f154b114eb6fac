"""Windows of spot traces, drawn at random and scaled down so that few members show what many would."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from lab.spot_world import Trace
from zooid.core.resources.spot_trace import SpotTrace, TraceMetadata

MAX_WANTED = 4
"""Members that are wanted at most; the instances of larger traces are divided by a whole number."""


@dataclass(frozen=True)
class Window:
    """A part of a trace in which the number of available members changes."""

    trace: Trace
    """The whole trace, with its numbers divided."""
    divisor: int
    first_sample: int
    num_samples: int

    @property
    def from_s(self) -> float:
        return self.first_sample * self.trace.gap_s

    @property
    def available(self) -> tuple[int, ...]:
        return self.trace.available[self.first_sample : self.first_sample + self.num_samples]

    @property
    def spot_trace(self) -> SpotTrace:
        """The trace as a market replays it."""
        return SpotTrace(metadata=TraceMetadata(gap_seconds=self.trace.gap_s), data=self.trace.available)


def divided(trace: Trace) -> tuple[Trace, int]:
    """Return a trace with at most as many members as are wanted, and by what its numbers were divided.

    >>> divided(Trace("many", 300.0, (16, 8, 3, 0)))[0].available
    (4, 2, 0, 0)
    """
    divisor = -(-trace.num_wanted // MAX_WANTED)
    return Trace(trace.name, trace.gap_s, tuple(number // divisor for number in trace.available)), divisor


def draw(trace: Trace, length_s: float, seed: int) -> Iterator[Window]:
    """Draw windows of this length without end, each with the same chance, among those in which something changes."""
    chance = random.Random(f"{trace.name} {seed}")
    small, divisor = divided(trace)
    num_samples = max(2, int(length_s // trace.gap_s))
    if not any(before != after for before, after in pairwise(small.available)):
        raise ValueError(f"nothing ever changes in {trace.name}")
    while True:
        window = Window(small, divisor, chance.randrange(len(small.available) - num_samples + 1), num_samples)
        if len(set(window.available)) > 1:
            yield window

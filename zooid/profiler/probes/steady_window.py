"""The part of a bandwidth measurement that counts: after flows have ramped up, while all members still move bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

_LEAD_FRACTION = 0.2
_MIN_LEAD_S = 0.15
"""Largest time between the starts of two members in a round, which comes from polling the barrier."""


@dataclass(frozen=True)
class SteadyWindow:
    """The time of one bandwidth measurement, which begins with its first byte."""

    lead_s: float
    """Seconds at the start that do not count: connections ramp up, and other members begin a little later."""
    counted_s: float
    tail_s: float
    """Seconds at the end that do not count: other members, which began later, still measure."""

    @classmethod
    def of(cls, seconds: float) -> "SteadyWindow":
        lead_s = max(_MIN_LEAD_S, _LEAD_FRACTION * seconds)
        return cls(lead_s, seconds, lead_s)

    @property
    def total_s(self) -> float:
        return self.lead_s + self.counted_s + self.tail_s

    def bytes_per_s(self, spans: Iterable[tuple[float, float]], span_bytes: int, began_s: float) -> float:
        """Return the throughput of moves, given the begin and end of each; a partial overlap counts in part.

        >>> SteadyWindow(1.0, 2.0, 1.0).bytes_per_s([(0.0, 2.0), (2.0, 4.0)], 100, began_s=0.0)
        50.0
        """
        from_s, to_s = began_s + self.lead_s, began_s + self.lead_s + self.counted_s
        fractions = (max(0.0, min(end_s, to_s) - max(begin_s, from_s)) / (end_s - begin_s) for begin_s, end_s in spans)
        return span_bytes * sum(fractions) / self.counted_s

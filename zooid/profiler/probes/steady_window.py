"""When bytes count: not while a flow gathers speed, and only while everybody else still moves bytes, too."""

from collections.abc import Iterable
from dataclasses import dataclass

_LEAD_SHARE = 0.2
_LEAST_LEAD_S = 0.15
"""Members begin a round so much apart at most, as they look for the word to go on."""


@dataclass(frozen=True)
class Window:
    """The time of one measurement of bandwidth, which begins with its first byte."""

    lead_s: float
    """Nothing counts: connections gather speed, and other members begin a little later."""
    counted_s: float
    tail_s: float
    """Nothing counts any more, but others that began later still measure."""

    @classmethod
    def of(cls, seconds: float) -> "Window":
        lead_s = max(_LEAST_LEAD_S, _LEAD_SHARE * seconds)
        return cls(lead_s, seconds, lead_s)

    @property
    def total_s(self) -> float:
        return self.lead_s + self.counted_s + self.tail_s

    def bytes_per_s(self, spans: Iterable[tuple[float, float]], span_bytes: int, began_s: float) -> float:
        """Goodput of moves that each took a span of time; one that reaches out of the window counts in part.

        >>> Window(1.0, 2.0, 1.0).bytes_per_s([(0.0, 2.0), (2.0, 4.0)], 100, began_s=0.0)
        50.0
        """
        from_s, to_s = began_s + self.lead_s, began_s + self.lead_s + self.counted_s
        shares = (max(0.0, min(end_s, to_s) - max(begin_s, from_s)) / (end_s - begin_s) for begin_s, end_s in spans)
        return span_bytes * sum(shares) / self.counted_s

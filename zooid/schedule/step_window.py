"""The recent pace of a run: the mean time of a step, with a 95 % bound.

A short disturbance must not look like a slow run. So the bound on the mean is used to judge what is left (Srifty §4.5),
and the spread of single steps to judge the next one.
"""

import math
import statistics
from collections import deque

WINDOW_S = 300.0
"""Length of the window: Srifty's five minutes."""
_Z95 = 1.96
"""Half the width of the 95 % interval of a normal distribution, in standard deviations."""
_MAX_STEPS = 10_000


class StepWindow:
    """The times at which steps were committed within the last minutes."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._ended_s: deque[float] = deque(maxlen=_MAX_STEPS)

    def add(self, at_s: float) -> None:
        """Note that a step was committed. Times must ascend; others, as of repeated steps, are left out."""
        if self._ended_s and at_s <= self._ended_s[-1]:
            return
        self._ended_s.append(at_s)
        while self._ended_s[0] < at_s - self._window_s and len(self._ended_s) > 2:
            self._ended_s.popleft()

    @property
    def num_intervals(self) -> int:
        return max(0, len(self._ended_s) - 1)

    @property
    def mean_s(self) -> float | None:
        """Mean time from one step to the next, evaluations and checkpoints included; None before the second step."""
        if self.num_intervals == 0:
            return None
        return (self._ended_s[-1] - self._ended_s[0]) / self.num_intervals

    @property
    def _deviation_s(self) -> float:
        times = [after - before for before, after in zip(self._ended_s, list(self._ended_s)[1:], strict=False)]
        return statistics.stdev(times) if len(times) > 1 else 0.0

    @property
    def fastest_mean_s(self) -> float | None:
        """Lower 95 % bound of the mean; None before the second step."""
        if self.mean_s is None:
            return None
        return max(0.0, self.mean_s - _Z95 * self._deviation_s / math.sqrt(self.num_intervals))

    @property
    def slowest_mean_s(self) -> float | None:
        """Upper 95 % bound of the mean; None before the second step."""
        if self.mean_s is None:
            return None
        return self.mean_s + _Z95 * self._deviation_s / math.sqrt(self.num_intervals)

    @property
    def next_step_s(self) -> float | None:
        """Time within which the next step ends with 95 % certainty; None before the second step."""
        return None if self.mean_s is None else self.mean_s + _Z95 * self._deviation_s

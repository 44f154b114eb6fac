"""The times of repeated grains of one size, and statistics that outliers hardly change."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from zooid.core.plans.profile import TimePoint
from zooid.core.resources.machine import cpu_quota


@dataclass
class GrainTimes:
    """All times that were measured for one grain size."""

    num_samples: int
    is_throttled: bool = False
    """Whether the process is limited to a part of its cores. It then runs at full speed until its quota is used up, and
    pauses, so that only the mean tells the real time."""
    forward_s: list[list[float]] = field(default_factory=list)
    """Forward times of each repeat, by layer."""
    backward_s: list[list[float]] = field(default_factory=list)
    """Backward times of each repeat, by layer."""
    round_starts: list[int] = field(default_factory=list)
    """Index of the first repeat of each round."""
    bare_s: list[tuple[float, float]] = field(default_factory=list)
    """Forward and backward times of each repeat while no cut is watched."""

    def points(self) -> list[TimePoint]:
        """Return typical times of each layer, without the cost of watching, which is the same at each cut."""
        typical = statistics.fmean if self.is_throttled else statistics.median
        forward_s = _without_marks(typical, self.forward_s, [forward for forward, _ in self.bare_s])
        backward_s = _without_marks(typical, self.backward_s, [backward for _, backward in self.bare_s])
        return [
            TimePoint(num_samples=self.num_samples, forward_s=forward, backward_s=backward)
            for forward, backward in zip(forward_s, backward_s, strict=True)
        ]

    @property
    def steps_s(self) -> list[float]:
        return [forward + backward for forward, backward in self.bare_s]

    @property
    def step_spread(self) -> float:
        """The relative spread between the repeats of a round."""
        spreads = [relative_spread(times_s) for times_s in self._rounds_s() if len(times_s) > 1]
        return statistics.median(spreads) if spreads else 0.0

    @property
    def run_spread(self) -> float:
        """The relative spread between the medians of rounds."""
        return relative_spread([statistics.median(times_s) for times_s in self._rounds_s()])

    def _rounds_s(self) -> list[list[float]]:
        ends = [*self.round_starts[1:], len(self.bare_s)]
        return [self.steps_s[start:end] for start, end in zip(self.round_starts, ends, strict=True)]


def is_throttled() -> bool:
    """Whether this process gets less processor time than its threads would use."""
    return cpu_quota() < torch.get_num_threads()


def median_is_known(values: list[float], to: float) -> bool:
    """Whether the standard error of the median is below the fraction `to` of it; False for medians up to 0."""
    return statistics.median(values) > 0 and 1.2533 * relative_spread(values) / math.sqrt(len(values)) < to


def relative_spread(times_s: list[float]) -> float:
    """Return the standard deviation as a fraction of the median, estimated from the median absolute deviation."""
    if len(times_s) < 2:
        return 0.0
    middle = statistics.median(times_s)
    deviation = statistics.median(abs(time_s - middle) for time_s in times_s) * 1.4826
    return deviation / middle if middle > 0 else 0.0


def steadied(alone: Sequence[TimePoint], crowded: Sequence[TimePoint]) -> tuple[TimePoint, ...]:
    """Return the times of one layer on a busy machine, without the outliers of single grain sizes.

    Fewer repeats are measured with busy neighbours than without. How much these slow a layer down changes little from
    one size to the next. So each size gets the median slowdown of three neighbouring sizes. Sizes that were measured
    in one way only are left out.
    """
    base, crowded = alone[: len(crowded)], crowded[: len(alone)]

    def slowdowns(seconds_of: Callable[[TimePoint], float]) -> list[float]:
        pairs = [(seconds_of(busy), seconds_of(quiet)) for busy, quiet in zip(crowded, base, strict=True)]
        ratios = [busy_s / quiet_s if quiet_s > 0 else 1.0 for busy_s, quiet_s in pairs]
        firsts = [max(0, min(index - 1, len(ratios) - 3)) for index in range(len(ratios))]
        return [statistics.median(ratios[first : first + 3]) for first in firsts]

    factors = zip(slowdowns(lambda point: point.forward_s), slowdowns(lambda point: point.backward_s), strict=True)
    return tuple(
        TimePoint(
            num_samples=point.num_samples, forward_s=forward * point.forward_s, backward_s=backward * point.backward_s
        )
        for point, (forward, backward) in zip(base, factors, strict=True)
    )


def _without_marks(
    typical: Callable[[Iterable[float]], float], watched_s: list[list[float]], bare_s: list[float]
) -> list[float]:
    times_s = [typical(layer_times) for layer_times in zip(*watched_s, strict=True)]
    mark_s = max(0.0, sum(times_s) - typical(bare_s)) / len(times_s)
    return [max(0.0, time_s - mark_s) for time_s in times_s]

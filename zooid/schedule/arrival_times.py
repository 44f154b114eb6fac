"""Arrival times of messages after events, learned from the last few, and the pauses between polls for the next one."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NUM_KEPT = 5
_FIRST_SPREAD = 0.25
"""The assumed spread after a single arrival, as a fraction of its time."""
_MIN_SPREAD_S, _MIN_SPREAD = 0.004, 0.02
"""The least spread. It grows with the usual time, so that of two equally regular events the later one is preferred."""
_EARLY, _MAX_DOUBLINGS = 0.5, 6
"""The first poll comes half the least spread before the earliest arrival.

That margin doubles with each message in a row that lay there already, since it may have done so for long.
"""
_LATE_SPREADS = 2.0
_LONG_S = 2.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.005, 0.5
_SPREAD_FRACTION, _LATE_FRACTION = 0.5, 0.15
"""The pause between two polls, as fractions of the spread, and of the time by which a message is late."""


@dataclass(frozen=True)
class Arrival:
    """How long after an event a message arrives."""

    early_s: float
    """Time of the first poll: a little before the earliest of the last few arrivals, since a miss costs little."""
    usual_s: float
    spread_s: float
    """Usual deviation from the usual time."""
    late_s: float = 0.0
    """Time of the first poll if the event that predicts best has not happened yet, so that this one has to do."""


UNKNOWN = Arrival(0.0, 0.0, 0.0)


class ArrivalTimes:
    """The arrival times of messages that come at the same place in every step, after several events."""

    def __init__(self) -> None:
        self._after_s: dict[int, deque[float]] = {}
        self.usual: dict[int, Arrival] = {}
        """Arrivals by event. The event with the least spread is the best predictor."""
        self._num_there = 0

    def came(self, after_s: Mapping[int, float], *, at_first_poll: bool) -> None:
        """Add the arrival of a message, as times since these events. Other events are forgotten."""
        self._num_there = self._num_there + 1 if at_first_poll else 0
        margin = _EARLY * 2 ** min(max(self._num_there - 1, 0), _MAX_DOUBLINGS)
        for event in self.usual.keys() - after_s.keys():
            del self._after_s[event], self.usual[event]
        for event, time_s in after_s.items():
            kept = self._after_s.setdefault(event, deque(maxlen=_NUM_KEPT))
            kept.append(time_s)
            self.usual[event] = _usual(kept, margin)


def _usual(after_s: Iterable[float], margin: float) -> Arrival:
    """Return the median, and the mean deviation without the largest one, which may be a pause of the whole run.

    A first message is often late. So a single one does not defer any poll, and of two, the earlier one counts.
    """
    ordered = sorted(after_s)
    usual_s = ordered[(len(ordered) - 1) // 2]
    if len(ordered) == 1:
        return Arrival(0.0, usual_s, max(_MIN_SPREAD_S, _FIRST_SPREAD * usual_s))
    deviations_s = sorted(abs(time_s - usual_s) for time_s in ordered)
    deviation_s = sum(deviations_s[:-1]) / (len(deviations_s) - 1) if len(ordered) > 2 else deviations_s[-1]
    least_s = max(_MIN_SPREAD_S, _MIN_SPREAD * usual_s)
    spread_s = max(least_s, deviation_s)
    return Arrival(max(0.0, ordered[0] - margin * least_s), usual_s, spread_s, usual_s + _LATE_SPREADS * spread_s)


def pause_until(remaining_s: float) -> float:
    """Return the seconds until the next poll before a first poll that is due in `remaining_s`.

    A long wait is halved again and again. If messages suddenly arrive much sooner, a reader notices it soon.
    """
    return remaining_s / 2 if remaining_s > _LONG_S else remaining_s


def pause_before_arrival(waited_s: float, arrival: Arrival) -> float:
    """Return the seconds until the next poll for a message that is missing `waited_s` after its event.

    >>> pause_before_arrival(0.5, Arrival(0.45, 0.5, 0.02)), pause_before_arrival(2.5, Arrival(0.45, 0.5, 0.02))
    (0.01, 0.3)
    """
    if waited_s < arrival.early_s:
        return max(_MIN_PAUSE_S, pause_until(arrival.early_s - waited_s))
    late_s = max(0.0, waited_s - arrival.usual_s)
    return min(max(_MIN_PAUSE_S, _SPREAD_FRACTION * arrival.spread_s, _LATE_FRACTION * late_s), _MAX_PAUSE_S)


LINE_MISSES = 1.2
"""Mean number of polls that miss, as counted in rehearsed pipelines."""
_DELAY_S, _DELAY_FRACTION = 0.003, 0.006


def line_delay(waited_s: float) -> float:
    """Return the mean time in the store of a message that arrives `waited_s` after its event, give or take 2 %."""
    return max(_DELAY_S, _DELAY_FRACTION * waited_s) if waited_s > 0 else 0.0

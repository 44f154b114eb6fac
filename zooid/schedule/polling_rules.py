"""When to ask for a message that another rank is about to put into the store: rules without a clock.

Asking too early costs a request, asking too late costs time. Ranks do the same work at about the same pace, so a
message is expected when this rank has sent its own counterpart, the message of the same place in its own order, and a
lag later that is learned for each edge. Members follow these rules, and a prediction knows what they cost.
"""

from collections.abc import Hashable

_CATCH_UP = 0.3
"""How much of the difference a lag grows by when its message came later than it said,"""
_BELIEVED_S, _BELIEVED_FACTOR = 0.1, 3.0
"""as far as that is to be believed: once, when members start or one of them stumbles, says nothing about the next."""
_CREEP, _MOST_CREEP = 0.03, 0.5
"""How much a lag shrinks by when its message was there; twice as much each time in a row, until one was not."""
_SMALLEST_LAG_S = 0.005
_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.5
_PAUSE_SHARE = 0.3
"""A look that was too early is repeated after this share of the time already waited,"""
_PACE_SHARE = 1.0
"""and not before this share of the time that this rank itself takes for a message."""
_IMPATIENT_S, _IMPATIENT_SHARE, _IMPATIENT_PACE_SHARE = 0.02, 0.1, 0.1
_SOON_S, _SOON_SHARE, _SOON_FACTOR = 0.01, 0.03, 1.2
"""Near the moment at which a message has come before, it will come soon: looks are closer to one another there."""
_LOCAL_PAUSE_S = (0.0005, 0.010)
_LOCAL_SHARE = 0.1
_PACE_GAIN = 0.3
_LONGEST_PACE_S = 1.0
SMALL_BYTES, LARGE_BYTES = 2**10, 64 * 2**10
"""Of small messages the latency counts, of large ones the link: they have lags of their own. A vote is small."""


class Lags:
    """How long after it is expected a message is asked for, by edge: whatever makes messages alike."""

    def __init__(self) -> None:
        self._lags: dict[Hashable, float] = {}
        self._in_a_row: dict[Hashable, int] = {}

    def of(self, edge: Hashable) -> float:
        """Of an edge that nothing is known about, nothing: its first message is asked for at once."""
        return self._lags.get(edge, 0.0)

    def was_there(self, edge: Hashable) -> None:
        """A message was there at the first look; how long already, nobody knows."""
        lag_s = self.of(edge)
        times = self._in_a_row.get(edge, 0)
        self._in_a_row[edge] = times + 1
        creep = min(_CREEP * 2 ** min(times, 8), _MOST_CREEP)
        self._lags[edge] = max(0.0, lag_s - creep * max(lag_s, _SMALLEST_LAG_S))

    def came_late(self, edge: Hashable, found_s: float) -> None:
        """A message was not there at the first look, and was found so long after it was expected."""
        self._in_a_row[edge] = 0
        lag_s = self.of(edge)
        believed_s = min(found_s, _BELIEVED_S + _BELIEVED_FACTOR * lag_s)
        self._lags[edge] = lag_s + _CATCH_UP * max(believed_s - lag_s, _SMALLEST_LAG_S)


def pause_after_miss(waited_s: float, pace_s: float) -> float:
    """How long to wait before looking again; `pace_s` is what this rank itself takes for such a message."""
    return min(max(_SHORTEST_PAUSE_S, _PAUSE_SHARE * waited_s, _PACE_SHARE * pace_s), _LONGEST_PAUSE_S)


def impatient_pause(waited_s: float, pace_s: float, lag_s: float) -> float:
    """The same for a message that is urgent, while nothing else is on its way: a link or a stage that idles costs more
    than a look."""
    is_near = waited_s <= _SOON_FACTOR * lag_s + _SOON_S
    least_s, share = (_SOON_S, _SOON_SHARE) if is_near else (_IMPATIENT_S, _IMPATIENT_SHARE)
    return max(least_s, share * waited_s, _IMPATIENT_PACE_SHARE * pace_s)


def is_urgent(is_collective: bool, num_bytes: float) -> bool:
    """What a stage waits for to compute on, and what is reduced: all but votes, which the slowest finds there."""
    return not is_collective or num_bytes > SMALL_BYTES


_SETTLED_SHARE = {True: 0.02, False: 0.1}
_MOST_SETTLED_S = {True: 0.12, False: 0.26}


def settled_delay(waited_s: float, urgent: bool) -> float:
    """How long a message lies in the store on the average that came so long after it was expected, when its lag has
    settled: it is asked for some percent of that too late as a rule, and one time in a few too early and again."""
    return min(_SETTLED_SHARE[urgent] * max(0.0, waited_s), _MOST_SETTLED_S[urgent])


SETTLED_MISSES = {True: 0.8, False: 0.35}
"""Looks that come too early, on the average, for each message by whether it is urgent; one that is there when it is
expected is found at the first look."""


def local_pause(waited_s: float) -> float:
    """The same where a look is free, in a folder of this machine."""
    shortest_s, longest_s = _LOCAL_PAUSE_S
    return min(max(shortest_s, _LOCAL_SHARE * waited_s), longest_s)


def pace_after(pace_s: float, gap_s: float) -> float:
    """The time between two messages that a rank sends one after the other, when the last two were this far apart."""
    return pace_s + (min(gap_s, _LONGEST_PACE_S) - pace_s) * _PACE_GAIN

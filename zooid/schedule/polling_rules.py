"""Rules for polling a store for a message of another rank, without a clock; predictions follow them, too.

Polling too early costs a request, polling too late costs time. Ranks do the same work at about the same pace, so a
message is expected when this rank has sent its counterpart: the message with the same index in its own order. It is
polled for after a lag, which is learned for each edge.
"""

import math
from collections.abc import Hashable

_CATCH_UP = 0.3
"""When a message comes later than its lag, the lag grows by this fraction of the difference."""
_TELLING = 1
"""The late message after so many others is believed at once: members have then started, and steps are as usual."""
_BELIEVED_S, _BELIEVED_FACTOR = 0.1, 3.0
"""Bounds for the lateness that counts: a late start or a single straggler says nothing about the next message."""
_CREEP, _MAX_CREEP = 0.04, 0.5
"""When a message is there at the first look, its lag shrinks by this fraction, which doubles each time in a row."""
_MIN_LAG_S = 0.005
_MIN_PAUSE_S = 0.005
_MAX_PAUSE_S = 0.5
_PAUSE_FRACTION = 0.3
"""The pause after an early look, as a fraction of the time already waited."""
_PACE_FRACTION = 1.0
"""The shortest such pause, as a fraction of the time that this rank takes for a message."""
_URGENT_S, _URGENT_FRACTION, _URGENT_PACE_FRACTION = 0.02, 0.1, 0.1
_SOON_S, _SOON_ROOT_S, _SOON_FACTOR, _SOON_MARGIN_S = 0.005, 0.015, 1.2, 0.01
"""Looks follow one another more closely around the lag of a message, when it is likely to arrive.

Let p be the pause, and W the time over which arrivals are spread, a few percent of the lag. A message costs W/p looks
and p/2 of its reader's time, so the best pause grows with the root of the lag. With 0.0000004 dollars for a look and
0.0001 dollars for a second of all members that wait, it is about 0.015 s for a lag of 1 s.
"""
_LOCAL_PAUSE_S = (0.0005, 0.010)
_LOCAL_FRACTION = 0.1
_LOCAL_EARLIEST = 0.7
"""The first look for a message comes after this fraction of the usual lag."""
LOCAL_BEHIND_S = 0.05
"""Pause between two looks in a folder for a message that an earlier one of the same rank usually precedes.

A look takes a tenth of a millisecond of processor time, and a pipeline waits for the messages of all its grains.
"""
_BEHIND_S, _BEHIND_FRACTION = 1.0, 0.5
_PACE_GAIN = 0.3
_MAX_PACE_S = 1.0
SMALL_BYTES, LARGE_BYTES = 2**10, 64 * 2**10
"""Small messages (such as votes) are limited by latency, large ones by bandwidth, so they have separate lags."""


class Lags:
    """Seconds between the expected arrival of a message and the first look, learned for each edge.

    An edge is any key that similar messages share.
    """

    def __init__(self) -> None:
        self._lags: dict[Hashable, float] = {}
        self._num_in_a_row: dict[Hashable, int] = {}
        self._num_late: dict[Hashable, int] = {}

    def of(self, edge: Hashable) -> float:
        """The lag of an edge; 0 at first, so that its first message is polled for at once."""
        return self._lags.get(edge, 0.0)

    def was_there(self, edge: Hashable) -> None:
        """Shrink the lag, since a message was there at the first look."""
        lag_s = self.of(edge)
        num_times = self._num_in_a_row.get(edge, 0)
        self._num_in_a_row[edge] = num_times + 1
        creep = min(_CREEP * 2 ** min(num_times, 8), _MAX_CREEP)
        self._lags[edge] = max(0.0, lag_s - creep * max(lag_s, _MIN_LAG_S))

    def came_late(self, edge: Hashable, late_s: float) -> None:
        """Extend the lag, since a message was not there at the first look, but `late_s` after it was expected."""
        self._num_in_a_row[edge] = 0
        lag_s = self.of(edge)
        num_before = self._num_late.get(edge, 0)
        self._num_late[edge] = num_before + 1
        if num_before == _TELLING:
            self._lags[edge] = max(lag_s, late_s)
            return
        believed_s = min(late_s, _BELIEVED_S + _BELIEVED_FACTOR * lag_s)
        later_s = lag_s + _CATCH_UP * max(believed_s - lag_s, _MIN_LAG_S)
        self._lags[edge] = min(later_s, max(lag_s, late_s))


def pause_after_miss(waited_s: float, pace_s: float) -> float:
    """Seconds until the next look; `pace_s` is the time that this rank takes for such a message."""
    return min(max(_MIN_PAUSE_S, _PAUSE_FRACTION * waited_s, _PACE_FRACTION * pace_s), _MAX_PAUSE_S)


def behind_pause(waited_s: float) -> float:
    """Seconds until the next look for a message that comes after others of the same rank, which are still missing.

    Programs may receive in another order than they send, so there are a few looks, and never none.
    """
    return max(_BEHIND_S, _BEHIND_FRACTION * waited_s)


def impatient_pause(waited_s: float, pace_s: float, lag_s: float) -> float:
    """Seconds until the next look for an urgent message, while nothing else is in flight.

    An idle link or stage costs more than a request.
    """
    is_near = waited_s <= _SOON_FACTOR * lag_s + _SOON_MARGIN_S
    pause_s = (
        max(_SOON_S, _SOON_ROOT_S * math.sqrt(waited_s)) if is_near else max(_URGENT_S, _URGENT_FRACTION * waited_s)
    )
    return max(pause_s, _URGENT_PACE_FRACTION * pace_s)


def is_urgent(num_bytes: float) -> bool:
    """Whether somebody waits for a message of a call: true for all but votes.

    Those are there when the slowest rank looks.
    """
    return num_bytes > SMALL_BYTES


_URGENT_ROOT_S, _URGENT_LATE_FRACTION = 0.0055, 0.004
_CALM_FRACTION, _MAX_CALM_S = 0.1, 0.26


def settled_delay(waited_s: float, urgent: bool) -> float:
    """Mean time in the store of a message that arrives `waited_s` after it is expected, once its lag has settled.

    Usually the first look is a few percent too late; sometimes it is too early and has to be repeated.
    """
    waited_s = max(0.0, waited_s)
    if urgent:
        return _URGENT_ROOT_S * math.sqrt(waited_s) + _URGENT_LATE_FRACTION * waited_s
    return min(_CALM_FRACTION * waited_s, _MAX_CALM_S)


SETTLED_MISSES = {True: 1.0, False: 0.35}
"""Mean number of looks that are too early, by whether the message is urgent.

A message that is there when it is expected is found at the first look.
"""


def local_pause(waited_s: float, lag_s: float = 0.0) -> float:
    """Seconds until the next look in a folder of this machine. Looks cost no money, but processor time.

    `lag_s` is the time after which such messages have come lately, if that is known. There are no looks long before.

    >>> local_pause(0.02), local_pause(0.0, lag_s=0.5)
    (0.002, 0.35)
    """
    min_s, max_s = _LOCAL_PAUSE_S
    return max(min(max(min_s, _LOCAL_FRACTION * waited_s), max_s), _LOCAL_EARLIEST * lag_s - waited_s)


def call_pause(waited_s: float, lag_s: float) -> float:
    """Seconds until the next look in a folder for a message of a collective call, such as a vote.

    Calls differ, and one may come much sooner than those before it. So there are few looks long before, not none.

    >>> call_pause(0.0, lag_s=0.2), call_pause(0.15, lag_s=0.2)
    (0.05, 0.01)
    """
    return max(local_pause(waited_s), min(local_pause(waited_s, lag_s), LOCAL_BEHIND_S))


def local_lag_after(lag_s: float, waited_s: float) -> float:
    """Update the usual lag in a folder, given that of the last message. It shrinks at once and grows slowly."""
    return min(waited_s, lag_s + (waited_s - lag_s) * _PACE_GAIN)


def pace_after(pace_s: float, gap_s: float) -> float:
    """Update the mean time between two messages that a rank sends, given the last gap."""
    return pace_s + (min(gap_s, _MAX_PACE_S) - pace_s) * _PACE_GAIN

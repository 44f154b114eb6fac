"""When to ask for a message that another rank is about to put into the store.

Asking too early costs a request, asking too late costs time. Ranks do the same work at about the same pace, so a
message is expected when this rank has sent its own counterpart, the message of the same place in its own order, and a
lag later that is learned for each edge.
"""

import threading
import time
from collections import defaultdict

from zooid.comm.transport import COLLECTIVE, Message

_FIRST_LAG_S = 0.02
_CATCH_UP = 0.3
"""How much of the difference a lag grows by when its message came later than it said."""
_CREEP = 0.03
"""How much a lag shrinks by when its message was there: a tenth of the above, so that one look in ten is too early."""
_SMALLEST_LAG_S = 0.005
_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.5
_PAUSE_SHARE = 0.3
"""A look that was too early is repeated after this share of the time already waited,"""
_PACE_SHARE = 1.0
"""and not before this share of the time that this rank itself takes for a message."""
_IMPATIENT_S, _IMPATIENT_SHARE, _IMPATIENT_PACE_SHARE = 0.02, 0.1, 0.1
LARGE_BYTES = 64 * 2**10
"""Of small messages the latency counts, of large ones the link: they have lags of their own."""

Edge = tuple[int, int, bool]


class Progress:
    """How far this rank is in sending, by call: the clock by which others' messages are expected."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: defaultdict[int, set[int]] = defaultdict(set)
        self._last_s = 0.0
        self.pace_s = 0.0
        """Time between two messages that this rank sends, when it sends one after the other."""

    def note_sent(self, number: int, place: int) -> None:
        now_s = time.monotonic()
        with self._lock:
            sent = self._sent[number]
            self.pace_s = self.pace_s + (min(now_s - self._last_s, 1.0) - self.pace_s) * 0.3 if sent else 0.0
            self._last_s = now_s
            sent.add(place)

    def has_sent(self, number: int, place: int) -> bool:
        return place in self._sent.get(number, ())

    def forget(self, number: int) -> None:
        """Calls up to this one are over."""
        with self._lock:
            for old in [call for call in self._sent if call <= number]:
                del self._sent[old]


class Lags:
    """How long after it is expected a message is asked for, by edge: source, kind of call, size."""

    def __init__(self) -> None:
        self._lags: dict[Edge, float] = {}

    @staticmethod
    def edge(message: Message, source: int, num_bytes: int) -> Edge:
        return (source, message.kind if message.kind == COLLECTIVE else 1 + message.tag, num_bytes > LARGE_BYTES)

    def of(self, edge: Edge) -> float:
        return self._lags.get(edge, _FIRST_LAG_S)

    def was_there(self, edge: Edge) -> None:
        """A message was there at the first look; how long already, nobody knows."""
        lag_s = self.of(edge)
        self._lags[edge] = max(0.0, lag_s - _CREEP * max(lag_s, _SMALLEST_LAG_S))

    def came_late(self, edge: Edge, found_s: float) -> None:
        """A message was not there at the first look, and was found so long after it was expected."""
        lag_s = self.of(edge)
        self._lags[edge] = lag_s + _CATCH_UP * max(found_s - lag_s, _SMALLEST_LAG_S)


def pause_after_miss(waited_s: float, pace_s: float) -> float:
    """How long to wait before looking again; `pace_s` is what this rank itself takes for such a message."""
    return min(max(_SHORTEST_PAUSE_S, _PAUSE_SHARE * waited_s, _PACE_SHARE * pace_s), _LONGEST_PAUSE_S)


def impatient_pause(waited_s: float, pace_s: float) -> float:
    """The same for a large message while nothing else is on its way: a link that idles costs more than a look."""
    return max(_IMPATIENT_S, _IMPATIENT_SHARE * waited_s, _IMPATIENT_PACE_SHARE * pace_s)

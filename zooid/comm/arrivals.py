"""When to ask for a message that another rank is about to put into the store.

Asking too early costs a request, asking too late costs time. Ranks do the same work at about the same pace, so a
message is expected when this rank has sent as many messages of the call as the source sends before it, and a lag
later that is learned for each edge.
"""

import threading
from collections import defaultdict

from zooid.comm.transport import COLLECTIVE, Message

_FIRST_LAG_S = 0.01
_SAMPLE_WEIGHT = 0.4
_DECAY = 0.85
"""What is there at the first look may have been there for long: the next look comes a little earlier."""
_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25
_PAUSE_SHARE = 0.3
"""A look that was too early is repeated after this share of the time already waited."""

Edge = tuple[int, int, int]


class Progress:
    """How far this rank is in sending, by call: the clock by which others' messages are expected."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: defaultdict[int, int] = defaultdict(int)
        self._done: defaultdict[int, int] = defaultdict(int)

    def begin(self, message: Message) -> None:
        if message.kind == COLLECTIVE:
            with self._lock:
                self._begun[message.number] += 1

    def end(self, message: Message) -> None:
        if message.kind == COLLECTIVE:
            with self._lock:
                self._done[message.number] += 1

    def is_expected(self, message: Message) -> bool:
        """Whether the source, were it as fast as this rank, has sent this message."""
        if message.kind != COLLECTIVE:
            return True
        done = self._done.get(message.number, 0)
        return done > message.tag or done == self._begun.get(message.number, 0)

    def forget(self, number: int) -> None:
        """Calls up to this one are over."""
        with self._lock:
            for counts in (self._begun, self._done):
                for old in [call for call in counts if call <= number]:
                    del counts[old]


class Lags:
    """How long after it is expected a message comes, by edge: source, kind of call, size."""

    def __init__(self) -> None:
        self._lags: dict[Edge, float] = {}

    @staticmethod
    def edge(message: Message, source: int, num_bytes: int) -> Edge:
        return (source, message.kind if message.kind == COLLECTIVE else 1 + message.tag, num_bytes.bit_length())

    def expected_s(self, edge: Edge) -> float:
        return self._lags.get(edge, _FIRST_LAG_S)

    def found_at_once(self, edge: Edge) -> None:
        self._lags[edge] = self.expected_s(edge) * _DECAY

    def found_between(self, edge: Edge, missed_s: float, found_s: float) -> None:
        """It was not there `missed_s` after it was expected, and was `found_s` after."""
        sample_s = (missed_s + found_s) / 2
        self._lags[edge] = self.expected_s(edge) * (1 - _SAMPLE_WEIGHT) + sample_s * _SAMPLE_WEIGHT


def pause_after_miss(waited_s: float) -> float:
    return min(max(_SHORTEST_PAUSE_S, _PAUSE_SHARE * waited_s), _LONGEST_PAUSE_S)

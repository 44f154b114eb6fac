"""How far a rank is in sending: the clock by which it expects what others send (see `schedule.waiting`)."""

import threading
import time
from collections import defaultdict
from typing import TypeAlias

from zooid.comm.transport_protocol import COLLECTIVE, Message
from zooid.schedule.polling_rules import LARGE_BYTES, SMALL_BYTES, pace_after

Edge: TypeAlias = tuple[int, int, int, bool]


def edge_of(message: Message, source: int, num_bytes: int, is_answer: bool) -> Edge:
    """What makes messages alike in how long they take: source, kind of call, size; and whether their source can send
    them only after it has taken others: who begins a call late is late with its own parts, but not with answers."""
    kind = message.kind if message.kind == COLLECTIVE else 1 + message.tag
    return source, kind, (num_bytes > SMALL_BYTES) + (num_bytes > LARGE_BYTES), is_answer


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
            self.pace_s = pace_after(self.pace_s, now_s - self._last_s) if sent else 0.0
            self._last_s = now_s
            sent.add(place)

    def has_sent(self, number: int, place: int) -> bool:
        return place in self._sent.get(number, ())

    def forget(self, number: int) -> None:
        """Calls up to this one are over."""
        with self._lock:
            for old in [call for call in self._sent if call <= number]:
                del self._sent[old]

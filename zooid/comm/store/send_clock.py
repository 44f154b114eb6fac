"""A rank's progress in sending, which is the clock by which it expects messages (see `schedule.polling_rules`)."""

import threading
import time
from collections import defaultdict

from zooid.schedule.polling_rules import pace_after


class Progress:
    """The messages that this rank has sent in each call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: defaultdict[int, set[int]] = defaultdict(set)
        self._last_s = 0.0
        self.pace_s = 0.0
        """Time between two messages that this rank sends in a row."""

    def note_sent(self, number: int, send_index: int) -> None:
        now_s = time.monotonic()
        with self._lock:
            sent = self._sent[number]
            self.pace_s = pace_after(self.pace_s, now_s - self._last_s) if sent else 0.0
            self._last_s = now_s
            sent.add(send_index)

    def has_sent(self, number: int, send_index: int) -> bool:
        return send_index in self._sent.get(number, ())

    def forget(self, number: int) -> None:
        """Forget all calls up to this one, which have ended."""
        with self._lock:
            for old in [call for call in self._sent if call <= number]:
                del self._sent[old]

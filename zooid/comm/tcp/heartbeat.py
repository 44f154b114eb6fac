"""Signs of life between connected members: whoever hangs, is stopped or is cut off is silent, and is noticed.

Only this machine's monotonic clock is looked at. A member is lost after a silence that is long beside what was measured
before: on a busy machine, signs of life come late, and are waited for longer.
"""

import threading
import time
from collections.abc import Sequence

from zooid.comm.tcp.connection import Link

HEARTBEAT_S = 0.4
"""Every member lets every other know that often that it lives."""
SILENCE_S = 2.0
"""The shortest silence after which a member is lost."""
_TIMES_LONGEST = 3.0
"""A silence that is this many times as long as the longest that was measured is no delay any more."""
_MOST_S = 10.0
"""The longest silence that is waited for, however busy a machine is."""


def watched_by(place: int, num_members: int) -> set[int]:
    """The places of those members that one member watches, and that watch it: the next ones, and ever farther ones.

    So their number grows with the logarithm of the number of members.
    """
    distances = [2**power for power in range(num_members.bit_length())]
    near = {(place + way * distance) % num_members for distance in distances for way in (1, -1)}
    return near - {place}


class Heartbeats:
    """The thread of one member that sends signs of life and looks for those of others."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._longest_s = dict.fromkeys((link.name for link in links), 0.0)
        """The longest silence that each member has ended by itself."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zooid-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        heard_s = {link.name: link.heard_s for link in self._links}
        looked_s = time.monotonic()
        while not self._ended.is_set():
            for link in self._links:
                link.pulse()
            self._ended.wait(HEARTBEAT_S)
            now_s = time.monotonic()
            own_delay_s = max(0.0, now_s - looked_s - 2 * HEARTBEAT_S)
            looked_s = now_s
            for link in self._links:
                if link.lost is not None:
                    continue
                if link.heard_s > heard_s[link.name]:
                    silent_s = link.heard_s - heard_s[link.name]
                    self._longest_s[link.name] = max(silent_s, self._longest_s[link.name])
                    heard_s[link.name] = link.heard_s
                else:  # while this member itself was held up, it could not hear
                    heard_s[link.name] += own_delay_s
                limit_s = self.limit_s(link.name)
                if now_s - heard_s[link.name] > limit_s:
                    link.lose(f"it has been silent for {now_s - heard_s[link.name]:.1f} s")

    def limit_s(self, name: str) -> float:
        """The silence after which this member is lost."""
        return min(max(SILENCE_S, _TIMES_LONGEST * self._longest_s[name]), _MOST_S)

"""Heartbeats between connected members, which reveal members that hang, are stopped or are cut off.

Silence is measured by this machine's monotonic clock alone. The limit grows with the longest silence measured before:
on a busy machine heartbeats come late, and are waited for longer.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

from zooid.comm.tcp.connection import Connection

HEARTBEAT_S = 0.4
"""The interval between two heartbeats."""
SILENCE_S = 2.0
"""The shortest silence after which a member is lost."""
_LONGEST_FACTOR = 3.0
"""A member is lost only after this many times its longest silence so far."""
_MAX_SILENCE_S = 10.0
"""The longest silence that is tolerated, however busy a machine is."""


def watched_by(rank: int, num_members: int) -> set[int]:
    """Return the ranks that one member watches, and that watch it: those at distances 1, 2, 4, … on both sides.

    Their number grows with the logarithm of the number of members.
    """
    distances = [2**power for power in range(num_members.bit_length())]
    return {(rank + sign * distance) % num_members for distance in distances for sign in (1, -1)} - {rank}


class Heartbeats:
    """The thread of one member that sends heartbeats and watches for those of others."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = list(connections)
        self._longest_s: defaultdict[str, float] = defaultdict(float)
        """The longest silence of each member that ended by itself."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zooid-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, connections: Sequence[Connection]) -> None:
        """Send heartbeats to these members, too, and watch for theirs."""
        self._connections = [*self._connections, *connections]

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        heard_s: dict[str, float] = {}
        checked_s = time.monotonic()
        while not self._ended.is_set():
            connections = [connection for connection in self._connections if connection.lost is None]
            for connection in connections:
                heard_s.setdefault(connection.name, connection.heard_s)
                connection.send_heartbeat()
            self._ended.wait(HEARTBEAT_S)
            now_s = time.monotonic()
            own_delay_s = max(0.0, now_s - checked_s - 2 * HEARTBEAT_S)
            checked_s = now_s
            for connection in connections:
                name = connection.name
                if connection.lost is not None:
                    continue
                if connection.heard_s > heard_s[name]:
                    self._longest_s[name] = max(connection.heard_s - heard_s[name], self._longest_s[name])
                    heard_s[name] = connection.heard_s
                else:  # while this member itself was held up, it could hear nothing
                    heard_s[name] += own_delay_s
                silent_s = now_s - heard_s[name]
                if silent_s > self.limit_s(name):
                    connection.lose(f"it has been silent for {silent_s:.1f} s")

    def limit_s(self, name: str) -> float:
        """Return the silence after which this member is lost."""
        return min(max(SILENCE_S, _LONGEST_FACTOR * self._longest_s[name]), _MAX_SILENCE_S)

"""The door at which members connect for a measurement."""

import socket
import time
from contextlib import ExitStack, closing

from zooid.profiler.probes.door import Door, find_host


def test_silent_strangers_hold_up_nobody() -> None:
    with ExitStack() as strangers, closing(Door()) as door:
        for _ in range(20):
            strangers.enter_context(socket.create_connection(("127.0.0.1", door.address.port)))
        began_s = time.monotonic()
        assert find_host(door.address)[0] == "127.0.0.1"
        assert time.monotonic() - began_s < 2.0

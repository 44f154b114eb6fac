"""The listener to which members connect for a measurement."""

import socket
import time
from contextlib import ExitStack, closing

from zooid.profiler.probes.probe_listener import ProbeListener, find_host


def test_silent_strangers_hold_up_nobody() -> None:
    with ExitStack() as strangers, closing(ProbeListener()) as listener:
        for _ in range(20):
            strangers.enter_context(socket.create_connection(("127.0.0.1", listener.address.port)))
        began_s = time.monotonic()
        assert find_host(listener.address)[0] == "127.0.0.1"
        assert time.monotonic() - began_s < 2.0

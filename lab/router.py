"""A router that passes packets on a fixed time after they came: distance, where the kernel has no netem.

`python router.py DEVICE DELAY_S` makes a TUN device, prints its name, and gives back every packet that is routed into
it DELAY_S later, in order. It limits no bandwidth: TCP sees the round trip and nothing else. Uses nothing but the
standard library, so that it starts at once.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MOST_BYTES = 2**16
_SLACK_S = 0.0001
"""What is due so soon goes at once."""


def open_device(name: str) -> int:
    """A TUN device of this network namespace; it is gone when the process is."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def route(device: int, delay_s: float) -> None:
    """Serve until the process is ended."""
    held: deque[tuple[float, bytes]] = deque()
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        if select.select([device], [], [], wait_s)[0]:
            due_s = time.monotonic() + delay_s
            with suppress(BlockingIOError):
                while True:
                    held.append((due_s, os.read(device, _MOST_BYTES)))
        now_s = time.monotonic() + _SLACK_S
        while held and held[0][0] <= now_s:
            with suppress(OSError):  # the device is not up yet, or the kernel's queue is full: a lost packet
                os.write(device, held.popleft()[1])


if __name__ == "__main__":
    _device = open_device(sys.argv[1])
    print(sys.argv[1], flush=True)
    route(_device, float(sys.argv[2]))

"""Network addresses at which other processes can reach this one."""

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915


def own_addresses() -> list[str]:
    """List the IPv4 addresses of this machine's interfaces, without loopback addresses."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in addresses if not address.startswith("127.")]


def own_network() -> str:
    """Identify this network namespace; processes with equal identifiers have one loopback interface."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}"

"""Members that really cannot reach one another: a network namespace for each, joined to the store's alone.

A star of veth pairs with the store in the middle, which forwards nothing; one more pair leads to the namespace of the
calling process, where the coordinator runs. `shape` gives the members' links a bandwidth, `connect_members` lets them
reach one another after all, `apart` at a distance; `cut` takes a member's link away.
Needs root.
"""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import router
from zooid.core.errors import ZooidError

_MTU = 9000
"""At 1500, acknowledgements eat a fifth of a slow duplex link."""
_BURST_BYTES = 2**16
"""What a shaped link lets pass at once: one packet as the kernel's offloading makes them. With only two jumbo frames a
timer that fires late costs 2 % of 5 MB/s; with more, messages of this size would see no limit at all."""
_QUEUE_S = 0.05
"""What waits longer before a shaped link is dropped; TCP slows down before that."""
_CONGESTION_CONTROL = ("congctl", "cubic")
"""Given with the routes, so that a machine's own choice does not matter; bbr leaves up to 8 % of 5 MB/s unused."""
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_MAX_MEMBERS = 200
_FIRST_MEMBER = 10
"""Last number of the first member's address; the store's is 1 and the calling process's is 2."""

_FAR = "77"
"""The routing table of what is passed on later."""

_counter = itertools.count()


class NamespaceFailed(ZooidError):
    """A network namespace of the laboratory could not be made."""


@dataclass(frozen=True)
class Namespace:
    """One network namespace, for as long as its star lives."""

    name: str
    address: str
    """Belongs to a private range that exists only in the star."""

    @property
    def prefix(self) -> list[str]:
        """What to put before a command to run it inside."""
        return ["ip", "netns", "exec", self.name]


@dataclass(frozen=True)
class Member(Namespace):
    """A namespace with one way out: to the store."""

    device: str
    """Its own end of that way; shaping it limits what the member sends."""
    store_device: str
    """The store's end; shaping it limits what the member receives."""


@dataclass(frozen=True)
class Star:
    """The store's namespace and those of the members around it."""

    store: Namespace
    members: tuple[Member, ...]


def missing_privilege() -> str | None:
    """What this process lacks to make namespaces, in words; None where it lacks nothing."""
    if shutil.which("ip") is None:
        return "the program ip (of iproute2)"
    status = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return next((name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1), None)


@contextmanager
def star(num_members: int) -> Iterator[Star]:
    """Make the namespaces, their addresses and routes; all of it is gone when the block is left, however it is left."""
    if not 1 <= num_members <= _MAX_MEMBERS:
        raise NamespaceFailed(f"{num_members} members are asked for; a star has 1 to {_MAX_MEMBERS}")
    lacking = missing_privilege()
    if lacking is not None:
        raise NamespaceFailed(f"network namespaces need {lacking}; run as root")
    mark = f"z{os.getpid()}-{next(_counter)}"  # with a letter and a number at most 15 characters, as devices need
    network = _free_network()
    store = Namespace(f"{mark}s", f"{network}.1")
    members = tuple(
        Member(f"{mark}m{number}", f"{network}.{_FIRST_MEMBER + number}", f"{mark}m{number}", f"{mark}s{number}")
        for number in range(num_members)
    )
    with ExitStack() as stack:
        for namespace in (store, *members):
            stack.callback(_run, ["ip", "netns", "delete", namespace.name], check=False)
            _run(["ip", "netns", "add", namespace.name])
            _run([*namespace.prefix, "ip", "link", "set", "lo", "up"])
        _run([*store.prefix, "ip", "address", "add", f"{store.address}/32", "dev", "lo"])
        set_forwarding(store, False)
        for member in members:
            _join(store, member.store_device, member.address, member.device, member)
        stack.callback(_run, ["ip", "link", "delete", f"{mark}c"], check=False)
        _join(store, f"{mark}h", f"{network}.2", f"{mark}c", None)
        yield Star(store, members)


def set_forwarding(namespace: Namespace, allowed: bool) -> None:
    """Whether a namespace passes on what is addressed to others. A star's store does not, until it is told to."""
    files = "/proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding"
    _run([*namespace.prefix, "sh", "-c", f"for file in {files}; do ! test -e $file || echo {allowed:d} > $file; done"])


def add_route(source: Namespace, target: Namespace, through: Namespace) -> None:
    """Let one namespace send what is for another to a third, which may or may not pass it on."""
    device = source.device if isinstance(source, Member) else "lo"
    way = ["via", through.address, "dev", device, "onlink"]
    _run([*source.prefix, "ip", "route", "replace", f"{target.address}/32", *way, *_CONGESTION_CONTROL])


def shape(made: Star, bytes_per_s: int | Sequence[int]) -> None:
    """Limit what each member sends and what it receives, each to so much; frames count whole, headers included.

    One rate is for all; several are one for each."""
    rates = [bytes_per_s] * len(made.members) if isinstance(bytes_per_s, int) else bytes_per_s
    for member, rate in zip(made.members, rates, strict=True):
        queue_bytes = _BURST_BYTES + round(rate * _QUEUE_S)
        limits = ["rate", f"{8 * rate}bit", "burst", str(_BURST_BYTES), "limit", str(queue_bytes)]
        for end, device in ((member, member.device), (made.store, member.store_device)):
            _run([*end.prefix, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *limits])


def connect_members(made: Star) -> None:
    """Let members reach one another through the store's namespace: over both their links, as through a switch."""
    for source, target in itertools.permutations(made.members, 2):
        add_route(source, target, through=made.store)
    set_forwarding(made.store, True)


def cut(made: Star, member: Member) -> None:
    """Take a member's only link down: it reaches nobody, nobody reaches it, and no connection is closed by that."""
    _run([*made.store.prefix, "ip", "link", "set", member.store_device, "down"])


def mend(made: Star, member: Member) -> None:
    """Put the link up again, and the route over it, which the kernel has forgotten. A whole link stays as it is."""
    _run([*made.store.prefix, "ip", "link", "set", member.store_device, "up"])
    way = ["dev", member.store_device, "src", made.store.address, *_CONGESTION_CONTROL]
    _run([*made.store.prefix, "ip", "route", "replace", f"{member.address}/32", *way])


@contextmanager
def apart(made: Star, round_trip_s: float) -> Iterator[None]:
    """Put connected members so far away from one another: what they send each other is passed on later.

    The store forwards it through a router of its own; the way to the store itself stays as short as it was."""
    device = f"{made.store.name}r"
    command = [*made.store.prefix, sys.executable, router.__file__, device, str(round_trip_s / 2)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise NamespaceFailed(f"the router did not start: {process.communicate()[1].decode().strip()}")
        _run([*made.store.prefix, "ip", "link", "set", device, "mtu", str(_MTU), "up"])
        for filtered in ("all", device):  # what comes back from the router seems to come from elsewhere
            _run([*made.store.prefix, "sh", "-c", f"echo 0 > /proc/sys/net/ipv4/conf/{filtered}/rp_filter"])
        _run([*made.store.prefix, "ip", "route", "add", "default", "dev", device, "table", _FAR])
        for member in made.members:
            _run([*made.store.prefix, "ip", "rule", "add", "iif", member.store_device, "lookup", _FAR])
        yield
    finally:
        process.kill()
        process.communicate()
        for member in made.members:
            _run([*made.store.prefix, "ip", "rule", "delete", "iif", member.store_device], check=False)


def _join(store: Namespace, store_device: str, address: str, device: str, member: Namespace | None) -> None:
    """A veth pair between the store and a member (None: the namespace of this process), and the routes over it."""
    prefix = member.prefix if member is not None else []
    own_end = ["mtu", str(_MTU), *(["netns", member.name] if member is not None else [])]
    store_end = ["name", store_device, "mtu", str(_MTU), "netns", store.name]
    _run(["ip", "link", "add", device, *own_end, "type", "veth", "peer", *store_end])
    _run([*prefix, "ip", "address", "add", f"{address}/32", "dev", device])
    _run([*prefix, "ip", "link", "set", device, "up"])
    _run([*store.prefix, "ip", "link", "set", store_device, "up"])
    there, back = (["dev", device, "src", address], ["dev", store_device, "src", store.address])
    _run([*prefix, "ip", "route", "add", f"{store.address}/32", *there, *_CONGESTION_CONTROL])
    _run([*store.prefix, "ip", "route", "add", f"{address}/32", *back, *_CONGESTION_CONTROL])


def _free_network() -> str:
    """First three numbers of a range that this machine has no route into; another star may run beside this one."""
    routes = _run(["ip", "route", "show", "table", "all"])
    return next(network for number in range(256) if f"{(network := f'10.77.{number}')}." not in routes)


def _run(command: Sequence[str], *, check: bool = True) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and answer.returncode != 0:
        raise NamespaceFailed(f"{' '.join(command)} failed: {answer.stderr.strip()}")
    return answer.stdout

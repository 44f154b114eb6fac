"""The connections of one member to all others of a run, and the groups that they carry.

Members rendezvous once. A new group among connected members is a channel on their connections, without a rendezvous.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from zooid.comm.group_options import Options
from zooid.comm.process_group import ProcessGroup
from zooid.comm.tcp.connection import Connection
from zooid.comm.tcp.heartbeat import Heartbeats, watched_by
from zooid.comm.tcp.mesh import Mesh, streams_over
from zooid.comm.tcp.tcp_transport import TcpTransport
from zooid.core.abort import Abort

_LEAVE_TIMEOUT_S = 10.0


class MemberLinks:
    """One member's connections to the other members."""

    def __init__(
        self,
        name: str,
        connections: Sequence[Connection],
        options: Options,
        latency_s: float | None,
        heartbeats: Heartbeats,
    ) -> None:
        self.name = name
        self._connections = {connection.name: connection for connection in connections}
        self._options = options
        self._latency_s = latency_s
        self._heartbeats = heartbeats
        self._lock = threading.Lock()
        """Held while connections are added, since two planned changes may be prepared at once."""

    @property
    def lost(self) -> dict[str, str]:
        """The names of lost members, each with the reason."""
        return {name: connection.lost for name, connection in self._connections.items() if connection.lost is not None}

    def group(self, channel: int, names: Sequence[str], *, timeout_s: float, abort: Abort) -> ProcessGroup:
        """Return the process group of these members, which are named in rank order and include this one.

        All members of a group use the same channel, and no two groups of a member use the same. The call does not wait
        for the other members.
        """
        rank = names.index(self.name)
        transport = TcpTransport()
        options, latency_s = self._options, self._latency_s
        group = ProcessGroup(
            transport, rank, len(names), abort=abort, timeout_s=timeout_s, options=options, latency_s=latency_s
        )
        peers = {peer: self._connections[name] for peer, name in enumerate(names) if peer != rank}
        transport.start({peer: connection.channel(channel) for peer, connection in peers.items()})
        for peer, connection in peers.items():
            connection.open(channel, transport, peer)
        return group

    def join(self, store: Any, names: Sequence[str], num_connected: int, *, timeout_s: float, abort: Abort) -> None:
        """Connect members that are connected already with new ones, through a rendezvous of all of them.

        All give the same names in the same order. The first `num_connected` are connected with each other already.
        """
        connections, latency_s = _connect(
            store, self.name, names, self._options, timeout_s, abort, num_connected, self._latency_s
        )
        with self._lock:
            replaced = [self._connections[each.name] for each in connections.values() if each.name in self._connections]
            self._connections = {**self._connections, **{each.name: each for each in connections.values()}}
            self._latency_s = latency_s
            self._heartbeats.watch(_watched(connections, names.index(self.name), len(names)))
        for connection in replaced:
            connection.lose("it has connected again")

    def close(self) -> None:
        """Leave all members after everything sent has arrived, without waiting for lost members."""
        self._heartbeats.close()
        alive = [connection for connection in self._connections.values() if connection.lost is None]
        deadline_s = time.monotonic() + _LEAVE_TIMEOUT_S
        for connection in alive:
            connection.leave()
        for connection in alive:
            for stream in connection.streams:
                stream.drain(deadline_s)
                stream.end_sending()

    def cut(self) -> None:
        """End all connections at once."""
        self._heartbeats.close()
        for connection in self._connections.values():
            connection.lose("this member has given up")


def connect_members(
    store: Any,
    name: str,
    names: Sequence[str],
    options: Options,
    *,
    timeout_s: float,
    abort: Abort,
    num_connected: int = 0,
) -> MemberLinks:
    """Rendezvous with all members through a c10d store, and connect with each.

    Every member gives the same names in the same order. The first `num_connected` are connected with each other
    already, and call `MemberLinks.join`.
    """
    connections, latency_s = _connect(store, name, names, options, timeout_s, abort, num_connected)
    heartbeats = Heartbeats(_watched(connections, names.index(name), len(names)))
    heartbeats.start()
    return MemberLinks(name, list(connections.values()), options, latency_s, heartbeats)


def _connect(
    store: Any,
    name: str,
    names: Sequence[str],
    options: Options,
    timeout_s: float,
    abort: Abort,
    num_connected: int,
    known_latency_s: float | None = None,
) -> tuple[dict[int, Connection], float | None]:
    """Return new connections by rank, and the round trip that all ranks agree on.

    `known_latency_s` is the round trip that the ranks which are connected already have agreed on.
    """
    mesh = Mesh(store, names.index(name), len(names), options, timeout_s, abort, num_connected)
    connections = {}
    for peer, sockets in mesh.connect().items():
        connection = connections[peer] = Connection(names[peer])
        connection.start(streams_over(sockets, peer, connection))
    try:
        return connections, mesh.agree_on_latency(known_latency_s)
    except BaseException:
        for connection in connections.values():
            connection.lose("the rendezvous failed")
        raise


def _watched(connections: Mapping[int, Connection], rank: int, num_members: int) -> list[Connection]:
    """The connections to the members that this rank watches."""
    return [connection for peer, connection in connections.items() if peer in watched_by(rank, num_members)]

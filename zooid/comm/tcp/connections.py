"""The connections of one member to all others of a run, and the groups that they carry.

Members meet once. A new group among connected members is a channel on their connections: it needs no meeting.
"""

import time
from collections.abc import Sequence
from typing import Any

from zooid.comm.group_options import Options
from zooid.comm.process_group import ProcessGroup
from zooid.comm.tcp.connection import Link
from zooid.comm.tcp.heartbeat import Heartbeats, watched_by
from zooid.comm.tcp.mesh import Mesh, streams_over
from zooid.comm.tcp.tcp_transport import TcpTransport
from zooid.comm.traffic_counter import Counter
from zooid.core.abort import Abort

_LEAVE_TIMEOUT_S = 10.0


class MemberLinks:
    """One member's connections, by the names of the members at their other ends."""

    def __init__(
        self, name: str, links: Sequence[Link], options: Options, latency_s: float | None, pulse: Heartbeats
    ) -> None:
        self.name = name
        self._links = {link.name: link for link in links}
        self._options = options
        self._latency_s = latency_s
        self._pulse = pulse

    @property
    def lost(self) -> dict[str, str]:
        """Members that nothing comes from any more, and why."""
        return {link.name: link.lost for link in self._links.values() if link.lost is not None}

    def group(self, channel: int, names: Sequence[str], *, timeout_s: float, abort: Abort) -> ProcessGroup:
        """The process group of these members, in order of their ranks; this one is among them.

        Every group of a member has another channel, and all members of a group give it the same. Nobody is waited for.
        """
        rank = names.index(self.name)
        counter = Counter()
        transport = TcpTransport(counter)
        group = ProcessGroup(
            transport,
            rank,
            len(names),
            abort=abort,
            timeout_s=timeout_s,
            options=self._options,
            latency_s=self._latency_s,
            counter=counter,
        )
        links = {peer: self._links[name] for peer, name in enumerate(names) if peer != rank}
        transport.start({peer: link.channel(channel) for peer, link in links.items()})
        for peer, link in links.items():
            link.open(channel, transport, peer)
        return group

    def close(self) -> None:
        """Leave all members, after everything that was sent has arrived; who is lost is not waited for."""
        self._pulse.close()
        here = [link for link in self._links.values() if link.lost is None]
        deadline_s = time.monotonic() + _LEAVE_TIMEOUT_S
        for link in here:
            link.leave()
        for link in here:
            for stream in link.streams:
                stream.drain(deadline_s)
                stream.end_sending()

    def cut(self) -> None:
        """End all connections at once."""
        self._pulse.close()
        for link in self._links.values():
            link.lose("this member has given up")


def connect_members(
    store: Any, name: str, names: Sequence[str], options: Options, *, timeout_s: float, abort: Abort
) -> MemberLinks:
    """Meet all members in a c10d store, and connect with each; all give the same names in the same order."""
    place = names.index(name)
    mesh = Mesh(store, place, len(names), options, timeout_s, abort)
    links = {}
    for peer, sockets in mesh.connect().items():
        link = links[peer] = Link(names[peer])
        link.start(streams_over(sockets, peer, link))
    pulse = Heartbeats([link for peer, link in links.items() if peer in watched_by(place, len(names))])
    try:
        latency_s = mesh.agree_on_latency()
    except BaseException:
        for link in links.values():
            link.lose("the members did not meet")
        raise
    pulse.start()
    return MemberLinks(name, list(links.values()), options, latency_s, pulse)

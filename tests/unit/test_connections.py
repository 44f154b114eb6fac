"""Connections that outlive groups: channels, what comes early or late, and members that fall silent."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported, but not in its __all__

from lab.waiting import wait_until
from zooid.comm import Options, ProcessGroup
from zooid.comm.tcp import heartbeat
from zooid.comm.tcp.connection import Connection
from zooid.comm.tcp.connections import MemberLinks, connect_members
from zooid.comm.tcp.frames import Frame, FrameKind
from zooid.comm.tcp.heartbeat import watched_by
from zooid.comm.transport_protocol import Message
from zooid.core.abort import Abort
from zooid.core.errors import CommError, PeerLost

NAMES = ["a", "b", "c"]
OPTIONS = Options(transport="tcp", address="127.0.0.1")
LARGE = 400_000
"""Numbers of a message that is sent only when its reader has a place for it."""


@contextmanager
def connected(names: Sequence[str] = NAMES) -> Iterator[dict[str, MemberLinks]]:
    store = HashStore()
    with ThreadPoolExecutor(len(names)) as pool:
        calls = [
            pool.submit(connect_members, store, name, names, OPTIONS, timeout_s=20.0, abort=Abort()) for name in names
        ]
        members = {name: call.result() for name, call in zip(names, calls, strict=True)}
    try:
        yield members
    finally:
        for member in members.values():
            member.cut()


def groups_of(
    members: dict[str, MemberLinks], channel: int, names: Sequence[str], timeout_s: float = 20.0
) -> list[ProcessGroup]:
    return [members[name].group(channel, names, timeout_s=timeout_s, abort=Abort()) for name in names]


def everywhere(groups: Sequence[ProcessGroup], what: Callable[[ProcessGroup], object]) -> list[object]:
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(what, groups))


def total(group: ProcessGroup, num_elements: int = 10) -> float:
    values = torch.full((num_elements,), float(group.rank() + 1))
    group.allreduce([values]).wait()
    return float(values[0])


def test_groups_share_connections_and_none_takes_what_is_another_s() -> None:
    with connected() as members:
        everyone = groups_of(members, 1, NAMES)
        pair = groups_of(members, 2, ["c", "a"])
        assert everywhere(everyone, total) == [6.0] * 3
        assert everywhere(pair, lambda group: total(group, LARGE)) == [3.0] * 2
        both = [*everyone, *pair]
        assert everywhere(both, lambda group: total(group, LARGE)) == [6.0] * 3 + [3.0] * 2


@pytest.mark.parametrize("num_elements", [10, LARGE])
def test_what_comes_before_a_channel_is_open_is_kept(num_elements: int) -> None:
    with connected(["a", "b"]) as members:
        first = members["a"].group(1, ["a", "b"], timeout_s=20.0, abort=Abort())
        sent = first.send([torch.arange(num_elements)], 1, 7)
        time.sleep(0.1)
        second = members["b"].group(1, ["a", "b"], timeout_s=20.0, abort=Abort())
        received = torch.zeros(num_elements, dtype=torch.int64)
        second.recv([received], 0, 7).wait()
        sent.wait()
        assert torch.equal(received, torch.arange(num_elements))


def test_a_group_that_fails_leaves_the_others_and_the_connections_as_they_are() -> None:
    with connected() as members:
        failing, kept = groups_of(members, 1, NAMES), groups_of(members, 2, NAMES)
        waiting = failing[0].recv([torch.zeros(LARGE)], 1, 0)
        failing[1].abort()
        with pytest.raises(PeerLost, match="rank 1 gave up: CommAborted"):
            waiting.wait()
        assert everywhere(kept, lambda group: total(group, LARGE)) == [6.0] * 3
        assert everywhere(groups_of(members, 3, NAMES), total) == [6.0] * 3
        assert all(not member.lost for member in members.values())


def test_memory_of_a_group_that_has_failed_is_left_alone() -> None:
    """A large message is on its way when both ends give up. Its memory is used for something else, and the connection
    still carries the next group."""
    with connected(["a", "b"]) as members:
        for channel in range(1, 30):
            left, right = groups_of(members, channel, ["a", "b"])
            outgoing, incoming = torch.ones(4 * LARGE), torch.zeros(4 * LARGE)
            left.send([outgoing], 1, 0)
            right.recv([incoming], 0, 0)
            left.abort()
            right.abort()
            outgoing.fill_(7.0)
            incoming.fill_(5.0)
            assert everywhere(groups_of(members, 100 + channel, ["a", "b"]), total) == [3.0] * 2
            assert torch.all(incoming == 5.0)


def test_a_member_that_is_gone_is_lost_in_every_group() -> None:
    with connected() as members:
        first, second = groups_of(members, 1, NAMES), groups_of(members, 2, ["a", "b"])
        waits = [first[0].recv([torch.zeros(3)], 1, 0), second[0].recv([torch.zeros(3)], 1, 0)]
        members["b"].cut()
        for wait in waits:
            with pytest.raises(PeerLost, match="rank 1 was lost"):
                wait.wait()
        wait_until(lambda: set(members["a"].lost) == {"b"})
        late = members["a"].group(3, ["a", "b"], timeout_s=20.0, abort=Abort())
        with pytest.raises(PeerLost, match="rank 1 was lost"):
            late.recv([torch.zeros(3)], 1, 0).wait()
        rest = [members[name].group(4, ["a", "c"], timeout_s=20.0, abort=Abort()) for name in ("a", "c")]
        assert everywhere(rest, total) == [3.0] * 2


def test_a_member_that_leaves_delivers_what_it_has_sent() -> None:
    with connected(["a", "b"]) as members:
        left, right = groups_of(members, 1, ["a", "b"])
        left.send([torch.full((50,), 3.0)], 1, 0)
        left.shutdown()
        members["a"].close()
        received = torch.zeros(50)
        right.recv([received], 0, 0).wait()
        assert torch.all(received == 3.0)


def test_a_member_that_is_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(heartbeat, "SILENCE_S", 0.5)
    with connected(["a", "b"]) as members:
        group = members["a"].group(1, ["a", "b"], timeout_s=20.0, abort=Abort())
        waiting = group.recv([torch.zeros(3)], 1, 0)
        time.sleep(1.0)
        assert not members["a"].lost, "heartbeats keep it"
        members["b"]._heartbeats.close()
        began_s = time.monotonic()
        with pytest.raises(PeerLost, match=r"rank 1 was lost: it has been silent for \d\.\d s"):
            waiting.wait()
        assert time.monotonic() - began_s < 3.0


class Late:
    """A connection whose heartbeats come when the test says so."""

    name = "late"
    lost: str | None = None

    def __init__(self) -> None:
        self.heard_s = time.monotonic()

    def send_heartbeat(self) -> None: ...

    def lose(self, why: str) -> None:
        self.lost = why


def test_who_is_often_late_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(heartbeat, "SILENCE_S", 1.6)
    connection = Late()
    watching = heartbeat.Heartbeats([connection])  # type: ignore[list-item]
    watching.start()
    try:
        time.sleep(1.2)
        connection.heard_s = time.monotonic()
        wait_until(lambda: watching.limit_s("late") > 3.2)
        time.sleep(2.4)
        assert connection.lost is None
        wait_until(lambda: connection.lost is not None)
    finally:
        watching.close()


@pytest.mark.parametrize("num_members", [2, 3, 4, 7, 64])
def test_everybody_is_watched_by_few(num_members: int) -> None:
    watched = [watched_by(place, num_members) for place in range(num_members)]
    assert all(place in watched[other] for place, others in enumerate(watched) for other in others)
    assert all(others or num_members == 1 for others in watched)
    assert max(map(len, watched)) <= 2 * num_members.bit_length()


def test_too_much_for_groups_that_are_not_open_is_refused() -> None:
    connection = Connection("b")
    frame = Frame(FrameKind.EAGER, Message(0, 0, 0), 2**15, 0, 2**15, channel=5)
    body = memoryview(bytes(2**15))
    with pytest.raises(CommError, match="too much for groups that are not open"):
        deque(map(connection.on_frame, repeat(1), repeat(frame, 2**14), repeat(body)), maxlen=0)
    piece = Frame(FrameKind.PIECE, Message(0, 0, 0), 100, 0, 100, channel=6)
    with pytest.raises(CommError, match="was not asked for"):
        connection.body_of(1, piece)


def test_threads_end_with_their_member() -> None:
    with connected(["a", "b"]):
        pass
    wait_until(lambda: all(thread.name != "zooid-heartbeats" for thread in threading.enumerate()))


class Wire:
    """A stream that sends nothing."""

    heard_s = 0.0

    def start(self) -> None: ...

    def cut(self) -> None: ...


class Heard:
    """A group that notes what it hears of its peer."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.broken: list[str] = []

    def on_frame(self, peer: int, frame: Frame, body: memoryview) -> None:
        self.frames.append(frame)

    def on_broken(self, peer: int, why: str) -> None:
        self.broken.append(why)


def test_what_a_member_sent_before_it_left_is_read_although_another_stream_ends_first() -> None:
    connection, group = Connection("b"), Heard()
    connection.start([Wire(), Wire()])  # type: ignore[list-item]
    connection.open(1, group, 0)  # type: ignore[arg-type]
    connection.on_closed(0, True, "")
    frame = Frame(FrameKind.EAGER, Message(0, 0, 0), 0)._replace(channel=1)
    connection.on_frame(0, frame, memoryview(b""))
    assert (group.frames, group.broken) == ([frame], [])
    connection.on_closed(0, True, "")
    assert group.broken == ["it has left"]


def test_a_stream_that_ends_alone_takes_the_others_with_it_soon() -> None:
    connection, group = Connection("b"), Heard()
    connection.start([Wire(), Wire()])  # type: ignore[list-item]
    connection.open(1, group, 0)  # type: ignore[arg-type]
    connection.on_closed(0, False, "it closed the connection")
    wait_until(lambda: group.broken, timeout_s=5.0)
    assert group.broken == ["it closed the connection"]


def test_whoever_waits_for_a_message_to_leave_hears_that_its_member_is_lost() -> None:
    """Whichever of the member's streams tells it first: here, one that the message is not on."""
    with connected(NAMES[:2]) as members:
        sender, _ = groups_of(members, 1, NAMES[:2])
        connection = members["a"]._connections["b"]
        told: list[BaseException | None] = []
        with connection.streams[0]._lock:  # as if its socket took nothing
            connection.streams[0]._out.append((memoryview(b"unsent"), told.append))
        connection.lose("it has been silent")
        assert [type(error) for error in told] == [PeerLost]
        assert sender.rank() == 0


def join(members: dict[str, MemberLinks], new: str) -> dict[str, MemberLinks]:
    """Connect a new member with all others."""
    store, names, num_connected = HashStore(), [*members, new], len(members)
    with ThreadPoolExecutor(len(names)) as pool:
        calls = [
            pool.submit(member.join, store, names, num_connected, timeout_s=20.0, abort=Abort())
            for member in members.values()
        ]
        joined = pool.submit(
            connect_members,
            store,
            new,
            names,
            OPTIONS,
            timeout_s=20.0,
            abort=Abort(),
            num_connected=num_connected,
        ).result()
        for call in calls:
            call.result()
    return {**members, new: joined}


def test_a_member_that_joins_learns_the_latency_that_the_others_know() -> None:
    """Otherwise a rendezvous that fails halfway leaves members that choose different transfers."""
    with connected() as members:
        [known] = {member._latency_s for member in members.values()}
        together = join(members, "d")
        assert {member._latency_s for member in together.values()} == {known}
        assert everywhere(groups_of(together, 3, list(together)), total) == [10.0] * 4
        together["d"].cut()


def test_a_member_may_connect_again() -> None:
    with connected(["a", "b"]) as members:
        first = join(members, "c")["c"]
        again = join(members, "c")
        wait_until(lambda: set(first.lost) == {"a", "b"})
        assert everywhere(groups_of(again, 4, ["a", "b", "c"]), total) == [6.0] * 3
        again["c"].cut()

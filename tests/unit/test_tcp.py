"""Messages over sockets: frames, streams, meeting, and what arrives while others change their minds."""

import json
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported, but not in its __all__

from tests.contract.groups import Opener
from tests.unit.socket_groups import TCP, close, connect_all, summed
from zooid.comm import ObjectRendezvous, Options, ProcessGroup
from zooid.comm.tcp import connect
from zooid.comm.tcp.endpoint import Endpoint
from zooid.comm.tcp.frames import Frame, FrameKind
from zooid.comm.tcp.handshake import Hello
from zooid.comm.tcp.tcp_transport import TcpTransport
from zooid.comm.transport_protocol import POINT_TO_POINT, Message
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, CommError, CommTimeout, PeerLost
from zooid.store import open_store

pytestmark = pytest.mark.timeout(30)


class Memory:
    def __init__(self, num_bytes: int) -> None:
        self.data = bytearray(num_bytes)

    def memory(self) -> memoryview:
        return memoryview(self.data)

    def take(self, data: memoryview, began_s: float) -> None:
        self.data[:] = data


class Wire:
    """A stream that takes everything and brings nothing."""

    def start(self) -> None: ...

    def send(self, *arguments: object) -> None: ...


def new_transport() -> TcpTransport:
    transport = TcpTransport()
    transport.start({peer: [Wire(), Wire()] for peer in (1, 2)})  # type: ignore[list-item]
    return transport


def frame_of(number: int, data: bytes) -> Frame:
    return Frame(FrameKind.EAGER, Message(POINT_TO_POINT, 0, number), len(data), 0, len(data))


def arrive(transport: TcpTransport, peer: int, number: int, data: bytes, between: Callable[[], None]) -> None:
    """A small message comes in two pieces; something else happens between them."""
    frame = frame_of(number, data)
    body = transport.body_of(peer, frame)
    between()
    body[:] = data
    transport.on_frame(peer, frame, body)


def test_a_message_that_is_wanted_while_it_arrives_is_not_lost() -> None:
    transport, memory, ended = new_transport(), Memory(8), list[object]()
    message = Message(POINT_TO_POINT, 0, 0)
    arrive(transport, 1, 0, b"12345678", lambda: transport.receive(message, 1, 8, memory, ended.append))
    assert (bytes(memory.data), ended) == (b"12345678", [None])


def test_a_message_of_another_size_that_is_wanted_while_it_arrives_is_refused() -> None:
    transport, ended = new_transport(), list[object]()
    message = Message(POINT_TO_POINT, 0, 0)
    arrive(transport, 1, 0, b"12345678", lambda: transport.receive(message, 1, 4, Memory(4), ended.append))
    (error,) = ended
    assert "a message of 8 bytes arrived from rank 1 where 4 were expected" in str(error)


def test_a_receive_from_any_rank_takes_one_message_even_if_two_come_at_once() -> None:
    """The message of rank 2 arrives when that of rank 1 has just been claimed; it is for the next receive."""
    transport, memories, ended = new_transport(), [Memory(4), Memory(4)], list[object]()
    numbers: defaultdict[int, int] = defaultdict(int)
    others: list[Future[None]] = []

    def candidates() -> list[tuple[int, Message]]:
        return [(source, Message(POINT_TO_POINT, 0, numbers[source])) for source in (1, 2)]

    def claim(source: int, message: Message) -> bool:
        if numbers[source] != message.number:
            return False
        numbers[source] += 1
        if source == 1:
            others.append(other.submit(arrive, transport, 2, 0, b"two.", lambda: None))
        return True

    transport.receive_any(candidates, claim, 4, memories[0], ended.append)
    with ThreadPoolExecutor(1) as other:
        arrive(transport, 1, 0, b"one.", lambda: None)
    assert [each.result() for each in others] == [None]
    transport.receive_any(candidates, claim, 4, memories[1], ended.append)
    assert [bytes(memory.data) for memory in memories] == [b"one.", b"two."]
    assert ended == [None, None]


def test_ranks_may_meet_through_objects() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    groups = connect_all([ObjectRendezvous(store, "run/0", timeout_s=10.0) for _ in range(3)])
    assert summed(groups) == [3.0] * 3
    close(groups)


@pytest.mark.parametrize("num_streams", [1, 2, 5])
def test_a_large_message_may_be_spread_over_streams(num_streams: int) -> None:
    options = Options(transport="tcp", num_streams=num_streams)
    groups = connect_all([HashStore()] * 2, options)
    sent, received = torch.arange(1_000_001, dtype=torch.float64), torch.zeros(1_000_001, dtype=torch.float64)
    work = groups[1].recv([received], 0)
    groups[0].send([sent], 1).wait()
    work.wait()
    assert torch.equal(sent, received)
    close(groups)


def test_a_stranger_is_turned_away_and_does_no_harm() -> None:
    """One that knows no secret, one that says nothing, and one that hangs up."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(connect, store, 0, 2, TCP, timeout_s=20.0, abort=Abort())
        store.wait(["tcp/0"])
        port = json.loads(store.get("tcp/0"))["port"]
        with (
            socket.create_connection(("127.0.0.1", port)) as liar,
            socket.create_connection(("127.0.0.1", port)) as quitter,
        ):
            quitter.close()
            liar.sendall(Hello.new(1, 0, 0, 0).pack(b"guessed"))
            liar.settimeout(10)
            assert liar.recv(8) == b"", "its connection is closed without a word"
        second = pool.submit(connect, store, 1, 2, TCP, timeout_s=20.0, abort=Abort())
        transports = [first.result()[0], second.result()[0]]
    for transport in transports:
        transport.close("done")


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        (0, r"ranks 1, 2 did not connect to rank 0 in 0.3 s"),
        (2, r"rank 0 did not come to the group within 0.3 s"),
    ],
)
def test_ranks_that_do_not_come_are_named(rank: int, why: str) -> None:
    with pytest.raises(CommTimeout, match=why):
        connect(HashStore(), rank, 3, TCP, timeout_s=0.3, abort=Abort())


def test_a_rank_that_cannot_be_reached_is_named_with_what_to_do() -> None:
    store = HashStore()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    point = Endpoint(addresses=["127.0.0.1"], port=port, secret="00" * 32, network="elsewhere", has_loopback=False)
    store.set("tcp/0", point.encode().decode())
    with pytest.raises(CommError, match=r"rank 1 cannot connect to rank 0 \(127.0.0.1: .*refused.*\); .*`address`"):
        connect(store, 1, 2, TCP, timeout_s=0.3, abort=Abort())


@pytest.mark.parametrize("rank", [0, 1])
def test_an_abort_frees_who_connects(rank: int) -> None:
    abort = Abort()
    store = open_store(f"memory://{uuid.uuid4().hex}")
    meeting = ObjectRendezvous(store, "run/0", timeout_s=60.0, abort=abort)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect, meeting, rank, 2, TCP, timeout_s=60.0, abort=abort)
        abort.set("the run is over")
        with pytest.raises(CommAborted, match="the run is over"):
            waiting.result(timeout=5)


def test_a_connection_that_breaks_is_noticed_by_everyone_at_once() -> None:
    groups = connect_all([HashStore()] * 3, timeout_s=60.0)
    works = [group.allreduce([torch.ones(10)]) for group in groups[:2]]
    began_s = time.monotonic()
    streams = groups[2].engine._transport._streams  # type: ignore[attr-defined]
    for of_peer in streams.values():
        for stream in of_peer:
            stream.cut()  # as if its process had died
    for work in works:
        with pytest.raises(PeerLost, match=r"rank 2 was lost|rank \d gave up: PeerLost: rank 2 was lost"):
            work.wait()
    assert time.monotonic() - began_s < 2.0
    with pytest.raises(PeerLost):
        groups[0].barrier().wait()
    close(groups)


def test_a_flood_of_small_messages_arrives_however_late_it_is_taken(tmp_path: Path) -> None:
    """Its sender is held up when too much waits; nothing is lost."""
    num_messages, size = 700, 16_000
    with Opener("tcp", tmp_path)(2) as ranks, ThreadPoolExecutor(1) as pool:
        sender, receiver = ranks.groups
        works = [sender.send([torch.full((size,), float(n))], 1) for n in range(num_messages)]
        waiting = pool.submit(works[-1].wait)
        assert not works[-1].is_completed(), "45 MB are more than are kept"
        received = torch.empty(size)
        for number in range(num_messages):
            receiver.recv([received], 0).wait()
            assert float(received[0]) == float(received[-1]) == number
        waiting.result()


def test_a_flood_of_small_messages_does_not_hold_up_a_large_one_the_other_way(tmp_path: Path) -> None:
    num_messages, size = 300, 16_000

    def body(group: ProcessGroup, rank: int) -> None:
        large = torch.ones(100_000)
        if rank == 1:
            works = [group.send([torch.ones(size)], 0) for _ in range(num_messages)]
            group.recv([large], 0).wait()
        else:
            group.send([large], 1).wait()
            works = [group.recv([torch.ones(size)], 1) for _ in range(num_messages)]
        for work in works:
            work.wait()

    with Opener("tcp", tmp_path)(2, timeout_s=2.0) as ranks:
        ranks.play(body)

"""Frames: what is packed comes back, and whatever else arrives ends one peer's streams and nothing more."""

import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.waiting import wait_until
from tests.contract.groups import Opener
from zooid.comm import ProcessGroup
from zooid.comm.tcp import inbox, outbox, stream
from zooid.comm.tcp.checksums import NOT_CHECKED, RunningChecksum, checksum
from zooid.comm.tcp.frames import HEADER_BYTES, MAX_REASON_BYTES, NOBODY, Frame, FrameKind
from zooid.comm.tcp.loop import Loop, process_loop
from zooid.comm.tcp.stream import Stream
from zooid.comm.tcp.tcp_transport import TcpTransport
from zooid.comm.transport_protocol import POINT_TO_POINT, Message
from zooid.core.errors import DamagedMessage, PeerLost
from zooid.schedule.stream_rules import EAGER_BYTES, PIECE_BYTES, num_stripes, piece_bytes

pytestmark = pytest.mark.timeout(30)

LARGE_BYTES = 3 * 2**20
FIRST = Message(POINT_TO_POINT, 0, 0)
messages = st.builds(
    Message, st.integers(0, 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**62), st.integers(0, 2**32 - 1)
)
checks = st.integers(0, 2**32 - 1)
kinds_without_body = st.sampled_from([FrameKind.READY, FrameKind.OFFER, FrameKind.CREDIT])


def whole(kind: FrameKind, message: Message, num_bytes: int, check: int) -> Frame:
    return Frame(kind, message, num_bytes, 0, num_bytes, check)


def piece(message: Message, offset: int, num_bytes: int, more: int, check: int) -> Frame:
    return Frame(FrameKind.PIECE, message, offset + num_bytes + more, offset, num_bytes, check)


frames = st.one_of(
    st.builds(whole, st.just(FrameKind.EAGER), messages, st.integers(0, EAGER_BYTES), checks),
    st.builds(whole, st.just(FrameKind.LEAVE), messages, st.integers(0, MAX_REASON_BYTES), checks),
    st.builds(piece, messages, st.integers(0, 2**60), st.integers(1, PIECE_BYTES), st.integers(0, 2**60), checks),
    st.builds(
        Frame,
        kinds_without_body,
        messages,
        st.integers(0, 2**62),
        st.just(0),
        st.just(0),
        st.just(NOT_CHECKED),
        st.integers(0, 2**32 - 1),
    ),
)


@given(frames)
def test_a_frame_is_what_was_packed(frame: Frame) -> None:
    packed = frame.pack()
    assert len(packed) == HEADER_BYTES
    assert Frame.unpack(memoryview(packed)) == frame


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES).filter(lambda data: data[:2] != b"\x01\x5a"))
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedMessage, match="no frame of this protocol"):
        Frame.unpack(memoryview(data))


@given(frames, st.integers(0, HEADER_BYTES * 8 - 1))
def test_a_bit_that_flips_in_a_header_is_noticed(frame: Frame, bit: int) -> None:
    packed = bytearray(frame.pack())
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedMessage):
        Frame.unpack(memoryview(packed))


class TestChecksums:
    @given(st.integers(1, 70_000), st.data())
    def test_damage_within_4_kib_is_noticed(self, num_bytes: int, data: Any) -> None:
        before = bytearray(torch.randint(0, 256, (num_bytes,), dtype=torch.uint8).numpy().tobytes())
        expected = checksum(memoryview(before))
        begin = data.draw(st.integers(0, num_bytes - 1))
        damaged = data.draw(st.binary(min_size=1, max_size=min(4096, num_bytes - begin)))
        after = before.copy()
        after[begin : begin + len(damaged)] = damaged
        assert (checksum(memoryview(after)) == expected) == (after == before)

    def test_blocks_that_change_places_are_noticed(self) -> None:
        data = bytearray(torch.arange(2**19, dtype=torch.int64).numpy().tobytes())
        swapped = data[2**20 : 2**21] + data[: 2**20] + data[2**21 :]
        assert checksum(memoryview(data)) != checksum(memoryview(swapped))

    @given(st.integers(0, 2**20), st.lists(st.integers(0, 2**20), max_size=5))
    def test_data_that_come_little_by_little_have_the_same(self, num_bytes: int, ends: list[int]) -> None:
        whole = memoryview(bytes(range(256)) * (num_bytes // 256) + bytes(range(num_bytes % 256)))
        arriving = memoryview(bytearray(num_bytes))
        running = RunningChecksum(arriving)
        for end in sorted(ends):
            arriving[:end] = whole[:end]
            running.advance(min(end, num_bytes))
        arriving[:] = whole
        assert running.finish() == checksum(whole)

    @given(st.binary(max_size=100))
    def test_no_data_have_the_checksum_of_data_that_were_not_checked(self, data: bytes) -> None:
        assert checksum(memoryview(data)) != NOT_CHECKED


@given(st.integers(0, 2**40), st.integers(1, 64))
def test_pieces_are_no_larger_than_allowed_and_load_all_streams_alike(num_bytes: int, num_streams: int) -> None:
    size = piece_bytes(num_bytes, num_streams)
    count = -(-num_bytes // size)
    streams = num_stripes(num_bytes, num_streams)
    assert 1 <= size <= PIECE_BYTES
    assert -(-count // streams) * size <= -(-num_bytes // streams) + size


class Memory:
    def __init__(self, num_bytes: int) -> None:
        self.data = bytearray(num_bytes)

    def memory(self) -> memoryview:
        return memoryview(self.data)

    def take(self, data: memoryview, began_s: float) -> None:
        self.data[:] = data


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


class Victim:
    """Rank 0 of two, and the ends of both streams with which a test plays rank 1."""

    def __init__(self, loop: Loop) -> None:
        pairs = [connection(), connection()]
        self.peer = [theirs for _, theirs in pairs]
        self.transport = TcpTransport()
        self.transport.start(
            {1: [Stream(ours, 1, self.transport, loop, read_ahead=2**16) for ours, _ in pairs]},
        )
        self.ended: list[BaseException | None] = []

    def want(self, num_bytes: int, message: Message = FIRST) -> Memory:
        memory = Memory(num_bytes)
        self.transport.receive(message, 1, num_bytes, memory, self.ended.append)
        return memory

    def error(self) -> str:
        """Why a wait for rank 1 has ended."""
        if not self.ended:
            self.want(1, Message(POINT_TO_POINT, 99, 99))
        wait_until(lambda: self.ended)
        error = self.ended[0]
        assert isinstance(error, PeerLost)
        return str(error)


@contextmanager
def victim() -> Iterator[Victim]:
    made = Victim(process_loop())
    try:
        yield made
    finally:
        made.transport.close("the test is over")
        for sock in made.peer:
            sock.close()


def header(frame: Frame) -> bytes:
    return frame.pack()


def raw(kind: int, total_bytes: int, offset: int, num_bytes: int) -> bytes:
    """A header with a good checksum that no honest peer sends."""
    return Frame(kind, FIRST, total_bytes, offset, num_bytes).pack()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: somebody\r\nAccept: everything under the sun\r\n\r\n", "no frame of this protocol"),
        (raw(77, 0, 0, 0), "unknown kind 77"),
        (raw(FrameKind.EAGER, 2**31, 0, 2**31), "impossible lengths"),
        (raw(FrameKind.EAGER, 10, 0, 20), "impossible lengths"),
        (raw(FrameKind.PIECE, 2**63, 0, 2**32 - 1), "impossible lengths"),
        (raw(FrameKind.PIECE, 10, 2**64 - 5, 10), "impossible lengths"),
        (raw(FrameKind.PIECE, 0, 0, 5), "impossible lengths"),
        (raw(FrameKind.OFFER, 2**63, 0, 0), "impossible lengths"),
        (raw(FrameKind.READY, 10, 0, 10), "impossible lengths"),
        (raw(FrameKind.LEAVE, 2**20, 0, 2**20), "impossible lengths"),
        (raw(FrameKind.PIECE, LARGE_BYTES, 0, LARGE_BYTES), "a message that was not asked for"),
        (raw(FrameKind.CREDIT, 1, 0, 0), "credit for 1 bytes that this rank had not sent"),
        (raw(FrameKind.OFFER, 5, 0, 0) * 2, "offers more than 16384 messages, or one of them twice"),
        (raw(FrameKind.READY, 5, 0, 0) * 2, "announced more than 16384 receives, or one of them twice"),
        ((raw(FrameKind.EAGER, 1, 0, 1) + b"x") * 2, "it sent a message twice"),
        (
            b"".join(Frame(FrameKind.OFFER, Message(0, 0, number), 5).pack() for number in range(2**14 + 1)),
            "offers more than 16384 messages",
        ),
        (
            b"".join(Frame(FrameKind.READY, Message(0, 0, number), 5).pack() for number in range(2**14 + 1)),
            "announced more than 16384 receives",
        ),
        (
            b"".join(Frame(FrameKind.EAGER, Message(0, 0, number), 0).pack() for number in range(2**14 + 1)),
            "more than the 16777216 bytes of small messages",
        ),
    ],
)  # fmt: skip
def test_a_peer_that_sends_what_it_must_not_is_cut_off_and_takes_no_memory(sent: bytes, why: str) -> None:
    with victim() as attacked, victim() as other:
        tracemalloc.start()
        attacked.peer[0].sendall(sent)
        assert attacked.error().startswith("rank 1 was lost: ")
        assert why in attacked.error()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 24 * 2**20
        wait_until(lambda: all(is_closed(sock) for sock in attacked.peer))
        memory = other.want(4)
        other.peer[0].sendall(header(Frame(FrameKind.EAGER, FIRST, 4, 0, 4)) + b"safe")
        wait_until(lambda: other.ended == [None])
        assert memory.data == b"safe", "the thread serves others as before"


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(2**16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("num_bytes", [1, 100, 2**13])
def test_a_body_that_is_damaged_is_not_taken(num_bytes: int) -> None:
    body = bytes(num_bytes)
    frame = Frame(FrameKind.EAGER, FIRST, num_bytes, 0, num_bytes, checksum(memoryview(body)))
    with victim() as attacked:
        attacked.want(num_bytes)
        attacked.peer[0].sendall(frame.pack() + b"\x01" + body[1:])
        assert f"rank 1 was lost: {num_bytes} bytes of a message were altered in flight" in attacked.error()


@pytest.mark.parametrize("num_bytes", [2**13, EAGER_BYTES, LARGE_BYTES])
def test_bodies_that_leave_the_machine_have_a_checksum(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "is_loopback", lambda sock: False)
    data = memoryview(torch.randint(0, 256, (num_bytes,), dtype=torch.uint8).numpy().tobytes())
    with victim() as sender:
        sender.peer[0].sendall(Frame(FrameKind.READY, FIRST, num_bytes).pack() if num_bytes > EAGER_BYTES else b"")
        sender.transport.send(FIRST, data, (1,), sender.ended.append)
        carrier = sender.peer[num_bytes > EAGER_BYTES]
        frame = Frame.unpack(memoryview(receive_exactly(carrier, HEADER_BYTES)))
        assert frame.body_check == checksum(memoryview(receive_exactly(carrier, frame.num_bytes))) != NOT_CHECKED


def receive_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        data += sock.recv(num_bytes - len(data))
    return data


def test_a_piece_that_comes_twice_does_not_stand_for_another() -> None:
    with victim() as attacked:
        attacked.want(2 * PIECE_BYTES)
        repeated = Frame(FrameKind.PIECE, FIRST, 2 * PIECE_BYTES, 0, PIECE_BYTES).pack()
        attacked.peer[1].sendall(repeated + bytes(PIECE_BYTES) + repeated)
        assert "which are no piece or came twice" in attacked.error()


class Broken:
    """A socket whose service fails, in each way that there is."""

    def __init__(self, sock: socket.socket, error: type[BaseException]) -> None:
        self._socket = sock
        self._error = error
        self.num_abandoned = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def on_events(self, readable: bool, writable: bool) -> None:
        raise self._error("while it was served")

    def abandon(self, error: BaseException) -> None:
        self.num_abandoned += 1
        raise self._error("while it was closed")


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, RecursionError, SystemExit, KeyboardInterrupt])
def test_nothing_ends_the_thread_that_serves_all_sockets(error: type[BaseException]) -> None:
    loop = process_loop()
    ours, theirs = connection()
    broken = Broken(ours, error)
    with ours, theirs, victim() as other:
        loop.add(broken)
        theirs.sendall(b"something")
        wait_until(lambda: broken.num_abandoned)
        memory = other.want(4)
        other.peer[0].sendall(header(Frame(FrameKind.EAGER, FIRST, 4, 0, 4)) + b"safe")
        wait_until(lambda: other.ended == [None])
        assert memory.data == b"safe"
        assert broken.num_abandoned == 1, "it is not served again"


def test_a_callback_that_fails_ends_only_the_streams_of_its_peer() -> None:
    def fail(error: BaseException | None) -> None:
        raise SystemExit("a callback")

    with victim() as attacked, victim() as other:
        attacked.transport.receive(FIRST, 1, 4, Memory(4), fail)
        attacked.want(4, Message(POINT_TO_POINT, 1, 0))
        attacked.peer[0].sendall(header(Frame(FrameKind.EAGER, FIRST, 4, 0, 4)) + b"safe")
        assert "its data could not be handled (SystemExit: a callback)" in attacked.error()
        other.want(4)
        other.peer[0].sendall(header(Frame(FrameKind.EAGER, FIRST, 4, 0, 4)) + b"safe")
        wait_until(lambda: other.ended == [None])


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a few messages reach."""
    monkeypatch.setattr(outbox, "CREDIT_BYTES", 2**14)
    monkeypatch.setattr(inbox, "CREDIT_BYTES", 2**14)
    monkeypatch.setattr(inbox, "_RETURN_BYTES", 2**12)
    monkeypatch.setattr(outbox, "MAX_WAITING", 3)
    monkeypatch.setattr(inbox, "MAX_WAITING", 3)


@pytest.mark.parametrize("num_elements", [0, 1, 1000, 300_000])
@pytest.mark.parametrize("is_reader_first", [False, True])
def test_messages_beyond_all_limits_arrive_in_any_order(
    narrow: None, num_elements: int, is_reader_first: bool, tmp_path: Any
) -> None:
    """Forty at once, while three may be offered and twelve are sent ahead."""
    num_messages = 40
    begun = [threading.Event(), threading.Event()]

    def body(group: ProcessGroup, rank: int) -> None:
        if rank == is_reader_first:
            begun[not is_reader_first].wait()
        tensors = [torch.full((num_elements,), float(number * (1 - rank))) for number in range(num_messages)]
        move: Callable[..., Any] = group.recv if rank else group.send
        works = [move([tensor], 1 - rank) for tensor in tensors]
        begun[rank].set()
        for work in works:
            work.wait()
        assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors) if rank)

    with Opener("tcp", tmp_path)(2) as ranks:
        ranks.play(body)


def test_the_last_of_many_large_messages_may_be_taken_first(narrow: None, tmp_path: Any) -> None:
    with Opener("tcp", tmp_path)(2) as ranks:
        sender, reader = ranks.groups
        works = [sender.send([torch.full((300_000,), float(tag))], 1, tag) for tag in range(10)]
        for tag in reversed(range(10)):
            received = torch.empty(300_000)
            reader.recv([received], 0, tag).wait()
            assert float(received[-1]) == tag
        for work in works:
            work.wait()


def test_large_messages_may_be_sent_in_another_order_than_they_are_awaited(narrow: None, tmp_path: Any) -> None:
    with Opener("tcp", tmp_path)(2) as ranks:
        sender, reader = ranks.groups
        received = [torch.empty(300_000) for _ in range(10)]
        works = [reader.recv([tensor], 0, tag) for tag, tensor in enumerate(received)]
        for tag in reversed(range(10)):
            sender.send([torch.full((300_000,), float(tag))], 1, tag).wait()
        for tag, work in enumerate(works):
            work.wait()
            assert float(received[tag][-1]) == tag


def test_a_reason_to_leave_is_read_up_to_its_limit() -> None:
    reason = b"r" * MAX_REASON_BYTES
    heard: list[BaseException] = []
    with victim() as left:
        left.transport.on_failure = heard.append
        left.peer[0].sendall(Frame(FrameKind.LEAVE, NOBODY, len(reason), 0, len(reason)).pack() + reason)
        wait_until(lambda: heard)
        assert str(heard[0]) == f"rank 1 gave up: {reason.decode()}"

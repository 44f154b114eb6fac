"""Everything that reads bytes from a socket, or what ranks publish about their sockets, with valid samples of each."""

import struct
import zlib
from typing import Any

from tests.fuzz.trials import Decoder
from zooid.comm.tcp.checksums import checksum
from zooid.comm.tcp.endpoint import Endpoint, decode_endpoint, decode_round_trip_s
from zooid.comm.tcp.frames import HEADER_BYTES, NOBODY, Frame, FrameKind
from zooid.comm.tcp.handshake import (
    HELLO_BYTES,
    Hello,
    confirm,
    is_confirm,
    is_welcome,
    welcome,
)
from zooid.comm.tcp.handshake import _proof as proof
from zooid.comm.tcp.stream import Stream
from zooid.comm.tcp.tcp_transport import TcpTransport
from zooid.comm.transport_protocol import COLLECTIVE, POINT_TO_POINT, Message
from zooid.core.errors import DamagedMessage
from zooid.schedule.stream_rules import EAGER_BYTES, PIECE_BYTES

SECRET = bytes(range(32))
SMALL, LARGE = Message(POINT_TO_POINT, 7, 0), Message(COLLECTIVE, 0, 3, 2)
UNWANTED, OFFERED = Message(COLLECTIVE, 0, 4), Message(COLLECTIVE, 0, 5)
_MAX_SEALED = 50
SMALL_BYTES, LARGE_BYTES = 64, 2**20 + 64
_landing = bytearray(LARGE_BYTES)
_HELLO = Hello(5, 1, 4, 2, bytes(32))
_WELCOME = welcome(SECRET, _HELLO.pack(SECRET))


class _Landing:
    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def memory(self) -> memoryview:
        return memoryview(_landing)[: self._num_bytes]

    def take(self, data: memoryview, began_s: float) -> None:
        raise AssertionError("this transport writes to the memory")


class _Idle:
    """A loop that nobody waits in."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class _Fed:
    """A socket on which these bytes arrive, and which takes everything."""

    def __init__(self, data: bytes) -> None:
        self.rest = memoryview(data)

    def recv_into(self, memory: memoryview) -> int:
        if not self.rest:
            raise BlockingIOError
        count = min(len(memory), len(self.rest))
        memory[:count] = self.rest[:count]
        self.rest = self.rest[count:]
        return count

    def sendmsg(self, buffers: list[memoryview]) -> int:
        return sum(buffer.nbytes for buffer in buffers)

    def getpeername(self) -> tuple[str, int]:
        return ("10.0.0.7", 7)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


def read_stream(data: bytes) -> None:
    """Take what a peer sends, while a small and a large message are wanted from it; PeerLost where it is cut off."""
    transport = TcpTransport()
    lost: list[BaseException] = []
    transport.on_failure = lost.append
    sockets = [_Fed(data), _Fed(b"")]
    idle: Any = _Idle()
    streams = [Stream(sock, 1, transport, idle, read_ahead=256) for sock in sockets]  # type: ignore[arg-type]
    transport.start({1: streams})

    def ended(error: BaseException | None) -> None:
        if error is not None:
            lost.append(error)

    for message, num_bytes in ((SMALL, SMALL_BYTES), (LARGE, LARGE_BYTES)):
        transport.receive(message, 1, num_bytes, _Landing(num_bytes), ended)
    while sockets[0].rest and not lost:
        before = len(sockets[0].rest)
        streams[0].on_events(True, False)
        assert lost or len(sockets[0].rest) < before, "it does not read on"
    if lost:
        raise lost[0]


def read_sealed_stream(data: bytes) -> None:
    """As `read_stream`, but the checksums of headers are made right, so that what follows them is tried, too."""
    sealed = bytearray(data)
    at = 0
    for _ in range(_MAX_SEALED):
        if at + HEADER_BYTES > len(sealed):
            break
        struct.pack_into("<H", sealed, at, 0x5A02)
        fields = bytes(sealed[at : at + HEADER_BYTES - 4])
        struct.pack_into("<I", sealed, at + HEADER_BYTES - 4, zlib.crc32(fields))
        at += HEADER_BYTES + struct.unpack_from("<I", sealed, at + HEADER_BYTES - 12)[0]
    read_stream(bytes(sealed))


def read_hello(data: bytes) -> None:
    Hello.unpack(data, SECRET)


def read_signed_hello(data: bytes) -> None:
    """A hello whose sender knows the secret, but says anything."""
    fields = data[: HELLO_BYTES - 32]
    Hello.unpack(fields + proof(SECRET, b"hello", fields), SECRET)


def read_answers(data: bytes) -> None:
    """The answers of a handshake."""
    said = _HELLO.pack(SECRET)
    if not is_welcome(data, SECRET, said) and not is_confirm(data, SECRET, said, _WELCOME):
        raise DamagedMessage("it is no answer")


def read_point(data: bytes) -> None:
    point = decode_endpoint(data, 3)
    bytes.fromhex(point.secret)
    point.candidates("here")


def _with_body(kind: FrameKind, message: Message, body: bytes, *, total_bytes: int | None = None, at: int = 0) -> bytes:
    total = len(body) if total_bytes is None else total_bytes
    return Frame(kind, message, total, at, len(body), checksum(memoryview(body))).pack() + body


_FRAMES = [
    _with_body(FrameKind.EAGER, SMALL, bytes(SMALL_BYTES)),
    _with_body(FrameKind.EAGER, UNWANTED, b"early"),
    Frame(FrameKind.OFFER, OFFERED, 2**30).pack(),
    Frame(FrameKind.READY, UNWANTED, 2**30).pack(),
    _with_body(FrameKind.PIECE, LARGE, bytes(LARGE_BYTES)),
    _with_body(FrameKind.LEAVE, NOBODY, b""),
]
_POINT = Endpoint(
    addresses=["10.0.0.7", "172.17.0.1"], port=40000, secret=SECRET.hex(), network="here", has_loopback=True
)
_STREAMS = [*_FRAMES[:4], b"".join(_FRAMES[:4]), _FRAMES[0] + _FRAMES[5], _FRAMES[4]]
assert LARGE_BYTES <= PIECE_BYTES

TCP_DECODERS = [
    Decoder("tcp stream", read_stream, _STREAMS, wanted_bytes=EAGER_BYTES),
    Decoder("tcp sealed stream", read_sealed_stream, _STREAMS, wanted_bytes=EAGER_BYTES),
    Decoder("tcp hello", read_hello, [_HELLO.pack(SECRET)], wanted_bytes=EAGER_BYTES),
    Decoder("tcp signed hello", read_signed_hello, [_HELLO.pack(SECRET)], wanted_bytes=EAGER_BYTES),
    Decoder(
        "tcp answers",
        read_answers,
        [_WELCOME, confirm(SECRET, _HELLO.pack(SECRET), _WELCOME)],
        wanted_bytes=EAGER_BYTES,
    ),
    Decoder("tcp meeting point", read_point, [_POINT.encode()], wanted_bytes=EAGER_BYTES),
    Decoder("tcp round trip", decode_round_trip_s, [b"0.00025"], wanted_bytes=EAGER_BYTES),
]

"""The endpoint that a rank publishes in the rendezvous store, so that others can connect to it."""

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from zooid.comm.tcp.handshake import SECRET_BYTES
from zooid.core.errors import CommError
from zooid.core.records import Record

_MAX_BYTES = 2**16
_MAX_ROUND_TRIP_S = 3600.0


class Endpoint(Record, frozen=True, kw_only=True):
    """Where one rank listens, and the secret that connecting ranks must know."""

    addresses: Annotated[list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(min_length=1, max_length=64)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    secret: Annotated[str, Meta(pattern=rf"^[0-9a-f]{{{2 * SECRET_BYTES}}}$")]
    network: Annotated[str, Meta(max_length=255)]
    """Identifies the loopback interface: ranks with the same value share it."""
    has_loopback: bool
    """Whether the rank listens at 127.0.0.1, too."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def candidates(self, network: str) -> list[str]:
        """Return the addresses to try, best first, for a rank in this network."""
        is_near = self.has_loopback and self.network == network
        return ["127.0.0.1", *self.addresses] if is_near else list(self.addresses)


_DECODER = msgspec.json.Decoder(Endpoint)


def decode_endpoint(data: bytes, rank: int) -> Endpoint:
    """Read the endpoint that a rank has published; CommError where it cannot be read."""
    if len(data) > _MAX_BYTES:
        raise _unreadable(rank, f"it has {len(data)} bytes, and at most {_MAX_BYTES} are allowed")
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(rank, str(error)) from error


def decode_round_trip_s(data: bytes) -> float:
    """Read the round trip that one rank has measured for all; CommError where it cannot be read."""
    try:
        round_trip_s = float(data[:64].decode())
    except ValueError:
        round_trip_s = math.nan
    if not 0 <= round_trip_s <= _MAX_ROUND_TRIP_S:
        raise CommError(
            f"the round trip of the group is given as {data[:64]!r} in the rendezvous store; it must be a number of "
            f"seconds up to {_MAX_ROUND_TRIP_S:g}: does another program write to this folder?"
        )
    return round_trip_s


def _unreadable(rank: int, why: str) -> CommError:
    return CommError(
        f"the endpoint of rank {rank} in the rendezvous store cannot be read ({why}); do all ranks run the same "
        "version of zooid, and does no other program write to this folder?"
    )

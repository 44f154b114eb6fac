"""Rules for messages over streams between connected members, which predictions follow, too."""

EAGER_BYTES = 2**20
"""The largest message that is sent at once.

A larger one waits until its reader has a buffer, which costs a round trip; for small messages that would be too much.
"""
_STRIPE_BYTES = 512 * 1024
"""The least that each stream carries of a message that is spread over several streams."""
PIECE_BYTES = 4 * 2**20
"""The largest piece of a large message; each piece has its own checksum."""
_FAR_S = 0.005
"""Above this round trip one stream does not fill a link, since TCP windows are too small."""
_STREAMS_NEAR, _STREAMS_FAR = 1, 8


def streams_between(round_trip_s: float) -> int:
    """Number of streams that a pair of members opens for large messages."""
    return _STREAMS_FAR if round_trip_s > _FAR_S else _STREAMS_NEAR


def num_stripes(num_bytes: int, num_streams: int) -> int:
    """Number of streams that a large message is spread over."""
    return max(1, min(num_streams, num_bytes // _STRIPE_BYTES))


def piece_bytes(num_bytes: int, num_streams: int) -> int:
    """Size of the pieces of a large message; only the last one may be smaller.

    Every stream that carries the message gets the same number of pieces.
    """
    streams = num_stripes(num_bytes, num_streams)
    per_stream = -(-num_bytes // (streams * PIECE_BYTES))
    return max(1, -(-num_bytes // max(1, streams * per_stream)))

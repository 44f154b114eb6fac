"""How connected members put messages on their streams: rules that they follow, and that a prediction knows."""

EAGER_BYTES = 2**20
"""A message is small up to here, and sent at once. A large one waits until its reader has a place for it, which costs a
round trip; at 100 MB/s that is a good part of the time that a smaller one takes itself."""
_STRIPE_BYTES = 512 * 1024
"""A message is spread over several streams only if each gets this much."""
PIECE_BYTES = 4 * 2**20
"""A large message travels in pieces of at most this size, each with a checksum of its own."""
_FAR_S = 0.005
"""From this round trip on, one stream does not fill a link: windows are too small for it."""
_STREAMS_NEAR, _STREAMS_FAR = 1, 8


def streams_between(round_trip_s: float) -> int:
    """How many streams a pair opens for large messages."""
    return _STREAMS_FAR if round_trip_s > _FAR_S else _STREAMS_NEAR


def num_stripes(num_bytes: int, num_streams: int) -> int:
    """Over how many of them a large message goes."""
    return max(1, min(num_streams, num_bytes // _STRIPE_BYTES))


def piece_bytes(num_bytes: int, num_streams: int) -> int:
    """Size of the pieces of a message that its reader awaits; all of them are equal but the last.

    Each stream that the message goes over gets the same number of pieces.
    """
    streams = num_stripes(num_bytes, num_streams)
    per_stream = -(-num_bytes // (streams * PIECE_BYTES))
    return max(1, -(-num_bytes // max(1, streams * per_stream)))

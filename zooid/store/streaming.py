"""Objects in pieces: those that are larger than the memory that may be spent on them."""

from collections.abc import Iterator

import obstore

from zooid.core.errors import StoreUnavailable
from zooid.store.objects import _FAILURES, ObstoreStore, _check_key, _check_process
from zooid.store.protocol import Data, ObjectStore

_PIECE_BYTES = 4 * 2**20


def stream(store: ObjectStore, key: str) -> Iterator[Data]:
    """The object's bytes, a few MiB at a time; ObjectNotFound where there is none.

    A store that wraps another one is asked for the object as a whole.
    """
    if not isinstance(store, ObstoreStore):
        whole = store.get(key)
        yield from (whole[at : at + _PIECE_BYTES] for at in range(0, len(whole), _PIECE_BYTES))
        return
    _check_process()
    _check_key(key)
    num_bytes = 0
    try:
        answer = obstore.get(store._client, key)
        for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
            num_bytes += len(piece)
            yield piece
    except _FAILURES as error:
        raise store._translate(error, "get", key) from error
    if num_bytes != answer.meta["size"]:
        raise StoreUnavailable(f"get of {key!r} in {store.url} ended after {num_bytes} of {answer.meta['size']} bytes")

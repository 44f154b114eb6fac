"""A program: moto's server, which stores one object at a time, and remembers what it would find out for every request.

moto looks whether an object exists and then stores it, so that of two threads with create-only puts both may win. It
would list its own folders to see which service is meant, which is a quarter of a request, and parse a time for each
object in a list, which is half of a long list. Members run on the same cores.
"""

import functools
import threading
from typing import Any

from moto import backends, server
from moto.core import serialize
from moto.s3.responses import S3Response

_NUM_TIMES = 1 << 16


def main() -> None:
    """Serve with the arguments of `python -m moto.server`."""
    modules = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    parse_time = serialize.parse_to_aware_datetime  # type: ignore[attr-defined]  # imported there from botocore
    serialize.parse_to_aware_datetime = functools.lru_cache(_NUM_TIMES)(parse_time)  # type: ignore[attr-defined]
    put_object, lock = S3Response.put_object, threading.Lock()

    def put_alone(response: S3Response) -> Any:
        with lock:
            return put_object(response)

    S3Response.put_object = put_alone  # type: ignore[assignment, method-assign]
    server.main()


if __name__ == "__main__":
    main()

"""A program: moto's server, which remembers what it would otherwise find out for every request.

It would list its own folders to see which service is meant, which is a quarter of a request, and parse a time for each
object in a list, which is half of a long list. Members run on the same cores.
"""

import functools

from moto import backends, server
from moto.core import serialize

_NUM_TIMES = 1 << 16


def main() -> None:
    """Serve with the arguments of `python -m moto.server`."""
    modules = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    parse_time = serialize.parse_to_aware_datetime  # type: ignore[attr-defined]  # imported there from botocore
    serialize.parse_to_aware_datetime = functools.lru_cache(_NUM_TIMES)(parse_time)  # type: ignore[attr-defined]
    server.main()


if __name__ == "__main__":
    main()

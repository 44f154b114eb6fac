"""One member and the store: puts and gets, so many in flight at a time, with the client that training uses."""

import secrets
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from zooid.profiler.probes.steady_window import Window
from zooid.store import ObjectStore

Way = Literal["up", "down"]

_SIZES = tuple(4**power * 2**16 for power in range(5))
"""64 KiB to 16 MiB."""
_SHARE_OF_WINDOW = 0.25
"""An object is to take no more of the counted time, so that those which reach out of it matter little."""
_ENOUGH_SHARE = 0.5
"""Objects that take longer alone are too large for any measurement."""
_SMALL_BYTES = 1024
_NUM_REQUESTS = 20


class StoreEnd:
    """Measures the way to the store and back, for one member; others may do the same at the same time."""

    def __init__(self, store: ObjectStore, prefix: str, window: Window) -> None:
        self._store = store
        self._prefix = prefix
        self._window = window
        self._data = memoryview(secrets.token_bytes(_SIZES[-1]))
        self._rates: dict[Way, float] = {}
        self._sizes: list[int] = []
        """Of the objects that are there to be got."""

    def prepare(self) -> None:
        """Put what is to be got, and learn about how fast the way is each way, from ever larger objects."""
        for size in _SIZES:
            self._sizes.append(size)
            if self._try("up", size) > _ENOUGH_SHARE * self._window.counted_s:
                break
        for size in self._sizes:
            if self._try("down", size) > _ENOUGH_SHARE * self._window.counted_s:
                break
        self._move("up", f"{self._prefix}/small", _SMALL_BYTES)

    def bandwidth(self, way: Way, num_streams: int) -> float:
        """Bytes per second of all streams together, each of which moves one object after the other."""
        size = self._size(way, num_streams)
        began_s = time.monotonic()
        end_s = began_s + self._window.total_s

        def run(stream: int) -> list[tuple[float, float]]:
            key = f"{self._prefix}/object-{stream}" if way == "up" else self._filling(size)
            return _repeat_until(end_s, lambda: self._move(way, key, size))

        with ThreadPoolExecutor(num_streams) as pool:
            of_streams = list(pool.map(run, range(num_streams)))
        rate = self._window.bytes_per_s((span for spans in of_streams for span in spans), size, began_s)
        self._rates[way] = rate
        return rate

    def round_trip(self, way: Way) -> float:
        """Median seconds of a small request, one after the other."""
        key = f"{self._prefix}/small"
        return statistics.median(_time_s(lambda: self._move(way, key, _SMALL_BYTES)) for _ in range(_NUM_REQUESTS))

    def _try(self, way: Way, size: int) -> float:
        """How long one object takes alone."""
        took_s = _time_s(lambda: self._move(way, self._filling(size), size))
        self._rates[way] = size / took_s
        return took_s

    def _move(self, way: Way, key: str, size: int) -> None:
        if way == "up":
            self._store.put(key, self._data[:size])
        else:
            self._store.get(key)

    def _size(self, way: Way, num_streams: int) -> int:
        """The largest object that a stream moves in a part of the counted time, going by the last rate."""
        most = self._rates[way] / num_streams * self._window.counted_s * _SHARE_OF_WINDOW
        return max((size for size in self._sizes if size <= most), default=self._sizes[0])

    def _filling(self, size: int) -> str:
        return f"{self._prefix}/filling-{size}"


def _repeat_until(end_s: float, move: Callable[[], None]) -> list[tuple[float, float]]:
    """Begin and end of every move; one that has begun in time is waited for."""
    spans = []
    now_s = time.monotonic()
    while now_s < end_s:
        move()
        begin_s, now_s = now_s, time.monotonic()
        spans.append((begin_s, now_s))
    return spans


def _time_s(call: Callable[[], None]) -> float:
    begin_s = time.monotonic()
    call()
    return time.monotonic() - begin_s

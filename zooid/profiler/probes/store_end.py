"""Bandwidth and round trip between one member and the store, with the client that training uses."""

import secrets
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from zooid.profiler.probes.steady_window import SteadyWindow
from zooid.store import ObjectStore

Direction = Literal["up", "down"]

_SIZES = tuple(4**power * 2**16 for power in range(5))
"""Object sizes from 64 KiB to 16 MiB."""
_WINDOW_FRACTION = 0.25
"""Largest fraction of the counted time that one object takes, so that objects across its edges matter little."""
_TOO_LARGE_FRACTION = 0.5
"""An object that takes a larger fraction of the counted time when moved alone is too large for any measurement."""
_SMALL_BYTES = 1024
_NUM_REQUESTS = 20


class StoreEnd:
    """Measures the links to and from the store for one member, possibly while other members do the same."""

    def __init__(self, store: ObjectStore, prefix: str, window: SteadyWindow) -> None:
        self._store = store
        self._prefix = prefix
        self._window = window
        self._data = memoryview(secrets.token_bytes(_SIZES[-1]))
        self._rates: dict[Direction, float] = {}
        self._sizes: list[int] = []
        """Sizes of the objects that have been uploaded for downloads."""

    def prepare(self) -> None:
        """Upload the objects to download, and estimate the rate in each direction from growing objects."""
        too_long_s = _TOO_LARGE_FRACTION * self._window.counted_s
        for size in _SIZES:
            self._sizes.append(size)
            if self._move_alone("up", size) > too_long_s:
                break
        for size in self._sizes:
            if self._move_alone("down", size) > too_long_s:
                break
        self._move("up", f"{self._prefix}/small", _SMALL_BYTES)

    def bandwidth(self, direction: Direction, num_streams: int) -> float:
        """Return the bytes per second of all streams together; each moves one object after the other."""
        size = self._object_size(direction, num_streams)
        began_s = time.monotonic()
        end_s = began_s + self._window.total_s

        def run(stream: int) -> list[tuple[float, float]]:
            key = f"{self._prefix}/object-{stream}" if direction == "up" else self._download_key(size)
            return _repeat_until(end_s, lambda: self._move(direction, key, size))

        with ThreadPoolExecutor(num_streams) as pool:
            stream_spans = list(pool.map(run, range(num_streams)))
        rate = self._window.bytes_per_s((span for spans in stream_spans for span in spans), size, began_s)
        self._rates[direction] = rate
        return rate

    def round_trip(self, direction: Direction) -> float:
        """Return the median seconds of a small request; requests follow one another."""
        key = f"{self._prefix}/small"
        return statistics.median(
            _duration_s(lambda: self._move(direction, key, _SMALL_BYTES)) for _ in range(_NUM_REQUESTS)
        )

    def _move_alone(self, direction: Direction, size: int) -> float:
        """Move one object while nothing else does, and return the seconds it takes."""
        took_s = _duration_s(lambda: self._move(direction, self._download_key(size), size))
        self._rates[direction] = size / took_s
        return took_s

    def _move(self, direction: Direction, key: str, size: int) -> None:
        if direction == "up":
            self._store.put(key, self._data[:size])
        else:
            self._store.get(key)

    def _object_size(self, direction: Direction, num_streams: int) -> int:
        """Return the largest object that a stream moves within its fraction of the counted time, at the last rate."""
        max_bytes = self._rates[direction] / num_streams * self._window.counted_s * _WINDOW_FRACTION
        return max((size for size in self._sizes if size <= max_bytes), default=self._sizes[0])

    def _download_key(self, size: int) -> str:
        return f"{self._prefix}/filling-{size}"


def _repeat_until(end_s: float, move: Callable[[], None]) -> list[tuple[float, float]]:
    """Return the begin and end of every move; the last one may end after `end_s`."""
    spans = []
    now_s = time.monotonic()
    while now_s < end_s:
        move()
        begin_s, now_s = now_s, time.monotonic()
        spans.append((begin_s, now_s))
    return spans


def _duration_s(call: Callable[[], None]) -> float:
    begin_s = time.monotonic()
    call()
    return time.monotonic() - begin_s

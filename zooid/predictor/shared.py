"""Work that shares resources, in simulated time.

A resource serves what is on it at equal rates, up to a limit for each piece: cores serve computations (at most one core
each), a link serves messages. Work is counted on the resource's own clock, which advances by the rate each piece gets;
so a piece's end is known when it arrives, and an event costs O(log n).
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Resource:
    """Serves all pieces on it at min(limit, capacity / number of pieces)."""

    capacity: float
    limit: float
    _clock: float = 0.0
    _updated_s: float = 0.0
    _pieces: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    version: int = 0

    def rate(self) -> float:
        return min(self.limit, self.capacity / len(self._pieces))

    def advance(self, now_s: float) -> None:
        if self._pieces:
            self._clock += (now_s - self._updated_s) * self.rate()
        self._updated_s = now_s

    def add(self, work: float, number: int, done: Callable[[], None]) -> None:
        heapq.heappush(self._pieces, (self._clock + work, number, done))
        self.version += 1

    def pop(self) -> Callable[[], None]:
        end, _, done = heapq.heappop(self._pieces)
        self._clock = end
        self.version += 1
        return done

    def next_end_s(self) -> float | None:
        if not self._pieces:
            return None
        return self._updated_s + max(0.0, self._pieces[0][0] - self._clock) / self.rate()


class Simulation:
    """An event loop over resources and plain delays."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Resource | None, int, Callable[[], None] | None]] = []
        self._count = 0

    def after(self, delay_s: float, done: Callable[[], None]) -> None:
        """Call back when the delay is over."""
        self._push(self.now_s + delay_s, None, 0, done)

    def work(self, resource: Resource, amount: float, done: Callable[[], None]) -> None:
        """Call back when the resource has served this amount."""
        resource.advance(self.now_s)
        self._count += 1
        resource.add(amount, self._count, done)
        self._announce(resource)

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            at_s, _, resource, version, done = heapq.heappop(self._events)
            if resource is None:
                self.now_s = at_s
                assert done is not None
                done()
            elif version == resource.version:
                self.now_s = at_s
                resource.advance(at_s)
                finished = resource.pop()
                self._announce(resource)
                finished()

    def _announce(self, resource: Resource) -> None:
        end_s = resource.next_end_s()
        if end_s is not None:
            self._push(end_s, resource, resource.version, None)

    def _push(self, at_s: float, resource: Resource | None, version: int, done: Callable[[], None] | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, resource, version, done))

"""Time, messages and requests of a random schedule: they may come late, twice or never, until all is calm."""

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

TIMEOUT_S = 12.0
"""How long a member waits before it takes others for lost. Delays are shorter once all is calm."""
_CALM_S = 600.0
"""How long the calm part may take until all has ended. Most runs need less than a tenth of it."""

Result = TypeVar("Result")


@dataclass
class Endpoint:
    """What sends and receives, unless something is wrong with it."""

    fate: str = "here"
    stalled_until_s: float = 0.0
    """Until then it does nothing; what reaches it waits."""
    cut_until_s: float = 0.0
    """Until then it reaches neither others nor the store."""


AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)


class Network:
    """Delivers everything in an order that chance decides."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_s = 0.0
        self.calm_s = chance.uniform(2.0, 30.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0

    def next_event(self) -> Callable[[], None]:
        assert self._events, "nobody goes on"
        self.now_s, _, happen = heapq.heappop(self._events)
        assert self.now_s < self.calm_s + _CALM_S, "the run does not end"
        return happen

    def at(self, at_s: float, happen: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, happen))

    def when_awake(self, endpoint: Endpoint, delay_s: float, happen: Callable[[], None]) -> None:
        def wake() -> None:
            if endpoint.fate == "here":
                if endpoint.stalled_until_s > self.now_s:
                    self.at(endpoint.stalled_until_s, wake)
                else:
                    happen()

        self.at(self.now_s + delay_s, wake)

    def send(self, sender: AnyEndpoint, targets: Iterable[AnyEndpoint], deliver: Callable[[AnyEndpoint], None]) -> None:
        """Messages to those who are cut off are lost, or come when they are back."""
        for target in targets:
            for _ in range(2 if self.chance.random() < 0.1 else 1):
                delay_s = self.delay_s() if target is not sender else 0.0
                blocked_s = max(sender.cut_until_s, target.cut_until_s) - self.now_s if target is not sender else 0.0
                if blocked_s > 0 and self.chance.random() < 0.5:
                    continue
                self.when_awake(target, delay_s + max(0.0, blocked_s), lambda target=target: deliver(target))  # type: ignore[misc]

    def request(self, endpoint: Endpoint, effect: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Ask the store. What was asked happens even if whoever asked is lost by then; it may happen twice."""

        def happen() -> None:
            result = effect()
            if not self.is_calm and self.chance.random() < 0.1:
                self.at(self.now_s + self.delay_s(), lambda: (effect(), None)[1])
            if self.is_calm or self.chance.random() > 0.03:  # else the reply is lost
                self.when_awake(endpoint, self.delay_s(), lambda: then(result))

        self.at(max(self.now_s, endpoint.cut_until_s) + self.delay_s(), happen)

    @property
    def is_calm(self) -> bool:
        return self.now_s > self.calm_s

    def delay_s(self) -> float:
        if not self.is_calm and self.chance.random() < 0.05:
            return self.chance.uniform(0, TIMEOUT_S)
        return self.chance.uniform(0.01, 0.5)

"""Simulated time: events, and work that shares whatever serves it, max-min fairly.

A flow is an amount of work (bytes, or seconds of computing) that passes through one or more pipes at the same time, as
a message does through its sender's uplink, a line between two sites and its reader's downlink. Every flow has the
largest rate that does not take from a slower one. Rates change only when a flow begins or ends, and only for flows that
share a pipe with it, directly or over others.
"""

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

Done = Callable[[], None]


def nothing() -> None:
    """What happens after work that nobody waits for."""


class Pipe:
    """Serves the flows through it, up to its capacity together."""

    __slots__ = ("capacity", "flows")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}


class Flow:
    """Work under way."""

    __slots__ = ("done", "left", "limit", "pipes", "rate", "since_s", "version")

    def __init__(self, amount: float, pipes: Sequence[Pipe], limit: float, done: Done) -> None:
        self.left = amount
        self.pipes = pipes
        self.limit = limit
        self.done = done
        self.rate = 0.0
        self.since_s = 0.0
        self.version = 0


class Simulation:
    """An event loop."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Any, int]] = []
        self._count = 0
        self._changed: dict[Pipe, None] = {}
        """Pipes that a flow has entered or left since rates were last set."""

    def after(self, delay_s: float, done: Done) -> None:
        """Call back when the delay is over."""
        self._count += 1
        heappush(self._events, (self.now_s + delay_s, self._count, done, -1))

    def flow(self, amount: float, pipes: Sequence[Pipe], limit: float, done: Done) -> None:
        """Call back when the amount has passed through all of the pipes, at no more than the limit."""
        flow = Flow(amount, pipes, limit, done)
        flow.since_s = self.now_s
        if not pipes:
            self._set_rate(flow, limit)
            return
        for pipe in pipes:
            pipe.flows[flow] = None
            self._changed[pipe] = None

    def run(self) -> None:
        """Until nothing is left to happen."""
        events = self._events
        while events or self._changed:
            if self._changed and (not events or events[0][0] > self.now_s):
                self._settle()
                continue
            at_s, _, what, version = heappop(events)
            if version < 0:
                self.now_s = at_s
                what()
            elif what.version == version:
                self.now_s = at_s
                for pipe in what.pipes:
                    del pipe.flows[what]
                    if pipe.flows:
                        self._changed[pipe] = None
                what.done()

    def _settle(self) -> None:
        """Set the rates of all flows that share something with what has changed."""
        changed, self._changed = self._changed, {}
        seen: set[Pipe] = set()
        for first in changed:
            if first in seen:
                continue
            seen.add(first)
            pipes = [first]
            flows: dict[Flow, None] = {}
            for pipe in pipes:  # grows meanwhile
                for flow in pipe.flows:
                    if flow not in flows:
                        flows[flow] = None
                        for other in flow.pipes:
                            if other not in seen:
                                seen.add(other)
                                pipes.append(other)
            if len(flows) == 1:
                (flow,) = flows
                self._set_rate(flow, min(flow.limit, min(pipe.capacity for pipe in flow.pipes)))
            elif flows:
                self._share(pipes, flows)

    def _share(self, pipes: list[Pipe], todo: dict[Flow, None]) -> None:
        """Fill all flows alike; what meets its limit, or a pipe that is full, stays as it is."""
        room = {pipe: pipe.capacity for pipe in pipes}
        number = {pipe: len(pipe.flows) for pipe in pipes}
        while todo:
            share, tightest = math.inf, pipes[0]
            for pipe in pipes:
                if number[pipe] and room[pipe] < share * number[pipe]:
                    share, tightest = room[pipe] / number[pipe], pipe
            settled = [flow for flow in todo if flow.limit <= share]
            if not settled:
                settled = [flow for flow in tightest.flows if flow in todo]
            for flow in settled:
                rate = flow.limit if flow.limit < share else share
                self._set_rate(flow, rate)
                del todo[flow]
                for pipe in flow.pipes:
                    room[pipe] = max(0.0, room[pipe] - rate)
                    number[pipe] -= 1

    def _set_rate(self, flow: Flow, rate: float) -> None:
        before = flow.rate
        if before and abs(rate - before) <= 1e-12 * before:
            return
        flow.left = max(0.0, flow.left - before * (self.now_s - flow.since_s))
        flow.since_s = self.now_s
        flow.rate = rate
        flow.version += 1
        self._count += 1
        heappush(self._events, (self.now_s + (flow.left / rate if flow.left else 0.0), self._count, flow, flow.version))

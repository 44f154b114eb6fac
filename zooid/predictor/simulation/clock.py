"""A simulated clock: an event queue, and flows that share pipes max-min fairly.

A flow is an amount of work: bytes, or seconds of computing. It passes through one or more pipes at the same time. A
message, for example, passes its sender's uplink, the link between two sites, and its reader's downlink. Each flow gets
the largest rate that does not slow a slower flow down. Rates change only when a flow starts or ends, and only for flows
that share a pipe with it, directly or through others.
"""

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

Done = Callable[[], None]


def nothing() -> None:
    """Do nothing after work that nobody waits for."""


class Pipe:
    """A resource whose capacity all flows through it share."""

    __slots__ = ("capacity", "flows")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.flows: dict[PipeFlow, None] = {}


class PipeFlow:
    """Work in flight through one or more pipes."""

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
    """The event loop of simulated time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Any, int]] = []
        self._count = 0
        self._changed: dict[Pipe, None] = {}
        """Pipes that a flow entered or left after rates were last set."""

    def after(self, delay_s: float, done: Done) -> None:
        """Call `done` after a delay."""
        self._count += 1
        heappush(self._events, (self.now_s + delay_s, self._count, done, -1))

    def flow(self, amount: float, pipes: Sequence[Pipe], limit: float, done: Done) -> None:
        """Call `done` when the amount has passed through all pipes, at a rate of at most `limit`."""
        flow = PipeFlow(amount, pipes, limit, done)
        flow.since_s = self.now_s
        if not pipes:
            self._set_rate(flow, limit)
            return
        for pipe in pipes:
            pipe.flows[flow] = None
            self._changed[pipe] = None

    def run(self) -> None:
        """Run until no event is left."""
        events = self._events
        while events or self._changed:
            if self._changed and (not events or events[0][0] > self.now_s):
                self._settle()
                continue
            event_s, _, subject, version = heappop(events)
            if version < 0:
                self.now_s = event_s
                subject()
            elif subject.version == version:  # otherwise the rate changed after the event was queued
                self.now_s = event_s
                for pipe in subject.pipes:
                    del pipe.flows[subject]
                    if pipe.flows:
                        self._changed[pipe] = None
                subject.done()

    def _settle(self) -> None:
        """Set the rates of all flows that are connected with a changed pipe."""
        changed, self._changed = self._changed, {}
        seen: set[Pipe] = set()
        for first in changed:
            if first in seen:
                continue
            seen.add(first)
            pipes = [first]
            flows: dict[PipeFlow, None] = {}
            for pipe in pipes:  # the loop itself appends to this list
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
                self._fill(pipes, flows)

    def _fill(self, pipes: list[Pipe], open_flows: dict[PipeFlow, None]) -> None:
        """Raise all rates evenly; fix a flow's rate when it reaches its limit or one of its pipes is full."""
        spare = {pipe: pipe.capacity for pipe in pipes}
        num_open = {pipe: len(pipe.flows) for pipe in pipes}
        while open_flows:
            level, tightest = math.inf, pipes[0]
            for pipe in pipes:
                if num_open[pipe] and spare[pipe] < level * num_open[pipe]:
                    level, tightest = spare[pipe] / num_open[pipe], pipe
            settled = [flow for flow in open_flows if flow.limit <= level]
            if not settled:
                settled = [flow for flow in tightest.flows if flow in open_flows]
            for flow in settled:
                rate = flow.limit if flow.limit < level else level
                self._set_rate(flow, rate)
                del open_flows[flow]
                for pipe in flow.pipes:
                    spare[pipe] = max(0.0, spare[pipe] - rate)
                    num_open[pipe] -= 1

    def _set_rate(self, flow: PipeFlow, rate: float) -> None:
        before = flow.rate
        if before and abs(rate - before) <= 1e-12 * before:
            return
        flow.left = max(0.0, flow.left - before * (self.now_s - flow.since_s))
        flow.since_s = self.now_s
        flow.rate = rate
        flow.version += 1
        self._count += 1
        heappush(self._events, (self.now_s + (flow.left / rate if flow.left else 0.0), self._count, flow, flow.version))

"""Members as spot instances of this machine: a trace says how many are up, and kills those that are too many."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from zooid.core.resources.spot_trace import SpotTrace
from zooid.platforms.local.processes import LocalHandle, LocalPlatform
from zooid.platforms.platform import Exit, Launch


class SpotMarket(LocalPlatform):
    """Kills members without notice when fewer instances are up than members run.

    When instances have come back, there is room for members that take the seats of killed ones. The trace begins when
    `open` is called. Then it goes on, whether members run or not.
    """

    def __init__(
        self,
        trace: SpotTrace,
        *,
        from_s: float,
        speed: float,
        seed: int,
        prefix: Callable[[Launch], Sequence[str]] | None = None,
    ) -> None:
        """The trace begins at `from_s`, and `speed` of its seconds pass in one. The seed decides who is killed."""
        super().__init__(prefix)
        self.num_killed = 0
        self._trace = trace
        self._from_s = from_s
        self._speed = speed
        self._random = random.Random(seed)
        self._opened_s: float | None = None
        self._is_open = False
        self._running: dict[str, LocalHandle] = {}
        """Members that have not ended, as far as that is known."""

    def open(self) -> None:
        """From now on, members are killed. The first call also starts the trace."""
        if self._opened_s is None:
            self._opened_s = time.monotonic()
        self._is_open = True

    def close(self) -> None:
        """Spare all members until `open` is called again, since a lost member is not survived before it has begun."""
        self._is_open = False

    @property
    def trace_s(self) -> float:
        """The present time of the trace."""
        return self._from_s + (0.0 if self._opened_s is None else (time.monotonic() - self._opened_s) * self._speed)

    def left_s(self, num_instances: int) -> float | None:
        """Return the time until so many instances are up; None if the trace has no such time any more."""
        now_s = self.trace_s
        next_s = self._trace.next_s(num_instances, now_s)
        return None if next_s is None else (next_s - now_s) / self._speed

    def launch(self, launch: Launch) -> LocalHandle:
        handle = super().launch(launch)
        self._running[launch.member] = handle
        return handle

    def has_room(self, num_members: int) -> bool:
        self._forget_ended()
        return not self._is_open or len(self._running) + num_members <= self._trace.num_up(self.trace_s)

    def poll(self, handle: LocalHandle) -> Exit | None:
        if self._is_open:
            self._follow_trace()
        return super().poll(handle)

    def _follow_trace(self) -> None:
        """Kill the members that are too many."""
        num_up = self._trace.num_up(self.trace_s)
        if num_up >= len(self._running):  # the usual case, without a look at every process
            return
        self._forget_ended()
        for member in self._random.sample(sorted(self._running), max(0, len(self._running) - num_up)):
            process = self._running.pop(member).process
            if process.pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                    self.num_killed += 1

    def _forget_ended(self) -> None:
        exits = {name: LocalPlatform.poll(self, handle) for name, handle in self._running.items()}
        self._running = {name: handle for name, handle in self._running.items() if exits[name] is None}

"""Members as rented instances of this machine: they boot for a while, and spot traces kill those that are too many."""

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from zooid.core.errors import InputError
from zooid.core.resources.spot_trace import SpotTrace
from zooid.platforms.local.processes import LocalHandle, LocalPlatform
from zooid.platforms.platform import Exit, Launch


@dataclass(frozen=True)
class Supply:
    """What the market has of one offer."""

    trace: SpotTrace | None = None
    """How many instances are up over time; offers that have the same trace share them. None means always enough."""
    boot_s: float = 0.0
    """Time, as the trace counts it, from the launch of a member until its process begins."""


@dataclass(eq=False)
class Instance:
    """A member that was launched, whether its process has begun or its machine still boots."""

    launch: Launch | None
    """What was launched; None for a member of another process, which was found."""
    begins_s: float = 0.0
    """When its process begins, by the monotonic clock."""
    process: LocalHandle | None = None
    """Its process; None while its machine boots."""
    end: Exit | None = None
    """How it ended, if it did while its machine booted."""


@dataclass
class SpotMarket:
    """Starts members as their offers can be had, and kills them without notice when fewer instances are up.

    Time of the market passes `speed` times as fast as real time, from when it first opens. Before that, members begin
    at once, and nobody is killed. Members that do not train are no part of the market: they can always be had, begin
    at once, and are never killed.
    """

    supplies: Mapping[str, Supply]
    """What the market has, by the names of offers."""
    from_s: float = 0.0
    """Time of the traces at which the market opens."""
    speed: float = 1.0
    seed: int = 0
    """Decides which members are killed."""
    opens_with_members: bool = False
    """Whether the launch of the first member that trains opens the market, before that member boots."""
    platform: LocalPlatform = field(default_factory=LocalPlatform)
    num_killed: int = 0
    _opened_s: float | None = None
    _is_open: bool = False
    _running: dict[str, Instance] = field(default_factory=dict)
    """Members that have not ended, as far as that is known."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def open(self) -> None:
        """From now on, members are killed. The first call also starts the time of the market."""
        if self._opened_s is None:
            self._opened_s = time.monotonic()
        self._is_open = True

    def close(self) -> None:
        """Spare all members until `open` is called again. Time goes on, and members still boot."""
        self._is_open = False

    @property
    def trace_s(self) -> float:
        """The present time of the traces."""
        return self.from_s + (0.0 if self._opened_s is None else (time.monotonic() - self._opened_s) * self.speed)

    def left_s(self, counts: Mapping[str, int]) -> float | None:
        """Return the time until so many instances of each offer are up; None if the traces have no such time any more.

        Instances on which members run are counted, too.
        """
        now_s = at_s = self.trace_s
        wanted = [(trace, number) for trace, number in self._by_trace(counts) if trace is not None]
        while True:
            times = [trace.next_s(number, at_s) for trace, number in wanted]
            known = [next_s for next_s in times if next_s is not None]
            if len(known) < len(times):
                return None
            if max(known, default=at_s) == at_s:
                return (at_s - now_s) / self.speed
            at_s = max(known)

    def has_room(self, num_members: int, offer: str) -> bool:
        trace = self._supply(offer).trace
        if trace is None:
            return True
        self._forget_ended()
        return len(self._members_of(trace)) + num_members <= trace.num_up(self.trace_s)

    def launch(self, launch: Launch) -> Instance:
        if not launch.trains:
            return Instance(launch, process=self.platform.launch(launch))
        if self.opens_with_members and self._opened_s is None:
            self.open()
        supply = self._supply(launch.offer)
        boot_s = 0.0 if self._opened_s is None else supply.boot_s / self.speed
        instance = self._running[launch.member] = Instance(launch, time.monotonic() + boot_s)
        self._begin(instance)
        return instance

    def locate(self, handle: Instance) -> dict[str, str]:
        self._begin(handle)
        return {} if handle.process is None else self.platform.locate(handle.process)

    def find(self, location: Mapping[str, str]) -> Instance | None:
        process = self.platform.find(location)
        return None if process is None else Instance(None, process=process)

    def poll(self, handle: Instance) -> Exit | None:
        if self._is_open:
            self._follow_traces()
        self._begin(handle)
        return self._end_of(handle)

    def logs(self, handle: Instance) -> str:
        self._begin(handle)
        return "" if handle.process is None else self.platform.logs(handle.process)

    def leave(self, handle: Instance) -> None:
        if handle.process is not None:
            self.platform.leave(handle.process)

    def terminate(self, handle: Instance) -> None:
        if handle.process is not None:
            self.platform.terminate(handle.process)
        elif handle.end is None:
            handle.end = Exit(-signal.SIGTERM)

    def _supply(self, offer: str) -> Supply:
        if offer not in self.supplies:
            raise InputError(f"the market has no offer {offer!r}; it has {', '.join(map(repr, sorted(self.supplies)))}")
        return self.supplies[offer]

    def _by_trace(self, counts: Mapping[str, int]) -> Sequence[tuple[SpotTrace | None, int]]:
        """The numbers of instances by trace, for numbers by offer."""
        traces = {id(supply.trace): supply.trace for supply in map(self._supply, counts)}
        return [
            (trace, sum(number for offer, number in counts.items() if self._supply(offer).trace is trace))
            for trace in traces.values()
        ]

    def _begin(self, instance: Instance) -> None:
        """Start the process of a member whose machine has booted, at the first look at it after that."""
        is_waiting = instance.process is None and instance.end is None
        if is_waiting and time.monotonic() >= instance.begins_s:
            assert instance.launch is not None, "who was found has begun"
            instance.process = self.platform.launch(instance.launch)

    def _end_of(self, instance: Instance) -> Exit | None:
        return instance.end if instance.process is None else self.platform.poll(instance.process)

    def _follow_traces(self) -> None:
        """Kill the members that are too many."""
        for trace in {id(each.trace): each.trace for each in self.supplies.values()}.values():
            if trace is None:
                continue
            num_up = trace.num_up(self.trace_s)
            if num_up >= len(self._members_of(trace)):  # the usual case, without a look at every process
                continue
            self._forget_ended()
            members = self._members_of(trace)
            for member in self._random.sample(members, max(0, len(members) - num_up)):
                self._kill(self._running.pop(member))

    def _members_of(self, trace: SpotTrace) -> list[str]:
        """Names of the running members whose offers have this trace."""
        return sorted(
            member
            for member, instance in self._running.items()
            if instance.launch is not None and self._supply(instance.launch.offer).trace is trace
        )

    def _kill(self, instance: Instance) -> None:
        if instance.process is None:
            instance.end = Exit(-signal.SIGKILL)
            self.num_killed += 1
        elif (pid := instance.process.process.pid) is not None:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
                self.num_killed += 1

    def _forget_ended(self) -> None:
        self._running = {name: each for name, each in self._running.items() if self._end_of(each) is None}

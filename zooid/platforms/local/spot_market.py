"""Members as rented instances of this machine: they boot for a while, and spot traces kill those that are too many."""

import random
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from zooid.core.errors import InputError
from zooid.core.resources.spot_trace import SpotTrace
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.platforms.local.processes import LocalPlatform
from zooid.platforms.platform import Launch

_GONE = Exit(None)


@dataclass(frozen=True)
class Supply:
    """What the market has of one offer."""

    trace: SpotTrace | None = None
    """How many instances are up over time; offers that have the same trace share them. None means always enough."""
    boot_s: float = 0.0
    """Time, as the trace counts it, from the launch of a member until its process begins."""


@dataclass(eq=False)
class Instance:
    """A member that was created, whether its process has begun or its machine still boots."""

    launch: Launch
    begins_s: float
    """When its process begins, by the monotonic clock."""
    has_begun: bool = False
    end: Exit | None = None
    """How it ended, if it did while its machine booted, or was killed by the market."""


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
    name: str = "local"
    look_s: float = LocalPlatform.look_s
    _opened_s: float | None = None
    _is_open: bool = False
    _instances: dict[str, dict[str, Instance]] = field(default_factory=dict)
    """Members that train, by run and title."""

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

    def release(self) -> None:
        self.platform.release()

    def has_room(self, num_members: int, offer: str) -> bool:
        trace = self._supply(offer).trace
        if trace is None:
            return True
        return len(self._living(trace)) + num_members <= trace.num_up(self.trace_s)

    def create(self, launches: Sequence[Launch]) -> None:
        self.platform.create([launch for launch in launches if not launch.trains])
        for launch in launches:
            if launch.trains:
                if self.opens_with_members and self._opened_s is None:
                    self.open()
                supply = self._supply(launch.offer)
                boot_s = 0.0 if self._opened_s is None else supply.boot_s / self.speed
                instances = self._instances.setdefault(launch.ticket.run, {})
                instances[launch.ticket.title] = Instance(launch, time.monotonic() + boot_s)
        self._begin_booted()

    def members(self, run: str) -> Mapping[str, Exit | None]:
        if self._is_open:
            self._follow_traces()
        self._begin_booted()
        own = {title: each.end for title, each in self._instances.get(run, {}).items() if self._is_told_here(each)}
        return {**self.platform.members(run), **own}

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        for title in titles:
            instance = self._instances.get(run, {}).get(title)
            if instance is not None and not instance.has_begun and instance.end is None:
                instance.end = Exit(-signal.SIGTERM)
        return self.platform.delete(run, titles)

    def place(self, launch: Launch) -> dict[str, str]:
        return self.platform.place(launch)

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return self.platform.watch(handle, title)

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

    def _begin_booted(self) -> None:
        """Start the processes of members whose machines have booted since the last look."""
        booted = [
            instance
            for instance in self._all
            if not instance.has_begun and instance.end is None and time.monotonic() >= instance.begins_s
        ]
        for instance in booted:
            instance.has_begun = True
        self.platform.create([instance.launch for instance in booted])

    @property
    def _all(self) -> list[Instance]:
        return [instance for instances in self._instances.values() for instance in instances.values()]

    @staticmethod
    def _is_told_here(instance: Instance) -> bool:
        """Whether the platform does not know a member, because its process has not begun or the market killed it."""
        return not instance.has_begun or instance.end is not None

    def _follow_traces(self) -> None:
        """Kill the members that are too many."""
        for trace in {id(each.trace): each.trace for each in self.supplies.values()}.values():
            if trace is None:
                continue
            num_up = trace.num_up(self.trace_s)
            living = self._living(trace)
            if num_up < len(living):
                by_name = sorted(living, key=lambda instance: instance.launch.member)
                for instance in self._random.sample(by_name, len(living) - num_up):
                    self._kill(instance)

    def _living(self, trace: SpotTrace) -> list[Instance]:
        """The members whose offers have this trace, and that have not ended."""
        listed = {run: self.platform.members(run) for run in self._instances}
        return [
            instance
            for run, instances in self._instances.items()
            for title, instance in instances.items()
            if instance.end is None
            and (not instance.has_begun or listed[run].get(title, _GONE) is None)
            and self._supply(instance.launch.offer).trace is trace
        ]

    def _kill(self, instance: Instance) -> None:
        instance.end = Exit(-signal.SIGKILL)
        ticket = instance.launch.ticket
        if not instance.has_begun or self.platform.kill(ticket.run, ticket.title):
            self.num_killed += 1

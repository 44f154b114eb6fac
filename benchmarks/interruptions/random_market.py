"""Members of this machine that boot, are lost at random moments, and end with their lifetime, as rented ones do."""

import math
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from zooid.core.runs.member_records import MemberHandle
from zooid.platforms import Exit, Launch
from zooid.platforms.local import LocalPlatform

_GONE = Exit(None)
NUM_STRATA = 8
"""Times between losses are drawn in blocks of so many, one from each stratum of the distribution."""


def times_to_loss(numbers: random.Random) -> Iterator[float]:
    """Draw exponential times with mean 1, each block of which has short and long ones in random order.

    So a run has about as many losses as expected, and fewer runs are needed for an exact mean.
    """
    while True:
        strata = list(range(NUM_STRATA))
        numbers.shuffle(strata)
        for stratum in strata:
            yield -math.log1p(-(stratum + numbers.random()) / NUM_STRATA)


@dataclass(eq=False)
class Instance:
    """A member that was created, whether its process has begun or its machine still boots."""

    launch: Launch
    launched_s: float
    """When it was created, by the monotonic clock."""
    has_begun: bool = False
    end: Exit | None = None
    """How it ended, if it did while its machine booted, or was killed by the market."""


@dataclass
class RandomMarket:
    """Kills members without notice at constant rates, also while they boot, and when their lifetime ends.

    Members are lost independently of one another: the next loss comes when the sum of all rates, integrated over time,
    reaches a random number, and hits a member with a probability in proportion to its rate.
    """

    boot_s: float
    losses_per_s: Callable[[str], float]
    """Rate of losses of a member, by its name."""
    numbers: random.Random
    platform: LocalPlatform = field(default_factory=LocalPlatform)
    num_lost: int = 0
    name: str = "local"
    look_s: float = LocalPlatform.look_s
    num_expired: int = 0
    """Number of members that were killed because their lifetime had ended."""

    def __post_init__(self) -> None:
        self._instances: dict[str, Instance] = {}
        """Members by title."""
        self._times = times_to_loss(self.numbers)
        self._until_loss = next(self._times)
        self._looked_s = time.monotonic()

    def create(self, launches: Sequence[Launch]) -> None:
        self._pass_time()
        for launch in launches:
            self._instances[launch.ticket.title] = Instance(launch, time.monotonic())

    def members(self, run: str) -> Mapping[str, Exit | None]:
        self._pass_time()
        told_here = {
            title: instance.end
            for title, instance in self._instances.items()
            if instance.launch.ticket.run == run and (not instance.has_begun or instance.end is not None)
        }
        return {**self.platform.members(run), **told_here}

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        for title in titles:
            instance = self._instances.get(title)
            if instance is not None and not instance.has_begun and instance.end is None:
                instance.end = Exit(-signal.SIGTERM)
        return self.platform.delete(run, titles)

    def release(self) -> None:
        pass

    def has_room(self, num_members: int, offer: str = "") -> bool:
        return True

    def place(self, launch: Launch) -> dict[str, str]:
        return {}

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return False

    def _pass_time(self) -> None:
        """Begin, lose and end members, as the time since the last look says."""
        now_s = time.monotonic()
        for instance in self._living():
            age_s = now_s - instance.launched_s
            lifetime_s = instance.launch.ticket.lifetime_s
            if lifetime_s is not None and age_s > lifetime_s:
                self._kill(instance)
                self.num_expired += 1
            elif not instance.has_begun and age_s >= self.boot_s:
                instance.has_begun = True
                ticket = structs.replace(instance.launch.ticket, lifetime_s=None)
                self.platform.create([replace(instance.launch, ticket=ticket)])
        living = self._living()
        rates = [self.losses_per_s(instance.launch.member) for instance in living]
        self._until_loss -= (now_s - self._looked_s) * sum(rates)
        self._looked_s = now_s
        if living and self._until_loss <= 0:
            [instance] = self.numbers.choices(living, rates)
            self._kill(instance)
            self.num_lost += 1
            self._until_loss = next(self._times)

    def _living(self) -> list[Instance]:
        """Members that have not ended, whether or not they have begun."""
        listed: dict[str, Exit | None] = {}
        for run in {instance.launch.ticket.run for instance in self._instances.values()}:
            listed |= self.platform.members(run)
        return [
            instance
            for title, instance in self._instances.items()
            if instance.end is None and (not instance.has_begun or listed.get(title, _GONE) is None)
        ]

    def _kill(self, instance: Instance) -> None:
        instance.end = Exit(-signal.SIGKILL)
        ticket = instance.launch.ticket
        if instance.has_begun:
            self.platform.kill(ticket.run, ticket.title)

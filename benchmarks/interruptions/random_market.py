"""Members of this machine that boot, are lost at random moments, and end with their lifetime, as rented ones do."""

import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from zooid.platforms.local.processes import LocalHandle, LocalPlatform
from zooid.platforms.platform import Exit, Launch

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
    """A member that was launched, whether its process has begun or its machine still boots."""

    launch: Launch
    launched_s: float
    """When it was launched, by the monotonic clock."""
    process: LocalHandle | None = None
    """Its process; None while its machine boots."""
    end: Exit | None = None
    """How it ended, if it did while its machine booted."""


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
    num_expired: int = 0
    """Number of members that were killed because their lifetime had ended."""

    def __post_init__(self) -> None:
        self._running: list[Instance] = []
        self._times = times_to_loss(self.numbers)
        self._until_loss = next(self._times)
        self._looked_s = time.monotonic()

    def launch(self, launch: Launch) -> Instance:
        self._pass_time()
        instance = Instance(launch, time.monotonic())
        self._running.append(instance)
        return instance

    def has_room(self, num_members: int, offer: str = "") -> bool:
        return True

    def locate(self, handle: Instance) -> dict[str, str]:
        return {} if handle.process is None else self.platform.locate(handle.process)

    def find(self, location: Mapping[str, str]) -> Instance | None:
        return None

    def poll(self, handle: Instance) -> Exit | None:
        self._pass_time()
        return self._end_of(handle)

    def logs(self, handle: Instance) -> str:
        return "" if handle.process is None else self.platform.logs(handle.process)

    def leave(self, handle: Instance) -> None:
        if handle.process is not None:
            self.platform.leave(handle.process)

    def terminate(self, handle: Instance) -> None:
        if handle.process is not None:
            self.platform.terminate(handle.process)
        elif handle.end is None:
            handle.end = Exit(-signal.SIGTERM)

    def _pass_time(self) -> None:
        """Begin, lose and end members, as the time since the last look says."""
        now_s = time.monotonic()
        self._running = [instance for instance in self._running if self._end_of(instance) is None]
        for instance in list(self._running):
            age_s = now_s - instance.launched_s
            lifetime_s = instance.launch.lifetime_s
            if lifetime_s is not None and age_s > lifetime_s:
                self._kill(instance)
                self.num_expired += 1
            elif instance.process is None and age_s >= self.boot_s:
                instance.process = self.platform.launch(replace(instance.launch, lifetime_s=None))
        rates = [self.losses_per_s(instance.launch.member) for instance in self._running]
        self._until_loss -= (now_s - self._looked_s) * sum(rates)
        self._looked_s = now_s
        if self._running and self._until_loss <= 0:
            [instance] = self.numbers.choices(self._running, rates)
            self._kill(instance)
            self.num_lost += 1
            self._until_loss = next(self._times)

    def _end_of(self, instance: Instance) -> Exit | None:
        return instance.end if instance.process is None else self.platform.poll(instance.process)

    def _kill(self, instance: Instance) -> None:
        self._running.remove(instance)
        if instance.process is None:
            instance.end = Exit(-signal.SIGKILL)
        elif (pid := instance.process.process.pid) is not None:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

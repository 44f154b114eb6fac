"""What is known about a run and its market when the policy decides what to do next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from zooid.core.units import SECONDS_PER_HOUR


@dataclass(frozen=True, kw_only=True)
class MarketOffer:
    """An offer as it can be had right now."""

    name: str
    usd_per_hour: float
    num_available: int
    """Number of members that could run on it now, including those that do."""
    startup_s: float = 0.0
    """Time from the launch of a member to its first step, which is billed."""
    is_reliable: bool = True
    """Whether members can always be started, and stay until the run ends them, as on demand."""


@dataclass(frozen=True)
class FleetOption:
    """A fleet on which the rest of the run could be trained."""

    members: tuple[tuple[str, int], ...]
    """Numbers of members by offer."""
    step_s: float
    name: str = ""
    """The fleet in words. Fleets with other names need new members, because a member keeps its layers for life."""

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return dict(self.members)

    @property
    def key(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """What distinguishes fleets, whatever their step times."""
        return self.name, self.members

    def __str__(self) -> str:
        return self.name or " and ".join(f"{number} × {offer}" for offer, number in self.members)


@dataclass(frozen=True)
class Loss:
    """A member that was preempted."""

    offer: str
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The state of a run, its limits and its market. All times are Unix times or simulated ones."""

    now_s: float
    look_s: float
    """Time until the policy is asked again."""
    num_steps_left: float
    num_steps_at_risk: float = 0.0
    """Number of steps since the last checkpoint, which are repeated if all members are lost."""
    spent_usd: float
    current: FleetOption | None
    """The fleet that trains or starts now; None if there is none. Its step time is the measured one."""
    offers: Mapping[str, MarketOffer]
    losses: tuple[Loss, ...] = ()
    deadline_at_s: float | None = None
    budget_usd: float | None = None
    closing_s: float = 0.0
    """Time of the last checkpoint and the end."""
    other_usd_per_s: float = field(default=0.0)
    """Cost of requests, storage and traffic, by time."""

    def usd_per_s(self, option: FleetOption | None) -> float:
        """Return how fast a fleet costs money."""
        if option is None:
            return 0.0
        members = sum(number * self.offers[offer].usd_per_hour for offer, number in option.members)
        return members / SECONDS_PER_HOUR + self.other_usd_per_s

    def kept_by(self, option: FleetOption) -> Mapping[str, int]:
        """Return the numbers of present members that a fleet could keep, by offer."""
        return {} if self.current is None or self.current.name != option.name else self.current.counts

    def startup_s(self, option: FleetOption, running: Mapping[str, int]) -> float:
        """Return the time until a fleet trains, if these members already run."""
        started = [offer for offer, number in option.members if number > running.get(offer, 0)]
        return max((self.offers[offer].startup_s for offer in started), default=0.0)

"""What is known about a run and its market when the policy decides what to do next."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from zooid.coordinator.policy.avoidance import Loss, is_avoided
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
    cuts: str = ""
    """Which layers its members have, in words. A fleet with other cuts needs new members, because a member keeps its
    layers for life."""

    @cached_property
    def counts(self) -> Mapping[str, int]:
        return dict(self.members)

    @property
    def key(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """What distinguishes fleets, whatever their step times."""
        return self.cuts, self.members

    def __str__(self) -> str:
        members = " and ".join(f"{number} × {offer}" for offer, number in self.members)
        return f"{members}, {self.cuts}" if self.cuts else members


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
    other_usd_per_s: float = 0.0
    """Cost of requests, storage and traffic, by time."""
    seeks_savings: bool = True
    """Whether to switch to a cheaper fleet while the present one is safe and holds the limits."""
    time_factor: float = 1.0
    """Number of seconds of the market that pass in one second of the run, in a rehearsal of a longer one."""

    @property
    def has_begun(self) -> bool:
        """Whether the run has or had members."""
        return self.current is not None or self.spent_usd > 0

    def is_avoided(self, offer: str) -> bool:
        """Whether an offer was preempted so lately that nothing is started on it."""
        return is_avoided(offer, self.losses, self.now_s, self.time_factor)

    def usd_per_s(self, option: FleetOption | None) -> float:
        """Return how fast a fleet costs money."""
        if option is None:
            return 0.0
        members = sum(number * self.offers[offer].usd_per_hour for offer, number in option.members)
        return members / SECONDS_PER_HOUR + self.other_usd_per_s

    def kept_by(self, option: FleetOption) -> Mapping[str, int]:
        """Return the numbers of present members that a fleet could keep, by offer."""
        return {} if self.current is None or self.current.cuts != option.cuts else self.current.counts

    def startup_s(self, option: FleetOption, running: Mapping[str, int]) -> float:
        """Return the time until a fleet trains, if these members already run."""
        started = [offer for offer, number in option.members if number > running.get(offer, 0)]
        return max((self.offers[offer].startup_s for offer in started), default=0.0)

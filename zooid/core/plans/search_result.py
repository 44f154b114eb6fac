"""What a search for a plan found: the pick, what it was chosen from, and how sure it is that nothing is better."""

from typing import Literal, get_args

from zooid.core.plans.plan import Plan, ScheduleName, TransportName
from zooid.core.records import FileRecord, Record, require

Goal = Literal["balanced", "fastest", "cheapest", "weighted"]
"""Weighted: an hour is worth so many dollars, and the sum of both is to be the least."""
GOALS: tuple[Goal, ...] = get_args(Goal)

Status = Literal["optimal", "bounded"]
Verdict = Literal["pick", "front", "dominated", "beyond a limit", "too large", "bounded out", "open"]


class Proof(Record, frozen=True, kw_only=True):
    """How sure it is that nothing is better, for the model of time and cost that was searched."""

    status: Status
    """`optimal`: nothing better exists. `bounded`: nothing is better by more than `gap`."""
    gap: float
    """(found − lower bound) / found; 0 where optimal."""
    wall_s: float
    """What the search took."""

    def __post_init__(self) -> None:
        require(self.gap >= 0, f"`gap` is {self.gap}; it must be at least 0")
        require(self.status != "optimal" or self.gap == 0, f"an optimal answer has a gap of 0, not {self.gap}")


class Candidate(Record, frozen=True, kw_only=True):
    """A plan that could be, and what became of it."""

    layout: str
    offers: tuple[str, ...]
    """Of each stage; of each replica, where these differ."""
    num_members: int
    grain_size: int
    schedule: ScheduleName
    ahead: int
    transport: TransportName
    run_s: float
    """Simulated; otherwise what no simulation of it can be below, and so is `run_usd`."""
    run_usd: float
    is_simulated: bool
    verdict: Verdict
    """`dominated`: another is faster and cheaper. `bounded out`: another is faster and cheaper than it can be at best.
    `open`: it was not looked at any more."""
    reason: str = ""
    """Of what could not be: which limit it breaks, or what it lacks."""


class LeftOut(Record, frozen=True, kw_only=True):
    """Offers that no plan can stand on, all for one reason."""

    offers: tuple[str, ...]
    reason: str


class Search(FileRecord, frozen=True, kw_only=True, tag="search"):
    """A pick with its reasons."""

    goal: Goal
    hour_usd: float | None = None
    """What an hour is worth, where the goal is weighted."""
    pick: Plan
    runner_up: Plan | None = None
    """The next best that is another plan and not only another cut."""
    front: tuple[Plan, ...]
    """All within the limits to which no other is both faster and cheaper, the fastest first."""
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...] = ()
    """Offers that were asked for, but that nothing could be planned on."""
    num_simulated: int
    proof: Proof
    """Among the candidates, for the simulator."""
    reasons: tuple[str, ...] = ()
    """Why this one, in sentences."""

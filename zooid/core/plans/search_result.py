"""The result of a search for a plan: the pick, the Pareto front, all candidates, and a proof."""

from typing import Literal, get_args

from zooid.core.plans.correction import Correction
from zooid.core.plans.plan import Plan, ScheduleName, TransportName
from zooid.core.records import FileRecord, Record, require

Goal = Literal["balanced", "fastest", "cheapest", "weighted"]
"""`weighted` minimises the cost plus the run's hours, at a price for each hour."""
GOALS: tuple[Goal, ...] = get_args(Goal)

Status = Literal["optimal", "bounded"]
Verdict = Literal["pick", "front", "dominated", "beyond a limit", "too large", "hopeless", "bounded out", "open"]


class Proof(Record, frozen=True, kw_only=True):
    """How much better than the answer anything can be, by the model of time and cost that was searched."""

    status: Status
    """`optimal` means that nothing better exists, `bounded` that nothing is better by more than `gap`."""
    gap: float
    """(incumbent − lower bound) / incumbent, which is 0 if optimal."""
    wall_s: float
    """Wall time of the search."""

    def __post_init__(self) -> None:
        require(self.gap >= 0, f"`gap` is {self.gap}; it must be at least 0")
        require(self.status != "optimal" or self.gap == 0, f"an optimal answer has a gap of 0, not {self.gap}")


class Candidate(Record, frozen=True, kw_only=True):
    """A plan, or a family of similar plans, that the search considered, and its verdict."""

    layout: str
    offers: tuple[str, ...]
    """The offer of each stage, or of each replica where replicas differ."""
    num_members: int
    grain_size: int
    schedule: ScheduleName
    ahead: int
    transport: TransportName
    run_s: float
    """Simulated time, or a lower bound of it if the candidate was not simulated. `run_usd` is likewise."""
    run_usd: float
    is_simulated: bool
    verdict: Verdict
    """`dominated` means that another plan is as fast and as cheap, `hopeless` that members are lost so often that the
    run hardly advances, `bounded out` that a plan is at least as good as this candidate's lower bounds, and `open` that
    the search ended before it."""
    reason: str = ""
    """The limit that the candidate breaks, the memory that it lacks, or why it is hopeless. Empty if it is feasible."""


class LeftOut(Record, frozen=True, kw_only=True):
    """Offers that no plan can use, all for the same reason."""

    offers: tuple[str, ...]
    reason: str


class Search(FileRecord, frozen=True, kw_only=True, tag="search"):
    """The outcome of a search: the pick and the reasons for it."""

    goal: Goal
    hour_usd: float | None = None
    """Dollars that an hour is worth, if the goal is weighted."""
    pick: Plan
    runner_up: Plan | None = None
    """The best plan that differs from the pick in more than its cuts and grains."""
    front: tuple[Plan, ...]
    """The Pareto front of the plans within the limits, fastest first."""
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...] = ()
    """Offers that the user named, but that no plan can use."""
    num_simulated: int
    proof: Proof
    """Proof about the pick (or the front, if balanced), among the candidates and by the simulator's model."""
    reasons: tuple[str, ...] = ()
    """Sentences that explain the pick."""
    corrections: tuple[Correction, ...] = ()
    """What earlier runs have corrected in profiles and links before the search."""

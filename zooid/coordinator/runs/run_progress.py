"""The progress of a run as its events report it, and the result at its end."""

import math
import time
from dataclasses import dataclass, field

from zooid.core.plans.plan import CostTerm, Plan
from zooid.core.runs.events import (
    CheckpointSaved,
    Event,
    MemberStarted,
    MemberTrained,
    ModelTraced,
    OptimizerChanged,
    RosterChanged,
    RunStarted,
    StepCommitted,
    StoreUsed,
)


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    store: str
    plan: Plan
    checkpoint: str
    """URL of the last checkpoint's folder; `zooid.load_checkpoint` reads it."""
    best_checkpoint: str | None
    """URL of the best checkpoint's folder; None if the job has kept none."""
    stopped: str
    """Why the run ended before its last step; empty if it did not."""
    step_s: float
    """Median time of the full steps, without the first."""
    wall_s: float
    usd: float
    """Cost of the whole run: the sum of `cost_terms`."""
    cost_terms: tuple[CostTerm, ...]
    """What the cost consists of, since the run's first claim."""
    losses: tuple[float, ...]
    """The loss of every step, in order. After a resume, they begin with the first step after it. After an adoption,
    they begin with the first step that the earlier coordinator had not relayed."""


@dataclass
class RunProgress:
    """The state of a run, as far as its events have reported it."""

    steps: dict[int, StepCommitted] = field(default_factory=dict)
    """Reported steps by number."""
    checkpoint: str = ""
    """URL of the last reported checkpoint's folder."""
    optimizer_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The job's optimizer settings, if they differ from those of the checkpoint."""
    trace: str = ""
    """Digest of the model's trace; empty before it is written."""
    started: set[str] = field(default_factory=set)
    """Members that have connected to their peers."""
    trained: set[str] = field(default_factory=set)
    """Members that have done all their steps."""
    seated: frozenset[str] | None = None
    """Members in the current roster; None before there is one."""
    former: set[str] = field(default_factory=set)
    """Members that had a seat in an earlier roster."""
    departed: set[str] = field(default_factory=set)
    """Members that a planned change has left without a seat. Whatever ends them is no loss."""
    has_lost_members: bool = False
    reported_lost: set[str] = field(default_factory=set)
    """Members of whose loss people were told."""
    last_event_s: float = field(default_factory=time.monotonic)
    """Time of the last relayed event."""
    reported_s: dict[str, float] = field(default_factory=dict)
    """Time of the last event that a member has written about itself."""

    def take(self, event: Event) -> None:
        """Update the progress with an event."""
        self.last_event_s = time.monotonic()
        if isinstance(event, MemberStarted | MemberTrained | StoreUsed):
            self.reported_s[event.member] = time.monotonic()
        match event:
            case RunStarted():
                self.seated = frozenset(event.members)
            case MemberStarted():
                self.started.add(event.member)
            case MemberTrained():
                self.trained.add(event.member)
            case StepCommitted():
                self.steps[event.step] = event
            case CheckpointSaved():
                self.checkpoint = event.url
            case OptimizerChanged():
                self.optimizer_settings = event.settings
            case RosterChanged():
                before, self.seated = self.seated or frozenset(), frozenset(event.members)
                self.former |= before
                if event.ruling == "planned":
                    self.departed |= before - self.seated
                self.has_lost_members |= event.ruling != "planned"
            case ModelTraced():
                self.trace = event.digest

    def is_waiting(self, member: str) -> bool:
        """Whether a process waits to join and has never had a seat."""
        return self.seated is not None and member not in self.former | self.seated

    def is_left_out(self, member: str) -> bool:
        """Whether the other members continue without this one."""
        return self.seated is not None and member in self.former - self.seated

    def last_heard_s(self, member: str) -> float:
        """Return when a member last gave a sign in the store.

        Members compute in lockstep, so an event of one shows that all in the roster are alive.
        """
        return -math.inf if self.is_left_out(member) else self.last_event_s

    def last_report_s(self, member: str) -> float:
        """Return when a member has last reported by itself, as it does every few seconds, whatever it waits for."""
        return -math.inf if self.is_left_out(member) else self.reported_s.get(member, -math.inf)

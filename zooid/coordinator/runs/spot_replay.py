"""A run whose members are killed as a spot trace says, and which is resumed when too few of them were left."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zooid.coordinator.runs.relay import OnEvent
from zooid.coordinator.runs.run_progress import RunResult
from zooid.core.errors import CheckpointError, InputError, MemberFailed
from zooid.core.plans.plan import Plan
from zooid.core.resources.spot_trace import SpotTrace, decode_spot_trace
from zooid.core.runs.events import Event, PhaseStarted, RosterChanged, RunStarted, StepCommitted
from zooid.core.runs.replay import ReplayReport, SpotReplay
from zooid.core.units import format_duration
from zooid.platforms.local.spot_market import SpotMarket, Supply

StartRun = Callable[[SpotMarket, OnEvent], RunResult]
"""(platform, callback for events) -> the result of a run whose members the platform starts."""


@dataclass
class _Account:
    """Sums over all attempts, from the events of the run."""

    market: SpotMarket
    on_event: OnEvent
    seen: set[int] = field(default_factory=set)
    num_redone: int = 0
    num_recoveries: int = 0
    num_resumes: int = 0
    members: frozenset[str] = frozenset()
    """Members of the present roster."""
    num_joined: int = 0
    recovery_s: float = 0.0
    down_s: float = 0.0

    def take(self, event: Event) -> None:
        match event:
            case StepCommitted():
                self.num_redone += event.step in self.seen
                self.seen.add(event.step)
                self.market.open()
            case RunStarted():
                self.members = frozenset(event.members)
            case RosterChanged():
                if event.ruling == "planned":
                    self.num_joined += len(set(event.members) - self.members)
                else:
                    self.num_recoveries += 1
                    self.recovery_s += event.wall_s
                self.members = frozenset(event.members)
        self.on_event(event)

    def end_attempt(self) -> None:
        """Note that too few members were left. Members of the next attempt are spared until their first step."""
        self.market.close()
        self.num_resumes += 1

    def report(self, usd: float, wall_s: float) -> ReplayReport:
        """`usd` is the cost of the whole run, since each attempt carries on the bill of those before it."""
        return ReplayReport(
            num_steps=len(self.seen),
            num_redone=self.num_redone,
            num_lost=self.market.num_killed,
            num_recoveries=self.num_recoveries,
            num_resumes=self.num_resumes,
            num_joined=self.num_joined,
            recovery_s=self.recovery_s,
            down_s=self.down_s,
            wall_s=wall_s,
            usd=usd,
        )


def read_spot_trace(file: Path) -> SpotTrace:
    """Read a trace from a file."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; give a readable file") from error
    return decode_spot_trace(data, str(file))


def replay(
    replayed: SpotReplay, plan: Plan, store: str, start: StartRun, resume: StartRun, on_event: OnEvent
) -> tuple[RunResult, ReplayReport]:
    """Run a plan while the trace is replayed, from the first time at which enough instances are up for all members.

    Members of instances that come back take the seats of killed ones while the others train.
    """
    from_s = _first_s(replayed, plan)
    market = SpotMarket(_supplies(replayed, plan), from_s=from_s, speed=replayed.speed, seed=replayed.seed)
    account = _Account(market, on_event)
    how = f"{replayed.speed:g} s of it pass in one second, seed {replayed.seed}"
    phase = f"replaying the spot trace from {format_duration(from_s)} on: {how}"
    on_event(PhaseStarted(at_s=time.time(), phase=phase))
    begin_s = time.monotonic()
    attempt = start
    while True:
        num_killed = market.num_killed
        try:
            result = attempt(market, account.take)
            return result, account.report(result.usd, time.monotonic() - begin_s)
        except (MemberFailed, CheckpointError) as error:
            if market.num_killed == num_killed:  # the trace is not to blame
                raise
            account.end_attempt()
            account.down_s += _wait(market, plan, store, on_event, error)
            attempt = resume


def _supplies(replayed: SpotReplay, plan: Plan) -> dict[str, Supply]:
    """The trace holds for members on spot offers, and for all if the plan has no such offer."""
    has_spot = any(offer.market == "spot" for offer in plan.offers)
    return {
        offer.name: Supply(
            None if has_spot and offer.market != "spot" else replayed.trace, boot_s=offer.startup_s or 0.0
        )
        for offer in plan.offers
    }


def _num_traced(supplies: Mapping[str, Supply], plan: Plan) -> int:
    """Number of members for which the trace holds."""
    return sum(supplies[offer.name].trace is not None for offer in plan.member_offers)


def _first_s(replayed: SpotReplay, plan: Plan) -> float:
    """Return the time of the trace at which a replay begins; reject a trace that never has enough instances."""
    num_members = _num_traced(_supplies(replayed, plan), plan)
    from_s = replayed.trace.next_s(num_members)
    if from_s is None:
        raise InputError(
            f"the trace never has more than {max(replayed.trace.data)} instances up, but the plan has {num_members} "
            "members on them; plan for fewer members, or give another trace"
        )
    return from_s


def _wait(market: SpotMarket, plan: Plan, store: str, on_event: OnEvent, error: Exception) -> float:
    """Wait until instances are up for all members, and return how long that took."""
    num_traced = _num_traced(market.supplies, plan)
    left_s = market.left_s(Counter(offer.name for offer in plan.member_offers))
    if left_s is None:
        raise InputError(
            f"the run ended, because too few members were left ({error}), and the trace never has {num_traced} "
            f"instances again; `zooid resume {store}` continues from the last checkpoint without the trace"
        ) from error
    phase = f"waiting {left_s:.1f} s until {num_traced} instances are up"
    on_event(PhaseStarted(at_s=time.time(), phase=phase))
    time.sleep(left_s)
    return left_s

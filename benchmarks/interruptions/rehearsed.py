"""Runs with random losses and limited lifetimes, rehearsed by real members, beside their predictions.

A case has a layout, a transport, rates of losses, perhaps a lifetime, a boot delay, a checkpoint rule, and prices. Its
members are processes that sleep when others compute. They are killed without notice at random moments, also while they
boot, and those with a lifetime when that has passed. Who is lost is replaced while the others train. If too few are
left, or if one is lost before all have started, the run is resumed from its last checkpoint at once.

The prediction is that of any plan: from a profile, offers and links, before anything runs. Rehearsals without losses,
as many at a time as later, first measure how long a process takes to start over each transport. A case has some dozens
of losses or hand-overs, in three runs.
"""

import multiprocessing
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

from msgspec import structs

from benchmarks.harness import Row
from benchmarks.interruptions.random_market import RandomMarket
from lab.load import ForeignLoad
from lab.profiles import FINGERPRINT, made_layer, made_profile
from zooid.catalog import local_offer
from zooid.coordinator.runs.sleeping_run import SleepingRun
from zooid.core.errors import CheckpointError, MemberFailed
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Plan, Prediction, StagePlan, TransportName
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import Event, RosterChanged, RunStarted, StepCommitted
from zooid.predictor import World, directed_links, predict
from zooid.store import open_store

RUN_S = {True: 15.0, False: 100.0}
"""Time of a case without losses, in the quick form and in the long one."""
NUM_REPEATS = {True: 1, False: 3}
"""Rehearsals of each case, whose means are compared with a prediction, which is a mean, too."""
LAYOUTS = ((1, 1), (1, 2), (1, 2), (2, 1), (2, 1), (2, 2), (3, 1), (4, 1))
TRANSPORTS: tuple[TransportName, ...] = ("tcp", "store")
SITE = "lab"
NUM_LAYERS = 4
DATE = "2026-01-01"


@dataclass(frozen=True)
class RehearsedCase:
    """A run, as it is predicted and rehearsed."""

    plan: Plan
    profile: Profile
    rule: CheckpointRule
    boot_s: float
    num_steps: int

    @property
    def name(self) -> str:
        offer = self.plan.offers[0]
        parts = [self.plan.layout + (" with copies" if self.plan.insured else ""), self.plan.transport]
        if offer.lifetime_s is not None:
            parts.append(f"lives {offer.lifetime_s:.0f} s")
        return ", ".join(parts)

    @property
    def profiles(self) -> dict[str, Profile]:
        return dict.fromkeys((offer.name for offer in self.plan.offers), self.profile)

    @property
    def prediction(self) -> Prediction:
        return predict(self.plan, World(self.profiles, directed_links(links()), looks="folder"), self.rule)[0]

    def losses_per_s(self, member: str) -> float:
        """Rate of losses of a member, from the stage in its name."""
        match = re.fullmatch(r"[rc]\d+s(\d+)(-\d+)?", member)
        assert match is not None, member
        return self.plan.offer_of(int(match[1]), 0).losses_per_s or 0.0


def links() -> tuple[Link, ...]:
    """Links within this machine, over which only small messages go."""
    ends = ((SITE, SITE), (SITE, STORE_SITE), (STORE_SITE, SITE))
    return tuple(
        Link(from_site=one, to_site=other, bandwidth_bytes_per_s=1e9, rtt_s=0.0005, source="made up", date=DATE)
        for one, other in ends
    )


ProcessTimes = Mapping[TransportName, float]
"""Seconds from the start of a process to its first step, over each transport."""


def random_case(numbers: random.Random, run_s: float, process_s: ProcessTimes) -> RehearsedCase:
    """Draw a case that takes about `run_s` without losses.

    Times of spot machines and functions are scaled down by about a hundred: losses come after minutes instead of hours.
    """
    num_replicas, num_stages = numbers.choice(LAYOUTS)
    insured = num_replicas == 1 and numbers.random() < 0.5
    transport: TransportName = "tcp" if numbers.random() < 0.8 else "store"
    num_members = num_replicas * num_stages * (2 if insured else 1)
    boot_s = numbers.uniform(0.5, 2.5)
    lifetime_s = numbers.choice([None, None, numbers.uniform(25.0, 45.0)])
    between_losses_s = numbers.uniform(10.0, 20.0) * (1.0 if transport == "tcp" else 2.0)
    weights = [numbers.uniform(0.5, 1.5) for _ in range(num_stages)]
    offers = tuple(
        structs.replace(
            local_offer(2**40, DATE),
            name=f"made.{stage}",
            platform="lab",
            site=SITE,
            usd_per_hour=numbers.uniform(0.1, 3.0),
            usd_per_start=numbers.choice([0.0, 2e-7, 1e-5]),
            billing_grain_s=numbers.choice([0.001, 1.0]),
            lifetime_s=lifetime_s,
            interruptions_per_hour=3600 / between_losses_s / num_members * weight / statistics.fmean(weights),
            startup_s=boot_s,
        )
        for stage, weight in enumerate(weights)
    )
    step_s = numbers.uniform(0.3, 0.5)
    num_grains = 12 if num_replicas > 2 else 4
    work_s = step_s * num_replicas * num_stages / (num_grains + num_replicas * (num_stages - 1))
    layers = [
        made_layer(f"layer {number}", work_s / 3 / NUM_LAYERS, parameter_bytes=10_000, boundary_bytes=10_000)
        for number in range(NUM_LAYERS)
    ]
    num_steps = round(run_s / step_s)
    bounds = [NUM_LAYERS * stage // num_stages for stage in range(num_stages + 1)]
    plan = Plan(
        job="interruptions",
        model_fingerprint=FINGERPRINT,
        batch_size=num_grains,
        grain_size=1,
        num_replicas=num_replicas,
        stages=tuple(
            StagePlan(first_layer=first, end_layer=end, offer=offer.name, memory_bytes=1)
            for first, end, offer in zip(bounds, bounds[1:], offers, strict=False)
        ),
        schedule="1f1b",
        transport=transport,
        all_reduce="auto",
        insured=insured,
        offers=offers,
    )
    profile = made_profile(
        "interruptions", layers, batch_size=num_grains, num_steps=num_steps, startup_cpu_s=process_s[transport]
    )
    rule = numbers.choice(
        [CheckpointRule(every_steps=numbers.randint(8, 25)), CheckpointRule(every_s=numbers.uniform(3.0, 8.0))]
    )
    return RehearsedCase(plan, profile, rule, boot_s, num_steps)


@dataclass
class Account:
    """What happens in a run, from its events."""

    members: frozenset[str] = frozenset()
    steps: set[int] = field(default_factory=set)
    num_redone: int = 0
    num_rollbacks: int = 0
    num_handovers: int = 0
    first_step_at_s: float = 0.0

    def take(self, event: Event) -> None:
        match event:
            case StepCommitted():
                self.first_step_at_s = self.first_step_at_s or event.at_s - event.step_s
                self.num_redone += event.step in self.steps
                self.steps.add(event.step)
            case RunStarted():
                self.members = frozenset(event.members)
            case RosterChanged():
                self.num_rollbacks += event.ruling == "rolled_back"
                leaving = self.members - set(event.members)
                self.num_handovers += len(leaving) if event.ruling == "planned" else 0
                self.members = frozenset(event.members)


@dataclass(frozen=True)
class Rehearsed:
    """What became of a case."""

    run_s: float
    startup_s: float
    usd: float
    account: Account
    market: RandomMarket


def rehearse(case: RehearsedCase, numbers: random.Random) -> Rehearsed:
    """Run a case to its end, resuming it whenever too few members are left."""
    market = RandomMarket(case.boot_s, case.losses_per_s, numbers)
    account = Account()
    pace = RehearsalPace(profiles=case.profiles, num_steps=case.num_steps)
    with tempfile.TemporaryDirectory(prefix="zooid-interruptions-") as folder:
        run = SleepingRun(open_store(Path(folder, "run").as_uri()), case.plan, pace, case.rule)
        market.platform.expect(1)
        begin_s, began_at_s = time.monotonic(), time.time()
        attempt = run.start
        while True:
            try:
                result = attempt(market, account.take)
                break
            except (MemberFailed, CheckpointError):
                account.num_rollbacks += 1
                attempt = run.resume
        run_s = time.monotonic() - begin_s
    return Rehearsed(run_s, account.first_step_at_s - began_at_s, result.usd, account, market)


def start_once(transport: TransportName) -> float:
    """Measure the time from the start of two processes to their first step, without boot delay and losses."""
    case = random_case(random.Random(0), 1.0, dict.fromkeys(TRANSPORTS, 0.0))
    offers = tuple(structs.replace(offer, interruptions_per_hour=0.0, lifetime_s=None) for offer in case.plan.offers)
    plan = structs.replace(case.plan, offers=offers, transport=transport, num_replicas=2)
    return rehearse(replace(case, plan=plan, boot_s=0.0), random.Random(0)).startup_s


def process_times(pool: ProcessPoolExecutor, num_parallel: int) -> ProcessTimes:
    """Measure the start of processes over each transport, side by side."""
    times: dict[TransportName, float] = {}
    for transport in TRANSPORTS:
        starts = [pool.submit(start_once, transport) for _ in range(3 * num_parallel)]
        times[transport] = statistics.median(start.result() for start in starts)
    return times


def begin_worker(all_begun: Barrier) -> None:
    """End all members when this process is ended. Import torch for them before anything is measured in any worker."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    start_once("tcp")
    all_begun.wait()


@dataclass(frozen=True)
class Outcome:
    """The numbers of one rehearsal."""

    run_s: float
    usd: float
    losses: int
    rollbacks: int
    handovers: int
    expired: int
    redone_steps: int


def outcome_of(number: int, repeat: int, seed: int, run_s: float, process_s: ProcessTimes) -> Outcome:
    """Rehearse one case once."""
    case = random_case(random.Random(f"{seed} {number}"), run_s, process_s)
    rehearsed = rehearse(case, random.Random(f"losses {seed} {number} {repeat}"))
    account, market = rehearsed.account, rehearsed.market
    print(f"case {number}, {case.name}: {rehearsed.run_s:.1f} s and ${rehearsed.usd:.4f}", file=sys.stderr)
    return Outcome(
        rehearsed.run_s,
        rehearsed.usd,
        market.num_lost,
        account.num_rollbacks,
        account.num_handovers,
        market.num_expired,
        account.num_redone,
    )


def row_of(number: int, seed: int, run_s: float, process_s: ProcessTimes, outcomes: Sequence[Outcome]) -> Row:
    """Put the means of some rehearsals of a case beside its prediction."""
    case = random_case(random.Random(f"{seed} {number}"), run_s, process_s)
    predicted = case.prediction
    losses = predicted.losses
    assert losses is not None

    def mean(name: str) -> float:
        return statistics.fmean(getattr(outcome, name) for outcome in outcomes)

    return {
        "number": number,
        "case": case.name,
        "unlost_s": predicted.startup_s + predicted.step_s * case.num_steps,
        "predicted_s": predicted.run_s,
        "rehearsed_s": mean("run_s"),
        "error": predicted.run_s / mean("run_s") - 1,
        "predicted_usd": predicted.run_usd,
        "rehearsed_usd": mean("usd"),
        "usd_error": predicted.run_usd / mean("usd") - 1,
        "losses": f"{losses.num_losses:.3g} / {mean('losses'):.3g}",
        "rollbacks": f"{losses.num_rollbacks:.3g} / {mean('rollbacks'):.3g}",
        "handovers": f"{losses.num_handovers:.3g} / {mean('handovers'):.3g}",
        "expired": mean("expired"),
        "redone_steps": mean("redone_steps"),
    }


def measure(chosen: Sequence[int], seed: int, num_parallel: int, *, quick: bool) -> Iterator[Row]:
    """Yield a row for each of these cases. Some are rehearsed at the same time, since their members sleep."""
    context = multiprocessing.get_context("spawn")
    begin = (begin_worker, (context.Barrier(num_parallel),))
    with ForeignLoad() as foreign, ProcessPoolExecutor(num_parallel, context, *begin) as pool:
        try:
            process_s = process_times(pool, num_parallel)
            for transport, seconds in process_s.items():
                print(f"a process takes {seconds:.2f} s to start over {transport}", file=sys.stderr)
            rehearsals = {
                number: [
                    pool.submit(outcome_of, number, repeat, seed, RUN_S[quick], process_s)
                    for repeat in range(NUM_REPEATS[quick])
                ]
                for number in chosen
            }
            for number, futures in rehearsals.items():
                yield row_of(number, seed, RUN_S[quick], process_s, [future.result() for future in futures])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()  # otherwise leaving the pool would wait for their runs
    print(f"other processes kept {foreign.num_cores:.2f} cores busy", file=sys.stderr)

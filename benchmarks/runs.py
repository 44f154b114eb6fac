"""Step times of layouts that were not run, predicted from a profile and from what a run of another layout measured.

Members are processes in network namespaces, of two kinds: each kind has a site, a link rate and a speed of its own.
Computing sleeps, and everything else is real. The profile and the known links are wrong by random factors, which differ
between the kinds. One layout runs, its members measure, and profile and links are corrected as `--runs` does it. Then
another layout is predicted twice, from the profile alone and from the corrected one, and runs.

Replicas of different kinds get shares by the speeds that each prediction rests on, as a planner gives them. The second
layout starts with those of the corrected prediction. Members of both runs may still change their shares, since shares
follow measured speed. Steps of the second run count from the last change on, and `changes` is the number of changes.

Errors are |predicted − measured| / measured of the median step. `--cases 0:4` runs some of the cases only.
"""

import argparse
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from msgspec import structs

from benchmarks.harness import Row, run_benchmark
from lab.load import Busy
from lab.profiles import FINGERPRINT, made_layer, made_profile
from lab.rehearsals import Site, rehearse_stages, site
from zooid.catalog import local_offer
from zooid.coordinator.measurements.rehearsed_run import Rehearsal
from zooid.coordinator.plans.earlier_runs import RunKnowledge, learn_from_runs
from zooid.core.plans.plan import Plan, ScheduleName, StagePlan, TransportName
from zooid.core.plans.profile import LayerProfile, Profile
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.core.runs.events import Event, RosterChanged
from zooid.platforms.local import LocalPlatform
from zooid.predictor import World, directed_links, lay_out, simulate_step, stage_times
from zooid.schedule.share_rule import balanced_shares
from zooid.store import ObjectStore, open_store

SEED = int(os.environ.get("ZOOID_BENCHMARK_SEED", "11"))
NUM_STEPS = 100
QUICK_STEPS = 24
NUM_CHECKED_STEPS = 20
WARM_UP = 12
"""Steps that are not counted: members learn in them when to look for one another's messages, and those of other cases
still start."""
NUM_PARALLEL = {"tcp": 2, "store": 1}
"""Cases that run at the same time. Members sleep, but a store server may keep two thirds of a core busy."""
NUM_LAYERS = 8
BATCH_SIZE, GRAIN_SIZE = 4, 1
MEMBERS_OF_A_KIND = 2
DATE = "2026-01-01"


@dataclass(frozen=True)
class Kind:
    """Members that are alike: their name is that of their offer and of their site."""

    name: str
    rate: int
    """Bytes a second of each member, each way."""
    rate_factor: float
    """What the rate was thought to be, over what it is."""
    forward_factor: float
    """What a forward takes, over its time in the profile. Backwards have a factor of their own."""
    backward_factor: float

    @property
    def offer(self) -> Offer:
        """Not of this machine, whose cores members would share in the prediction."""
        return structs.replace(local_offer(2**40, DATE), name=self.name, site=self.name, platform="lab")

    @property
    def known_rate(self) -> float:
        return self.rate * self.rate_factor

    def true_profile(self, known: Profile) -> Profile:
        return structs.replace(known, layers=tuple(map(self._true_layer, known.layers)))

    def _true_layer(self, layer: LayerProfile) -> LayerProfile:
        [point] = layer.points
        true_point = structs.replace(
            point,
            forward_s=point.forward_s * self.forward_factor,
            backward_s=point.backward_s * self.backward_factor,
        )
        return structs.replace(layer, points=(true_point,))


@dataclass(frozen=True)
class Layout:
    """Members by kind: `stages` are the kinds of the stages of every replica, `replicas` those of whole replicas."""

    num_replicas: int
    num_stages: int
    stages: str = ""
    replicas: str = ""

    def __str__(self) -> str:
        return f"{self.num_replicas}x{self.num_stages} {self.stages or self.replicas}"


PAIRS = (
    (Layout(1, 2, stages="xy"), Layout(2, 1, replicas="xy")),
    (Layout(2, 1, replicas="xy"), Layout(1, 2, stages="yx")),
    (Layout(1, 4, stages="xxyy"), Layout(2, 2, stages="xy")),
    (Layout(2, 2, replicas="xy"), Layout(1, 4, stages="xxyy")),
    (Layout(2, 2, stages="xy"), Layout(4, 1, replicas="xxyy")),
    (Layout(4, 1, replicas="xxyy"), Layout(2, 2, replicas="xy")),
)
"""What runs, and what is predicted."""
TRANSPORTS: tuple[TransportName, ...] = ("tcp", "store")


@dataclass(frozen=True)
class Case:
    number: int
    transport: TransportName
    ran: Layout
    asked: Layout
    kinds: dict[str, Kind]
    schedule: ScheduleName
    known: Profile
    """What the profile of both kinds is thought to be."""

    @property
    def known_profiles(self) -> dict[str, Profile]:
        return {kind.name: self.known for kind in self.kinds.values()}

    @property
    def true_profiles(self) -> dict[str, Profile]:
        return {kind.name: kind.true_profile(self.known) for kind in self.kinds.values()}

    def site(self) -> AbstractContextManager[Site]:
        """Namespaces for all members, and a store."""
        rates = [kind.rate for kind in self.kinds.values() for _ in range(MEMBERS_OF_A_KIND)]
        return site(len(rates), rates)

    def plan(self, layout: Layout) -> Plan:
        bounds = [NUM_LAYERS * number // layout.num_stages for number in range(layout.num_stages + 1)]
        names = [self.kinds[letter].name for letter in layout.stages or layout.replicas[0] * layout.num_stages]
        return Plan(
            job="runs",
            model_fingerprint=FINGERPRINT,
            batch_size=BATCH_SIZE,
            grain_size=GRAIN_SIZE,
            num_replicas=layout.num_replicas,
            stages=tuple(
                StagePlan(first_layer=first, end_layer=end, offer=name, memory_bytes=1)
                for first, end, name in zip(bounds, bounds[1:], names, strict=False)
            ),
            schedule=self.schedule,
            transport=self.transport,
            all_reduce="auto",
            replica_offers=tuple(self.kinds[letter].name for letter in layout.replicas),
            offers=tuple(kind.offer for kind in self.kinds.values()),
        )

    @property
    def known_links(self) -> tuple[Link, ...]:
        rates = {kind.name: kind.known_rate for kind in self.kinds.values()}
        if self.transport == "store":
            ends = [pair for name in rates for pair in ((name, STORE_SITE), (STORE_SITE, name))]
        else:
            ends = [(one, other) for one in rates for other in rates]
        return tuple(
            Link(
                from_site=one,
                to_site=other,
                bandwidth_bytes_per_s=min(rates.get(one, 1e12), rates.get(other, 1e12)),
                rtt_s=0.001,
                source="made up",
                date=DATE,
            )
            for one, other in ends
        )


def draw(number: int, transport: TransportName, ran: Layout, asked: Layout, generator: random.Random) -> Case:
    kinds = {
        letter: Kind(
            name=f"kind-{letter}",
            rate=round(generator.uniform(16e6, 40e6)),
            rate_factor=generator.choice((generator.uniform(0.5, 0.8), generator.uniform(1.25, 2.0))),
            forward_factor=generator.uniform(0.6, 1.8),
            backward_factor=generator.uniform(0.6, 1.8),
        )
        for letter in "xy"
    }
    schedule: ScheduleName = generator.choice(("gpipe", "1f1b"))
    return Case(number, transport, ran, asked, kinds, schedule, known_profile(generator))


def known_profile(generator: random.Random) -> Profile:
    """Layers of different times, with messages and gradients of different sizes."""
    layers = [
        made_layer(
            f"layer {number}",
            generator.uniform(0.0025, 0.0075),
            parameter_bytes=round(generator.uniform(4e5, 1e6)) // 4 * 4,
            boundary_bytes=0 if number == NUM_LAYERS - 1 else round(generator.uniform(4e5, 8e5)),
        )
        for number in range(NUM_LAYERS)
    ]
    return made_profile("runs", layers, batch_size=BATCH_SIZE, num_steps=100)


@dataclass
class Watch:
    """What happens in a run besides its steps."""

    busy: Busy = field(default_factory=Busy)
    changed_at: list[int] = field(default_factory=list)
    """First steps of rosters with other shares."""

    def on_event(self, event: Event) -> None:
        self.busy.on_event(event)
        if isinstance(event, RosterChanged):
            self.changed_at.append(event.step)

    def settled_s(self, rehearsal: Rehearsal) -> float:
        """Median of the steps after those that warm up, and after the last change of shares.

        The first of `steps_s` is that of step 1, and the step in which shares change takes a little longer.
        """
        first = max([WARM_UP, *(step + 1 for step in self.changed_at)])
        return statistics.median(rehearsal.steps_s[first:])


def measure(quick: bool, chosen: slice) -> Iterator[Row]:
    """Run some cases at a time, each in a process with a network of its own."""
    print(f"seed {SEED}", file=sys.stderr)
    running: list[subprocess.Popen[bytes]] = []

    def row_of(number: int) -> Row:
        command = ["unshare", "--net", sys.executable, "-m", "benchmarks.runs", "--alone", str(number)]
        process = subprocess.Popen([*command, *(["--quick"] if quick else [])], stdout=subprocess.PIPE)
        running.append(process)
        output, _ = process.communicate()
        assert process.returncode == 0, f"case {number} failed"
        row: Row = json.loads(output)
        print(
            f"case {number}: corrected {row['corrected_s']:.3f} s, measured {row['measured_s']:.3f} s", file=sys.stderr
        )
        return row

    numbers = list(enumerate(cases(quick)))[chosen]
    for transport, num_parallel in NUM_PARALLEL.items():
        with ThreadPoolExecutor(num_parallel) as pool:
            try:
                yield from pool.map(row_of, [number for number, (own, _) in numbers if own == transport])
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in running:
                    process.terminate()  # otherwise leaving the pool would wait for them


def run_alone(number: int, quick: bool) -> None:
    """Run one case in this process, and print its row."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    generator = random.Random(SEED)
    every = [draw(number, transport, *pair, generator) for number, (transport, pair) in enumerate(cases(quick))]
    learned = learn(every[number], QUICK_STEPS if quick else NUM_STEPS)
    print(json.dumps(check(every[number], learned)))


def cases(quick: bool) -> list[tuple[TransportName, tuple[Layout, Layout]]]:
    every = [(transport, pair) for transport in TRANSPORTS for pair in PAIRS]
    return every[:: len(PAIRS) + 3] if quick else every


def learn(case: Case, num_steps: int) -> RunKnowledge:
    """Run the first layout of a case for so many steps, and correct what was known by what its members measured."""
    plan = with_shares(case.plan(case.ran), case.known_profiles)
    with case.site() as lab:
        folder = open_store(f"{lab.folder_of(case.transport)}/{secrets.token_hex(4)}")
        rehearse(lab, case, plan, folder, num_steps)
        return learn_from_runs(case.known_profiles, case.known_links, [folder.url])


def check(case: Case, learned: RunKnowledge) -> Row:
    """Predict the second layout of a case with and without what was learned, and run it."""
    before = with_shares(case.plan(case.asked), case.known_profiles)
    after = with_shares(case.plan(case.asked), learned.profiles)
    before_s = predicted_s(before, case.known_profiles, case.known_links)
    after_s = predicted_s(after, learned.profiles, learned.links)
    watch = Watch()
    with case.site() as lab:
        folder = open_store(f"{lab.folder_of(case.transport)}/{secrets.token_hex(4)}")
        rehearsal = rehearse(lab, case, after, folder, WARM_UP + NUM_CHECKED_STEPS, watch)
    measured_s = watch.settled_s(rehearsal)
    return {
        "case": case.number,
        "transport": case.transport,
        "ran": str(case.ran),
        "layout": str(case.asked),
        "shares": ":".join(map(str, after.shares)),
        "changes": len(watch.changed_at),
        "by_profile_s": before_s,
        "corrected_s": after_s,
        "measured_s": measured_s,
        "profile_error": abs(before_s / measured_s - 1),
        "corrected_error": abs(after_s / measured_s - 1),
        "busy": watch.busy.share,
    }


def with_shares(plan: Plan, profiles: dict[str, Profile]) -> Plan:
    """Give replicas of different kinds as many grains as fit their speeds in these profiles."""
    if not plan.replica_offers:
        return plan
    times = [stage_times(profiles[name], 0, NUM_LAYERS, plan.grain_size) for name in plan.replica_offers]
    paces = [each.forward_s + each.backward_s for each in times]
    return structs.replace(plan, shares=balanced_shares(paces, BATCH_SIZE // GRAIN_SIZE))


def rehearse(
    lab: Site,
    case: Case,
    plan: Plan,
    folder: ObjectStore,
    num_steps: int,
    watch: Watch | None = None,
) -> Rehearsal:
    """Run a plan on members that take their true times, each in a namespace of its kind."""
    truth = case.true_profiles
    rows = [
        [
            stage_times(truth[plan.offer_of(stage, replica).name], *span, plan.grain_size, is_direct=plan.is_direct)
            for stage, span in enumerate(plan.partition)
        ]
        for replica in range(plan.num_replicas)
    ]
    names = [f"r{replica}s{stage}" for replica in range(plan.num_replicas) for stage in range(len(plan.stages))]
    homes = dict(zip(names, homes_of(lab, case, [offer.name for offer in plan.member_offers]), strict=True))
    platform = LocalPlatform(lambda launch: homes[launch.member])
    on_event = {} if watch is None else {"on_event": watch.on_event}
    return rehearse_stages(plan, rows, (), num_steps, folder, platform, **on_event)


def homes_of(lab: Site, case: Case, names: Sequence[str]) -> Iterator[list[str]]:
    """Commands that start members of these kinds, each in another namespace."""
    members = iter(lab.lab.members)
    free = {kind.name: [next(members) for _ in range(MEMBERS_OF_A_KIND)] for kind in case.kinds.values()}
    for name in names:
        yield free[name].pop().prefix


def predicted_s(plan: Plan, profiles: dict[str, Profile], links: Sequence[Link]) -> float:
    return simulate_step(*lay_out(plan, World(profiles, directed_links(links)))).step_s


def summarise(rows: list[Row]) -> list[Row]:
    by_profile, by_run = (
        statistics.fmean(float(row[name] or 0) for row in rows) for name in ("profile_error", "corrected_error")
    )
    worst = max(float(row["corrected_error"] or 0) for row in rows)
    return [
        {
            "mean_profile_error": by_profile,
            "mean_corrected_error": by_run,
            "worst_corrected_error": worst,
            "of_profile_error": by_run / by_profile,
            "seed": SEED,
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--cases", default=":", help="the cases to run, as FIRST:END")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    own, rest = parser.parse_known_args()
    if own.alone is not None:
        run_alone(own.alone, "--quick" in rest)
        return
    first, _, end = own.cases.partition(":")
    chosen = slice(int(first) if first else None, int(end) if end else None)
    run_benchmark(
        "predictions from runs",
        lambda quick: measure(quick, chosen),
        lambda quick: len(cases(quick)[chosen]),
        summarise,
        arguments=rest,
    )


if __name__ == "__main__":
    main()

"""Step times of layouts that were not run, predicted from a profile and from what a run of another layout measured.

Members are processes in network namespaces, of two kinds: each kind has a site, a link rate and a speed of its own.
Computing sleeps, and everything else is real. The profile and the known links are wrong by random factors, which differ
between the kinds. One layout runs, its members measure, and profile and links are corrected. Then another layout is
predicted twice, from the profile alone and from the corrected one, and runs.

Errors are |predicted − measured| / measured of the mean step.
"""

import os
import random
import secrets
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from benchmarks.harness import Row, run_benchmark
from lab.load import Busy
from lab.rehearsals import Site, rehearse_stages, site
from zooid.catalog import local_offer
from zooid.coordinator.measurements.rehearsed_run import Rehearsal
from zooid.core.plans.plan import Plan, ScheduleName, StagePlan, TransportName
from zooid.core.plans.profile import Bytes, DeviceKind, GradientReady, LayerProfile, Profile, Spread, TimePoint
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.platforms.local import LocalPlatform
from zooid.predictor import World, corrected, directed_links, lay_out, simulate_step, stage_times
from zooid.store import ObjectStore, open_store
from zooid.store.member_measurements import read_measurements

SEED = int(os.environ.get("ZOOID_BENCHMARK_SEED", "11"))
NUM_STEPS = 100
QUICK_STEPS = 24
NUM_CHECKED_STEPS = 20
WARM_UP = 3
"""Steps that are not counted: members learn in them when to look for one another's messages."""
NUM_LAYERS = 8
BATCH_SIZE, GRAIN_SIZE = 8, 1
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
    transport: TransportName
    ran: Layout
    asked: Layout
    kinds: dict[str, Kind]
    schedule: ScheduleName

    def plan(self, layout: Layout) -> Plan:
        bounds = [NUM_LAYERS * number // layout.num_stages for number in range(layout.num_stages + 1)]
        names = [self.kinds[letter].name for letter in layout.stages or layout.replicas[0] * layout.num_stages]
        return Plan(
            job="runs",
            model_fingerprint="made up",
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


def draw(transport: TransportName, ran: Layout, asked: Layout, generator: random.Random) -> Case:
    kinds = {
        letter: Kind(
            name=f"kind-{letter}",
            rate=round(generator.uniform(8e6, 20e6)),
            rate_factor=generator.choice((generator.uniform(0.5, 0.8), generator.uniform(1.25, 2.0))),
            forward_factor=generator.uniform(0.6, 1.8),
            backward_factor=generator.uniform(0.6, 1.8),
        )
        for letter in "xy"
    }
    return Case(transport, ran, asked, kinds, generator.choice(("gpipe", "1f1b")))


def known_profile(generator: random.Random) -> Profile:
    """Layers of different times, with messages and gradients of different sizes."""
    return Profile(
        job="runs",
        model_fingerprint="made up",
        zooid_version="0",
        torch_version="0",
        date=DATE,
        device=DeviceKind(kind="cpu", name="cpu", num_threads=1, num_cores=1.0, score=1e10),
        num_samples=100 * BATCH_SIZE,
        batch_size=BATCH_SIZE,
        largest_grain=BATCH_SIZE,
        knee=1,
        epochs=1,
        load_s_per_sample=0.0,
        optimizer_s_per_byte=1e-9,
        optimizer_bytes_per_parameter_byte=2.0,
        reduce_s_per_byte=0.0,
        startup_cpu_s=0.0,
        runtime_bytes=1,
        inputs=Bytes(),
        memory_overhead=0.0,
        spread=Spread(of_steps=0.0, of_runs=0.0),
        layers=tuple(_layer(number, generator) for number in range(NUM_LAYERS)),
        links=(),
    )


def _layer(number: int, generator: random.Random) -> LayerProfile:
    forward_s = generator.uniform(0.004, 0.012)
    num_bytes = round(generator.uniform(3e5, 8e5)) // 4 * 4
    is_last = number == NUM_LAYERS - 1
    return LayerProfile(
        name=f"layer {number}",
        parameter_bytes=num_bytes,
        buffer_bytes=0,
        boundary=Bytes(per_sample=0.0 if is_last else float(round(generator.uniform(3e5, 6e5)))),
        activations=Bytes(),
        forward_peak=Bytes(),
        backward_peak=Bytes(),
        points=(TimePoint(num_samples=1, forward_s=forward_s, backward_s=2 * forward_s),),
        gradients=(GradientReady(name=f"weight {number}", num_bytes=num_bytes, at_share=0.5),),
    )


def true_profiles(case: Case, known: Profile) -> dict[str, Profile]:
    def scaled(layer: LayerProfile, kind: Kind) -> LayerProfile:
        [point] = layer.points
        true_point = structs.replace(
            point,
            forward_s=point.forward_s * kind.forward_factor,
            backward_s=point.backward_s * kind.backward_factor,
        )
        return structs.replace(layer, points=(true_point,))

    return {
        kind.name: structs.replace(known, layers=tuple(scaled(layer, kind) for layer in known.layers))
        for kind in case.kinds.values()
    }


def measure(quick: bool) -> Iterator[Row]:
    print(f"seed {SEED}", file=sys.stderr)
    generator = random.Random(SEED)
    for number, (transport, (ran, asked)) in enumerate(cases(quick)):
        yield compare(number, draw(transport, ran, asked, generator), known_profile(generator), quick)


def cases(quick: bool) -> list[tuple[TransportName, tuple[Layout, Layout]]]:
    every = [(transport, pair) for transport in TRANSPORTS for pair in PAIRS]
    return every[:: len(PAIRS) + 3] if quick else every


def compare(number: int, case: Case, known: Profile, quick: bool) -> Row:
    rates = [kind.rate for kind in case.kinds.values() for _ in range(MEMBERS_OF_A_KIND)]
    truth = true_profiles(case, known)
    profiles = dict.fromkeys(truth, known)
    busy = Busy()
    with site(len(rates), rates) as lab:
        ran = case.plan(case.ran)
        folder = open_store(f"{lab.folder_of(case.transport)}/{secrets.token_hex(4)}")
        rehearse(lab, case, ran, truth, folder, QUICK_STEPS if quick else NUM_STEPS)
        asked = case.plan(case.asked)
        learned = corrected(profiles, case.known_links, ran, read_measurements(folder).members)
        before_s = predicted_s(asked, profiles, case.known_links)
        after_s = predicted_s(asked, learned.profiles, learned.links)
        checked = open_store(f"{lab.folder_of(case.transport)}/{secrets.token_hex(4)}")
        num_steps = WARM_UP + (QUICK_STEPS if quick else NUM_CHECKED_STEPS)
        rehearsal = rehearse(lab, case, asked, truth, checked, num_steps, busy)
    measured_s = statistics.fmean(rehearsal.steps_s[WARM_UP:])
    return {
        "case": number,
        "transport": case.transport,
        "ran": str(case.ran),
        "layout": str(case.asked),
        "by_profile_s": before_s,
        "corrected_s": after_s,
        "measured_s": measured_s,
        "profile_error": abs(before_s / measured_s - 1),
        "corrected_error": abs(after_s / measured_s - 1),
        "busy": busy.share,
    }


def rehearse(
    lab: Site,
    case: Case,
    plan: Plan,
    truth: dict[str, Profile],
    folder: ObjectStore,
    num_steps: int,
    busy: Busy | None = None,
) -> Rehearsal:
    """Run a plan on members that take their true times, each in a namespace of its kind."""
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
    on_event = {} if busy is None else {"on_event": busy.on_event}
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


if __name__ == "__main__":
    run_benchmark("predictions from runs", measure, lambda quick: len(cases(quick)), summarise)

"""Configurations to predict, drawn from a seed: pipelines of sleeping members on all kinds of links."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.rehearsals import Scene
from zooid.core.plans.plan import ScheduleName, TransportName
from zooid.core.plans.stage import Bucket, StageTimes
from zooid.schedule.buckets import cut_buckets

MB = 1_000_000
NUM_PARAMETERS = 16
LEAST_SHARE = 0.42


@dataclass(frozen=True, order=True)
class Place:
    """Members' links, and how far the store is, or they are from one another."""

    transport: TransportName
    rates: tuple[int, ...]
    """Bytes a second of each member, each way."""
    round_trip_s: float = 0.0

    @property
    def sites(self) -> list[str]:
        """Members whose links are alike are one site."""
        return [f"lab-{rate // MB}" for rate in self.rates]

    def slower(self) -> "Place":
        return Place(self.transport, tuple(rate // 2 for rate in self.rates), self.round_trip_s)


PLACES = (
    Place("tcp", (20 * MB,) * 8),
    Place("tcp", (5 * MB,) * 16),
    Place("tcp", (20 * MB, 8 * MB) * 3),
    Place("tcp", (8 * MB,) * 8, 0.010),
    Place("store", (10 * MB,) * 8),
    Place("store", (4 * MB,) * 16, 0.010),
    Place("store", (16 * MB, 8 * MB) * 2, 0.030),
)
LAYOUTS = tuple(
    (replicas, stages) for replicas in (1, 2, 3, 4, 6, 8) for stages in (1, 2, 3, 4, 8) if 2 <= replicas * stages <= 16
)


@dataclass(frozen=True)
class RealCase:
    """Two members that really train."""

    job: str
    """As `jobs/plain.py` reads it."""
    layout: tuple[int, int]
    place: Place
    grain_size: int
    schedule: ScheduleName


REAL_JOBS = ("resnet,32,16,2,32,-1", "gpt2,16,128,4,1000,64,-1", "gpt2,8,192,6,500,96,-1")
REAL_PLACES = (
    Place("tcp", (4 * MB,) * 2),
    Place("tcp", (16 * MB,) * 2, 0.005),
    Place("store", (8 * MB,) * 2),
    Place("store", (24 * MB,) * 2, 0.010),
)


def real_cases(number: int, generator: random.Random) -> Iterator[RealCase]:
    """Every place as often as any other; the rest is drawn."""
    for at in range(number):
        job = REAL_JOBS[generator.randrange(len(REAL_JOBS))]
        batch_size = int(job.split(",")[1])
        yield RealCase(
            job=job,
            layout=generator.choice(((1, 2), (2, 1))),
            place=REAL_PLACES[at % len(REAL_PLACES)],
            grain_size=batch_size // generator.choice((2, 4)),
            schedule=generator.choice(("gpipe", "1f1b")),
        )


def draw(place: Place, number: int, share_of: Callable[[Scene], float], generator: random.Random) -> Iterator[Scene]:
    """So many scenes for a place, every other one with much to transfer, by its predicted share of the step; the
    largest crew of the place is among them."""
    most = len(place.rates)
    fitting = [layout for layout in LAYOUTS if layout[0] * layout[1] <= most]
    largest = [layout for layout in fitting if layout[0] * layout[1] == most]
    for at in range(number):
        layout = generator.choice(largest if at == 0 else fitting)
        is_heavy = at % 2 == 0
        scene = _scene(place, layout, is_heavy, generator)
        while is_heavy and share_of(scene) < LEAST_SHARE:
            scene = _scene(place, layout, is_heavy, generator)
        yield scene


def _scene(place: Place, layout: tuple[int, int], is_heavy: bool, generator: random.Random) -> Scene:
    num_replicas, num_stages = layout
    slowest = min(place.rates[: num_replicas * num_stages])
    schedule: ScheduleName = generator.choice(("gpipe", "1f1b"))
    mean_s = generator.uniform(0.03, 0.09)
    num_grains = generator.randint(3, 8) if num_stages > 1 else generator.randint(1, 4)
    hops = 2 if place.transport == "store" else 1
    wanted_s = generator.uniform(0.8, 2.0) if is_heavy else generator.uniform(0.05, 0.3)
    """Of transfers, for each second of computing."""
    in_reduce = generator.uniform(0.2, 0.6) if num_replicas > 1 and num_stages > 1 else float(num_stages == 1)
    compute_s = num_grains * 3 * mean_s
    crossing = (1 - in_reduce) * wanted_s * 1.5 * mean_s / hops * slowest
    reduced = in_reduce * wanted_s * compute_s * slowest / 2
    is_unequal = num_replicas > 1 and generator.random() < 0.3
    speeds = tuple(1.0 if replica else 1.5 for replica in range(num_replicas)) if is_unequal else ()
    shares: tuple[int, ...] = ()
    if is_unequal and num_grains > 1:
        shares = (num_grains - 1, num_grains + 1, *[num_grains] * (num_replicas - 2))
    return Scene(
        num_replicas=num_replicas,
        stages=tuple(
            _stage(
                mean_s * generator.uniform(0.75, 1.25),
                crossing * generator.uniform(0.6, 1.4) if stage < num_stages - 1 else 0.0,
                reduced * generator.uniform(0.6, 1.4),
                place.transport,
            )
            for stage in range(num_stages)
        ),
        num_grains=num_grains,
        schedule=schedule,
        ahead=generator.randint(0, 1) if schedule == "1f1b" else 0,
        transport=place.transport,
        speeds=speeds,
        shares=shares,
    )


def _stage(forward_s: float, out_bytes: float, parameter_bytes: float, transport: TransportName) -> StageTimes:
    """Parameters that a backward completes one after the other, in equal times."""
    sizes = [max(4, int(parameter_bytes / NUM_PARAMETERS) // 4 * 4)] * NUM_PARAMETERS
    return StageTimes(
        forward_s=forward_s,
        backward_s=2 * forward_s,
        out_bytes=float(int(out_bytes)),
        buckets=tuple(
            Bucket(num_bytes=sum(sizes[first:end]), at_share=end / NUM_PARAMETERS)
            for first, end in cut_buckets(sizes, is_direct=transport != "store")
        ),
        reduce_s=0.0,
        update_s=0.002,
    )

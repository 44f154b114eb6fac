"""Rehearsed pipelines over slow links against the optimum, and a real one against stock torch.distributed.pipelining.

Rehearsed: members are processes in network namespaces with 20 MB/s each way; compute sleeps, everything else is real.
The optimum is no schedule's: it follows from times and bytes alone, at the links' nominal rate, with every overlap free
(see `zooid.predictor.step_bounds`).

`simulated_ratio` is what the schedule, requests and readers of a store make of it. The rest of `ratio_to_optimum` is
this machine's: members and the store share its cores.

`hidden_share` is the part of a replica's transfer times, added up, that the step does not show: 1 − (step − optimum
without any bytes) / Σ transfers. `overlap_share` is the part of it during which the member at that end computed.

Real: two processes with one thread each compute on the same two stages, by zooid's executor over TCP and by stock
pipelining over Gloo, in turn.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

from msgspec import structs

from benchmarks.harness import Row, run_benchmark
from lab.one_site import one_site
from lab.rehearsals import Scene, Site, site
from lab.runs import run_by_hand
from zooid.core.environment import member_environment
from zooid.core.plans.plan import ScheduleName, TransportName
from zooid.core.plans.stage import Bucket, StageTimes
from zooid.core.runs import keys
from zooid.core.runs.step_parts import parts_by_member, total_parts
from zooid.predictor import DirectedLink, lower_bound_s, simulate_step
from zooid.schedule.buckets import cut_buckets

LINK_BYTES_PER_S = 20_000_000
MESSAGE_BYTES = 500_000
"""25 ms, twice for each grain and cut: transfers take 31 % of the time of computing, 120 ms a grain and stage."""
PARAMETER_BYTES = 2_000_000
NUM_PARAMETERS = 16
COMPUTE_S = ((0.040, 0.080), (0.042, 0.078), (0.038, 0.082), (0.040, 0.080))
UPDATE_S = 0.005
NUM_STEPS: dict[TransportName, int] = {"tcp": 5, "store": 25}
"""Readers of a store learn over the first steps when messages arrive, and a run has thousands."""

SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b")
REAL_JOB_FILE = Path(__file__).parent / "jobs" / "plain.py"
REAL_JOB = "resnet,32,16,2,32,4"
"""A batch of 32 in grains of 4."""
REAL_STARTS = 7
"""Of both processes: where their memory happens to lie makes either side up to 1 % faster, as long as they live."""
REAL_ROUNDS = 5
"""Of each start."""
AHEAD: dict[ScheduleName, int] = {"gpipe": 0, "1f1b": 1}
"""As a simulation finds it, with messages that take any time; stock pipelining has no such choice."""
REAL_TIMEOUT_S = 180.0


def stages(is_direct: bool) -> tuple[StageTimes, ...]:
    last = len(COMPUTE_S) - 1
    return tuple(
        StageTimes(
            forward_s=forward_s,
            backward_s=backward_s,
            out_bytes=MESSAGE_BYTES if number < last else 0,
            buckets=buckets(is_direct),
            reduce_s=0.0,
            update_s=UPDATE_S,
        )
        for number, (forward_s, backward_s) in enumerate(COMPUTE_S)
    )


def buckets(is_direct: bool) -> tuple[Bucket, ...]:
    """Of parameters that a backward completes one after the other, in equal times."""
    sizes = [PARAMETER_BYTES // NUM_PARAMETERS] * NUM_PARAMETERS
    cuts = cut_buckets(sizes, is_direct=is_direct)
    return tuple(Bucket(num_bytes=sum(sizes[first:end]), at_share=end / NUM_PARAMETERS) for first, end in cuts)


def optimum_s(scene: Scene, link_bytes_per_s: float = LINK_BYTES_PER_S) -> float:
    """See `zooid.predictor.step_bounds`: no order of actions is faster."""
    layout = one_site(scene.stages, DirectedLink(bytes_per_s=link_bytes_per_s, rtt_s=0.0), transport=scene.transport)
    return lower_bound_s(layout, [scene.num_grains] * scene.num_replicas)


def reduce_s(stage: StageTimes, num_replicas: int, link_bytes_per_s: float) -> float:
    """2s(n−1)/(nw): what comes down everybody's link."""
    num_bytes = sum(bucket.num_bytes for bucket in stage.buckets)
    return 2 * num_bytes * (num_replicas - 1) / (num_replicas * link_bytes_per_s)


def scenes(quick: bool) -> list[Scene]:
    """Through a store with a single replica only: this machine's S3 server is busy with that."""
    transports: tuple[TransportName, ...] = ("tcp",) if quick else ("tcp", "store")
    return [
        with_ahead(Scene(num_replicas, stages(transport != "store"), num_grains, schedule, 0, transport))
        for transport in transports
        for num_replicas in ((1, 2) if transport == "tcp" else (1,))
        for schedule in SCHEDULES
        for num_grains in ((8,) if quick else (8, 16))
    ]


def with_ahead(scene: Scene) -> Scene:
    """1F1B runs ahead as far as a simulation says that it pays: the least that comes within 1 % of the best."""
    if scene.schedule != "1f1b":
        return scene
    tried = [replace(scene, ahead=ahead) for ahead in range(4)]
    times_s = [simulated_s(each) for each in tried]
    return next(each for each, time_s in zip(tried, times_s, strict=True) if time_s <= 1.01 * min(times_s))


def simulated_s(scene: Scene) -> float:
    """With links as they are set, a millisecond for a request, and readers that look when their rules say."""
    layout = one_site(scene.stages, DirectedLink(bytes_per_s=LINK_BYTES_PER_S, rtt_s=0.001), transport=scene.transport)
    return simulate_step(scene.schedule_of_step(), layout).step_s


def measure(quick: bool) -> Iterator[Row]:
    chosen = scenes(quick)
    most = max(scene.num_replicas * len(scene.stages) for scene in chosen)
    with site(most, LINK_BYTES_PER_S) as place:
        for scene in chosen:
            yield row_of(place, scene, 2 if quick else NUM_STEPS[scene.transport])
    for schedule in SCHEDULES:
        yield against_stock(schedule, 1 if quick else REAL_STARTS)


def row_of(place: Site, scene: Scene, num_steps: int) -> Row:
    rehearsed = place.rehearse(scene, num_steps)
    best_s = optimum_s(scene)
    moved_s = sum(2 * stage.out_bytes for stage in scene.stages) / LINK_BYTES_PER_S
    computed_s = sum(stage.forward_s + stage.backward_s for stage in scene.stages)
    free_s = optimum_s(replace(scene, stages=tuple(_without_bytes(stage) for stage in scene.stages)))
    hops = 2 if scene.transport == "store" else 1
    reduced_s = sum(reduce_s(stage, scene.num_replicas, LINK_BYTES_PER_S) for stage in scene.stages)
    transfers_s = hops * scene.num_grains * moved_s + reduced_s
    return {
        "layout": scene.layout,
        "schedule": scene.schedule,
        "ahead": scene.ahead,
        "grains": scene.num_grains,
        "transport": scene.transport,
        "step_s": rehearsed.step_s,
        "optimum_s": best_s,
        "ratio_to_optimum": rehearsed.step_s / best_s,
        "simulated_ratio": simulated_s(scene) / best_s,
        "hidden_share": 1 - max(0.0, rehearsed.step_s - free_s) / transfers_s,
        "overlap_share": total_parts(parts_by_member(rehearsed.timeline).values()).hidden_fraction,
        "transfer_share": moved_s / computed_s,
    }


def _without_bytes(stage: StageTimes) -> StageTimes:
    return structs.replace(stage, out_bytes=0.0, buckets=(Bucket(num_bytes=0, at_share=1.0),))


def against_stock(schedule: ScheduleName, num_starts: int) -> Row:
    """Two processes of one thread each, which run both in turn."""
    own_s: list[float] = []
    stock_s: list[float] = []
    for _ in range(num_starts):
        times_s = pair_times_s(schedule)
        own_s += times_s["zooid"]
        stock_s += times_s["stock"]
    return {
        "layout": "1x2",
        "schedule": schedule,
        "ahead": AHEAD[schedule],
        "grains": 8,
        "transport": "tcp",
        "step_s": statistics.median(own_s),
        "stock_step_s": statistics.median(stock_s),
        "speed_vs_stock": statistics.median(stock / own for stock, own in zip(stock_s, own_s, strict=True)),
    }


def pair_times_s(schedule: ScheduleName) -> dict[str, list[float]]:
    """Of a step by either side, in every round of one start."""
    with (
        mock.patch.dict(os.environ, {"ZOOID_BENCHMARK_JOB": REAL_JOB}),
        run_by_hand(REAL_JOB_FILE, 2, schedule=schedule, ahead=AHEAD[schedule], transport="tcp") as (store, specs),
    ):
        command = [sys.executable, "-m", "lab.pair"]
        processes = [
            subprocess.Popen(
                [*command, f"{store.url}/{keys.spec(spec.member)}", schedule, str(REAL_ROUNDS)],
                stdout=subprocess.PIPE,
                env=member_environment(1),
                text=True,
            )
            for spec in specs
        ]
        try:
            said = [process.communicate(timeout=REAL_TIMEOUT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    times_s: dict[str, list[float]] = json.loads(said[0].splitlines()[-1])
    return times_s


if __name__ == "__main__":
    run_benchmark("pipelines", measure, lambda quick: len(scenes(quick)) + len(SCHEDULES))

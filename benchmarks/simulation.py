"""How long the simulator takes for one step of 64 members, lists and needs included; at most 0.5 s is wanted.

`grains` are those of each replica. Every message, bucket and vote is simulated by itself.
"""

import statistics
import time
from collections.abc import Iterator

from benchmarks.harness import Row, run_benchmark
from lab.one_site import one_site
from zooid.core.plans.plan import TransportName
from zooid.core.plans.stage import Bucket, StageTimes
from zooid.predictor import DirectedLink, simulate_step
from zooid.schedule.pipelines import StepShape

LAYOUTS = ((1, 64, 32), (8, 8, 32), (8, 8, 4), (64, 1, 1))
TRANSPORTS: tuple[TransportName, ...] = ("tcp", "store")
NUM_ROUNDS = 7
MESSAGE_BYTES = 2_000_000
PARAMETER_BYTES = 8_000_000
LINK = DirectedLink(bytes_per_s=50e6, rtt_s=0.001)


def measure(quick: bool) -> Iterator[Row]:
    for transport in TRANSPORTS:
        for num_replicas, num_stages, num_grains in LAYOUTS:
            layout = one_site(
                [stage(number < num_stages - 1) for number in range(num_stages)], LINK, transport=transport
            )
            times_s = []
            for _ in range(1 if quick else NUM_ROUNDS):
                begin_s = time.perf_counter()
                shape = StepShape("1f1b", num_stages, ahead=1)
                grains = [range(at * num_grains, (at + 1) * num_grains) for at in range(num_replicas)]
                timeline = simulate_step(shape.step(grains), layout)
                times_s.append(time.perf_counter() - begin_s)
            yield {
                "layout": f"{num_replicas}x{num_stages}",
                "grains": num_grains,
                "transport": transport,
                "num_actions": len(timeline.intervals),
                "wall_s": statistics.median(times_s),
            }


def stage(sends: bool) -> StageTimes:
    return StageTimes(
        forward_s=0.01,
        backward_s=0.02,
        out_bytes=MESSAGE_BYTES if sends else 0,
        buckets=(Bucket(num_bytes=PARAMETER_BYTES, at_share=1.0),),
        reduce_s=0.001,
        update_s=0.001,
    )


if __name__ == "__main__":
    run_benchmark("simulated steps", measure, lambda quick: len(LAYOUTS) * len(TRANSPORTS))

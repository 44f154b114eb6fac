"""How long the planner's exact search for partition, member sizes and replicas takes, and what it proves.

FuncPipe's own question (§3.4, §5.6): 8 sizes of AWS Lambda functions, up to 32 replicas, its four pairs of weights, and
models of 48 and of 200 layers; FuncPipe's solver takes 274 s on average for a few merged layers. At most 1 s a pair is
wanted for 48 layers, with proof; for 200 layers at most 10 s with a proven gap of at most 2 %.

`wall_s` begins with the plain numbers: everything that is prepared once for a problem is in every row again.

With `--catalog`, the question is `zooid plan --on all --members 16` for a model of 24 layers instead: all offers of the
catalog, with jobs of several lengths, since functions are best for short ones and machines for long ones. At most 5 s
each are wanted.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.baselines.funcpipe_memory import funcpipe_memory_bytes
from benchmarks.harness import Row, run_benchmark
from zooid.catalog import offer
from zooid.coordinator.plans.markets import EVERY, markets_for, offers_named
from zooid.coordinator.plans.plan_search import SEARCH_LIMIT_S
from zooid.core.plans.plan import Limits
from zooid.core.plans.profile import Bytes, DeviceKind, LayerProfile, Profile, Spread, TimePoint
from zooid.planner import search
from zooid.planner.reasons import in_words
from zooid.planner.stage_sizes import Aim, Degree, LayerCosts, MemberSizes, StageSizesProblem, StageSizesSearch
from zooid.predictor.equations.array_checks import Array

MODELS = ("transformer", "cnn", "uneven", "uneven, every size its own bandwidth")
FUNCTIONS_MB = (512, 1024, 2048, 3072, 4096, 6144, 8192, 10240)
REPLICAS = (1, 2, 4, 8, 16, 32)
NUM_GRAINS = 64
WEIGHTS = ((1, 0), (1, 2**16), (1, 2**19), (1, 2**22))
"""FuncPipe §5.1. Its cost is in MB · s: a function's price is by its memory, so that only the unit differs."""
WANTED_S = {48: 1.0, 200: 10.0}
WANTED_GAP = {48: 0.0, 200: 0.02}
WANTED_CATALOG_S = 5.0
JOB_STEPS = (10, 1_000, 100_000)
MARGIN_S = 0.3
"""What a search may run over its limit, which it looks at between places."""
LATENCY_S, SLOWDOWN, BASE_BYTES, MOST_BYTES_PER_S = 0.04, 1.1, 300e6, 70e6


def problem_of(model: str, num_layers: int, seed: int) -> StageSizesProblem:
    """Layers that together are the same model, however many there are; times with noise on every size of its own."""
    generator = np.random.default_rng(seed)
    functions = [offer(f"aws.lambda.{size}") for size in FUNCTIONS_MB]
    vcpus = np.array([function.vcpus for function in functions])
    speed = np.where(vcpus <= 1, vcpus, vcpus**0.85)  # several threads share less than all of the work
    share = 48 / num_layers
    place = np.arange(num_layers)
    noise = 0.03
    ratio: Array = np.full((num_layers, 1), 2.0)
    if model == "transformer":  # attention and feed-forward by turns; a large embedding, a slow head
        is_attention = place % 2 == 0
        forward_s = np.where(is_attention, 0.10, 0.18) * share
        parameters = np.where(is_attention, 16e6, 32e6) * share
        forward_s[0], forward_s[-1], parameters[0], parameters[-1] = 0.02, 0.35, 125e6, 4e6
        activations = np.where(is_attention, 30e6, 24e6) * share
        out_bytes = np.full(num_layers, 2.1e6)
    elif model == "cnn":  # four parts: activations shrink, parameters grow
        part = place * 4 // num_layers
        forward_s = np.array([0.16, 0.12, 0.12, 0.10])[part] * generator.uniform(1, 1.3, num_layers) * share
        parameters = np.array([0.6e6, 2.2e6, 9e6, 48e6])[part] * share
        activations = np.array([40e6, 24e6, 12e6, 6e6])[part] * share
        out_bytes = np.array([12.8e6, 6.4e6, 3.2e6, 1.6e6])[part]
    else:
        forward_s = generator.lognormal(-2.2, 0.8, num_layers) * share
        parameters = generator.lognormal(15.5, 1.2, num_layers) * share
        activations = generator.lognormal(16.5, 0.7, num_layers) * share
        out_bytes = generator.lognormal(14.5, 0.8, num_layers)
        ratio, noise = generator.uniform(1.4, 2.6, (num_layers, 1)), 0.1

    def shaken() -> Array:
        return 1 + noise * generator.standard_normal((num_layers, len(speed))).clip(-2, 2)

    times_s = forward_s[:, None] / speed * shaken()
    is_capped = model != MODELS[-1]
    rate = np.minimum(1.0, 0.4 + 0.35 * vcpus) if is_capped else 0.3 + 0.7 * (vcpus / vcpus[-1]) ** 0.5
    degrees = tuple(Degree(num_replicas=count, num_grains=NUM_GRAINS // count) for count in REPLICAS)
    return StageSizesProblem(
        layers=LayerCosts(times_s, times_s * ratio * shaken(), parameters, out_bytes),
        sizes=MemberSizes(
            memory_bytes=np.array([float(function.memory_bytes) for function in functions]),
            bytes_per_s=MOST_BYTES_PER_S * rate,
            usd_per_s=np.array([function.usd_per_hour / 3600 for function in functions]),
        ),
        degrees=degrees,
        needed_bytes=funcpipe_memory_bytes(parameters, activations, degrees, BASE_BYTES),
        latency_s=LATENCY_S,
        slowdown=SLOWDOWN,
    )


def measure(quick: bool, seed: int) -> Iterator[Row]:
    usd_per_mb_s = offer("aws.lambda.10240").usd_per_hour / 3600 / 10240
    for num_layers in (48,) if quick else (48, 200):
        for model in MODELS:
            problem = problem_of(model, num_layers, seed)
            for weights in WEIGHTS:
                begin_s = time.perf_counter()
                search = StageSizesSearch(problem)
                left_s = WANTED_S[num_layers] - (time.perf_counter() - begin_s)
                limit_s = left_s - MARGIN_S if num_layers > 48 else float("inf")
                pick = search.best(Aim(usd=weights[0], s=weights[1] * usd_per_mb_s), limit_s)
                wall_s = time.perf_counter() - begin_s
                row: dict[str, Any] = {
                    "model": model,
                    "seed": seed,
                    "num_layers": num_layers,
                    "weights": list(weights),
                    "wall_s": wall_s,
                    "status": pick.proof.status,
                    "gap": pick.proof.gap,
                    "time_s": pick.allocation.time_s,
                    "usd": pick.allocation.usd,
                    "num_stages": len(pick.allocation.stages),
                    "num_replicas": pick.allocation.degree.num_replicas,
                    "is_as_wanted": wall_s <= WANTED_S[num_layers] and pick.proof.gap <= WANTED_GAP[num_layers],
                }
                yield row


def transformer_profile(num_steps: int) -> Profile:
    """The profile of 24 layers like those of BERT-Large, with steps of 64 samples, on one core of a round speed."""
    layers = tuple(
        LayerProfile(
            name=f"block {number}",
            parameter_bytes=50_000_000,
            buffer_bytes=0,
            boundary=Bytes(per_sample=2.1e6),
            activations=Bytes(per_sample=30e6),
            forward_peak=Bytes(per_sample=30e6),
            backward_peak=Bytes(),
            points=tuple(
                TimePoint(num_samples=size, forward_s=0.04 * size, backward_s=0.08 * size) for size in (1, 2, 4, 8)
            ),
        )
        for number in range(24)
    )
    return Profile(
        job="transformer",
        model_fingerprint="",
        zooid_version="",
        torch_version="",
        device=DeviceKind(kind="cpu", name="a core", num_threads=1, num_cores=1.0, score=5e10),
        num_samples=64 * num_steps,
        batch_size=64,
        date="2026-11",
        largest_grain=8,
        inputs=Bytes(),
        memory_overhead=0.1,
        knee=1,
        spread=Spread(of_steps=0.02, of_runs=0.02),
        epochs=1,
        load_s_per_sample=0.0,
        optimizer_s_per_byte=1e-10,
        optimizer_bytes_per_parameter_byte=2.0,
        reduce_s_per_byte=1e-10,
        startup_cpu_s=3.0,
        runtime_bytes=300_000_000,
        layers=layers,
        links=(),
    )


def measure_catalog(quick: bool) -> Iterator[Row]:
    """Search all offers of the catalog for jobs of several lengths."""
    for num_steps in JOB_STEPS[: 1 if quick else None]:
        profile = transformer_profile(num_steps)
        begin_s = time.perf_counter()
        offers = offers_named([EVERY])
        markets, _, _ = markets_for(offers, {"local": profile})
        found = search(markets, Limits(max_members=16), limit_s=SEARCH_LIMIT_S)
        wall_s = time.perf_counter() - begin_s
        yield {
            "num_steps": num_steps,
            "offers": len(offers),
            "left_out": sum(len(each.offers) for each in found.left_out),
            "candidates": len(found.candidates),
            "wall_s": wall_s,
            "front": "; ".join(map(in_words, found.front)),
            "gap": found.proof.gap,
            "is_as_wanted": wall_s <= WANTED_CATALOG_S,
        }


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--catalog", action="store_true")
    own, rest = parser.parse_known_args()
    if own.catalog:
        run_benchmark("planning", measure_catalog, lambda quick: 1 if quick else len(JOB_STEPS), arguments=rest)
        return
    print(f"seed {own.seed}", file=sys.stderr)
    run_benchmark(
        "planning",
        lambda quick: measure(quick, own.seed),
        lambda quick: len(MODELS) * len(WEIGHTS) * (1 if quick else 2),
        arguments=rest,
    )


if __name__ == "__main__":
    main()

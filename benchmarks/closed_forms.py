"""How many cases a second the predictor's closed forms evaluate: whole arrays of them against one call for each.

`ratio` is how many times as many an array brings. A search looks at hundreds of thousands of layouts; at least 100,000
a second are wanted of every form.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TypeAlias

import numpy as np

from benchmarks.harness import Row, run_benchmark
from zooid.predictor.equations import (
    Pipeline,
    averaging_s,
    funcpipe_step_s,
    hierarchical_s,
    pipelined_s,
    ring_s,
    speedup_of_members,
    streaming_bound_s,
)
from zooid.predictor.equations.array_checks import Array

NUM_CASES = 100_000
NUM_ALONE = 1_000
NUM_STAGES = 4
NUM_SITES = 4
NUM_ROUNDS = 7

Evaluate: TypeAlias = Callable[[slice | int], object]
"""The form, of those cases."""


def forms() -> dict[str, Evaluate]:
    """Every form on cases that were drawn at random."""
    generator = np.random.default_rng(0)

    def drawn(low: float, high: float, *axes: int) -> Array:
        return generator.uniform(low, high, (NUM_CASES, *axes))

    size, rate, latency = drawn(1e6, 1e9), drawn(1e7, 1e9), drawn(0.001, 0.1)
    members, grains = generator.integers(2, 64, NUM_CASES), generator.integers(1, 64, NUM_CASES)
    sites, wide = generator.integers(1, 9, (NUM_CASES, NUM_SITES)), drawn(1e6, 1e8, NUM_SITES)
    stages = Pipeline(
        forward_s=drawn(0.01, 1.0, NUM_STAGES),
        backward_s=drawn(0.01, 2.0, NUM_STAGES),
        out_bytes=drawn(1e5, 1e8, NUM_STAGES),
        parameter_bytes=drawn(1e5, 1e8, NUM_STAGES),
        bytes_per_s=drawn(1e7, 1e9, NUM_STAGES),
    )

    def some(at: slice | int) -> Pipeline:
        return Pipeline(*(getattr(stages, field.name)[at] for field in fields(stages)))

    return {
        "pipelined": lambda at: pipelined_s(size[at], members[at], rate[at], latency[at]),
        "streaming": lambda at: streaming_bound_s(size[at], members[at], rate[at]),
        "ring": lambda at: ring_s(size[at], members[at], rate[at], latency[at]),
        "averaging": lambda at: averaging_s(size[at], members[at], rate[at] / 10, rate[at], latency[at], 4),
        f"hierarchical, {NUM_SITES} sites": lambda at: hierarchical_s(size[at], sites[at], rate[at, None], wide[at]),
        f"funcpipe, {NUM_STAGES} stages": lambda at: funcpipe_step_s(
            some(at), grains[at], members[at], latency_s=latency[at], slowdown=1.1
        ),
        "granularity": lambda at: speedup_of_members(size[at] / rate[at], members[at], members[at] + 1),
    }


def measure(quick: bool) -> Iterator[Row]:
    for name, evaluate in forms().items():
        num_rounds = 3 if quick else NUM_ROUNDS
        together = statistics.median(cases_per_s(evaluate, [slice(None)], NUM_CASES) for _ in range(num_rounds))
        alone = statistics.median(cases_per_s(evaluate, range(NUM_ALONE), NUM_ALONE) for _ in range(num_rounds))
        yield {
            "form": name,
            "cases": NUM_CASES,
            "cases_per_s": together,
            "alone_per_s": alone,
            "ratio": together / alone,
            "is_fast_enough": together >= 100_000,
        }


def cases_per_s(evaluate: Evaluate, parts: range | list[slice], num_cases: int) -> float:
    begin_s = time.perf_counter()
    for part in parts:
        evaluate(part)
    return num_cases / (time.perf_counter() - begin_s)


if __name__ == "__main__":
    run_benchmark("closed forms", measure, lambda quick: len(forms()))

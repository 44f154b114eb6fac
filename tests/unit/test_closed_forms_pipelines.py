"""Closed forms of pipelines equal the pipeline itself, followed grain by grain."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.simulated import pipeline_of, three_phase_s
from tests.unit.paper_formulas import hydrozoa_ring_s, hydrozoa_step_s
from zooid.core.errors import InputError
from zooid.core.plans.stage import Bucket, StageTimes
from zooid.predictor.equations import (
    Pipeline,
    funcpipe_step_s,
    overlapped_step_s,
    pipelined_s,
    ring_s,
    streaming_bound_s,
)

quick = settings(deadline=None, max_examples=100)

times_s = st.floats(0, 100, allow_subnormal=False)
grain_counts = st.integers(1, 12)
replica_counts = st.integers(1, 8)


@st.composite
def pipelines(draw: st.DrawFn, max_stages: int = 5) -> Pipeline:
    num_stages = draw(st.integers(1, max_stages))

    def numbers(values: st.SearchStrategy[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array(draw(st.lists(values, min_size=num_stages, max_size=num_stages)))

    return Pipeline(
        forward_s=numbers(times_s),
        backward_s=numbers(times_s),
        out_bytes=numbers(st.floats(1, 1e6)),
        parameter_bytes=numbers(st.floats(0, 1e6)),
        bytes_per_s=numbers(st.floats(1e3, 1e6)),
    )


def passed_s(station_s: Sequence[float], num_grains: int) -> list[float]:
    """When the last grain leaves each of the stations in a row, each of which takes one grain at a time."""
    left_s = [0.0] * len(station_s)
    for _ in range(num_grains):
        before_s = 0.0
        for at, took_s in enumerate(station_s):
            left_s[at] = before_s = max(before_s, left_s[at]) + took_s
    return left_s


def walked_s(
    pipeline: Pipeline,
    num_grains: int,
    crossings: Callable[[int], list[float]],
    reduce_s: Callable[[int], float],
    slowdown: float = 1.0,
) -> float:
    """The step, station by station; `crossings` are what a message passes behind a stage, forwards."""
    last = len(pipeline.forward_s) - 1
    forwards = [slowdown * float(pipeline.forward_s[0])]
    for stage in range(last):
        forwards += [*crossings(stage), slowdown * float(pipeline.forward_s[stage + 1])]
    turned_s = passed_s(forwards, num_grains)[-1]
    backwards, places = [slowdown * float(pipeline.backward_s[last])], {last: 0}
    for stage in reversed(range(last)):
        backwards += [*reversed(crossings(stage)), slowdown * float(pipeline.backward_s[stage])]
        places[stage] = len(backwards) - 1
    left_s = passed_s(backwards, num_grains)
    return max(turned_s + left_s[places[stage]] + reduce_s(stage) for stage in range(last + 1))


@quick
@given(pipelines(), grain_counts, replica_counts, st.floats(0, 1e-3), st.floats(0, 1))
def test_hydrozoas_runtime_is_that_of_its_pipeline(
    pipeline: Pipeline, num_grains: int, num_replicas: int, alpha: float, beta: float
) -> None:
    def crossings(stage: int) -> list[float]:
        return [float(pipeline.out_bytes[stage] / min(pipeline.bytes_per_s[stage : stage + 2]))]

    def reduce_s(stage: int) -> float:
        rate = float(pipeline.bytes_per_s[stage])
        return float(hydrozoa_ring_s(pipeline.parameter_bytes[stage], num_replicas, rate, alpha, beta))

    stages = range(len(pipeline.forward_s))
    cut_s = [crossings(stage)[0] for stage in stages[:-1]]
    reduced_s = [reduce_s(stage) for stage in stages]
    own = hydrozoa_step_s(pipeline.forward_s.tolist(), pipeline.backward_s.tolist(), cut_s, num_grains, reduced_s)
    assert own == pytest.approx(walked_s(pipeline, num_grains, crossings, reduce_s))


@quick
@given(pipelines(), grain_counts, replica_counts, st.floats(0, 1), st.floats(1, 2))
def test_funcpipes_time_is_that_of_its_pipeline(
    pipeline: Pipeline, num_grains: int, num_replicas: int, latency_s: float, slowdown: float
) -> None:
    def crossings(stage: int) -> list[float]:
        return [float(pipeline.out_bytes[stage] / pipeline.bytes_per_s[end]) + latency_s for end in (stage, stage + 1)]

    def reduce_s(stage: int) -> float:
        if num_replicas == 1:
            return 0.0
        moved_s = 2 * float(pipeline.parameter_bytes[stage] / pipeline.bytes_per_s[stage])
        return moved_s + (2 + num_replicas) * latency_s

    own = funcpipe_step_s(pipeline, num_grains, num_replicas, latency_s=latency_s, slowdown=slowdown)
    assert own == pytest.approx(walked_s(pipeline, num_grains, crossings, reduce_s, slowdown))


@quick
@given(pipelines(), grain_counts, replica_counts, st.floats(1, 1e3))
def test_more_bandwidth_is_never_slower(pipeline: Pipeline, num_grains: int, num_replicas: int, factor: float) -> None:
    faster = Pipeline(
        pipeline.forward_s,
        pipeline.backward_s,
        pipeline.out_bytes,
        pipeline.parameter_bytes,
        pipeline.bytes_per_s * factor,
    )
    plain = funcpipe_step_s(pipeline, num_grains, num_replicas)
    assert 0 <= funcpipe_step_s(faster, num_grains, num_replicas) <= plain * (1 + 1e-12)


@pytest.mark.parametrize("all_reduce", [three_phase_s, pipelined_s, streaming_bound_s, ring_s])
def test_a_stage_may_be_reduced_by_any_algorithm(all_reduce: Callable[..., Any]) -> None:
    pipeline = Pipeline(*(np.array([value]) for value in (1.0, 2.0, 0.0, 280e6, 70e6)))
    own = funcpipe_step_s(pipeline, 4, 8, latency_s=0.04, all_reduce=all_reduce)
    assert own == pytest.approx(12 + float(all_reduce(280e6, 8, 70e6, 0.04)))


def test_many_partitions_are_one_call_and_shorter_ones_end_with_stages_of_zeros() -> None:
    two = ([1.0, 2.0], [2.0, 4.0], [9e5, 0.0], [3e6, 6e6], [1e6, 1e6])
    three = ([1.0, 1.0, 1.0], [3.0, 1.0, 2.0], [9e5, 4e5, 0.0], [3e6, 5e6, 1e6], [1e6, 2e6, 1e6])
    padded = [[*values, 1e6 if at == 4 else 0.0] for at, values in enumerate(two)]
    both = Pipeline(*(np.array([short, long]) for short, long in zip(padded, three, strict=True)))
    alone = [Pipeline(*map(np.array, each)) for each in (two, three)]
    grains, replicas = np.array([8, 5]), np.array([2, 4])
    found = funcpipe_step_s(both, grains, replicas, latency_s=0.3, slowdown=1.2)
    wanted = [
        funcpipe_step_s(each, m, a, latency_s=0.3, slowdown=1.2)
        for each, m, a in zip(alone, grains, replicas, strict=True)
    ]
    assert found.tolist() == pytest.approx([float(each) for each in wanted])


def test_stages_of_a_plan_are_a_pipeline() -> None:
    stages = [
        StageTimes(
            forward_s=1.0 + number,
            backward_s=2.0,
            out_bytes=10.0 * (1 - number),
            buckets=(Bucket(num_bytes=3, at_share=0.5), Bucket(num_bytes=4, at_share=1.0)),
            reduce_s=0.0,
            update_s=0.0,
        )
        for number in range(2)
    ]
    pipeline = pipeline_of(stages, 5.0)
    assert pipeline.forward_s.tolist() == [1.0, 2.0]
    assert pipeline.out_bytes.tolist() == [10.0, 0.0]
    assert pipeline.parameter_bytes.tolist() == [7.0, 7.0]
    assert pipeline.bytes_per_s.tolist() == [5.0, 5.0]


def test_stages_that_do_not_fit_together_are_refused() -> None:
    one, two = np.ones(1), np.ones(2)
    with pytest.raises(InputError, match="`forward_s` has 2, `backward_s` has 1"):
        Pipeline(two, one, two, two, two)
    with pytest.raises(InputError, match="`bytes_per_s` has no axis of"):
        Pipeline(two, two, two, two, np.float64(1.0))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`backward_s` is -1; it must be at least 0"):
        Pipeline(two, -two, two, two, two)
    with pytest.raises(InputError, match=r"`slowdown` is 0.9; it must be at least 1"):
        funcpipe_step_s(Pipeline(two, two, two, two, two), 1, slowdown=0.9)


@quick
@given(times_s, times_s, times_s)
def test_an_exchange_beside_the_backward_shows_only_what_it_takes_longer(
    forward_s: float, backward_s: float, exchange_s: float
) -> None:
    hidden = overlapped_step_s(forward_s, backward_s, min(exchange_s, backward_s))
    assert hidden == forward_s + backward_s
    assert overlapped_step_s(forward_s, backward_s, exchange_s) - hidden == pytest.approx(
        max(0.0, exchange_s - backward_s), abs=1e-9
    )

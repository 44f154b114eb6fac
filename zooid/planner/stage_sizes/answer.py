"""The answers of the search for stage sizes, and the pipelines it builds on the way."""

from dataclasses import dataclass

import numpy as np

from zooid.core.plans.search_result import Proof
from zooid.core.records import Record
from zooid.planner.stage_sizes.problem import Degree, StageSizesProblem
from zooid.predictor.equations import Pipeline, funcpipe_step_s
from zooid.predictor.equations.array_checks import Array


class Allocation(Record, frozen=True, kw_only=True):
    """A partition with the member size of each stage and the number of replicas."""

    stages: tuple[tuple[int, int], ...]
    """The layers [first, end) of every stage."""
    sizes: tuple[int, ...]
    """Index of every stage's member size."""
    degree: Degree
    time_s: float
    """Step time by FuncPipe's closed form."""
    usd: float


class AllocationPick(Record, frozen=True, kw_only=True):
    """The allocation with the least α₁ · cost + α₂ · time."""

    allocation: Allocation
    value: float
    proof: Proof


class AllocationFront(Record, frozen=True, kw_only=True):
    """The Pareto front of time and cost, fastest first."""

    points: tuple[Allocation, ...]
    proof: Proof
    """The gap is the largest fraction by which a cost on the front, or its least time, may exceed the optimum."""


@dataclass(frozen=True)
class BuiltPipeline:
    """A complete pipeline of one degree: first layer, end and size of every stage, the last stage first."""

    degree: int
    time_s: float
    usd_per_s: float
    stages: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class SearchOutcome:
    """The best pipeline that a search found below its limit, and a lower bound of all values."""

    best: BuiltPipeline | None
    value: float
    lower_bound: float
    is_proven: bool
    """Whether the search ran to its end."""


def allocation_of(problem: StageSizesProblem, built: BuiltPipeline) -> Allocation:
    """The allocation of a pipeline, timed by the closed form itself."""
    layers, sizes, degree = problem.layers, problem.sizes, problem.degrees[built.degree]
    first, end, size = np.array(built.stages[::-1]).T
    slowness = problem.slowness(built.degree, first, end, size)

    def stage_s(times_s: Array) -> Array:
        alone_s = np.array([times_s[a:b, column].sum() for a, b, column in zip(first, end, size, strict=True)])
        times: Array = slowness * alone_s
        return times

    pipeline = Pipeline(
        forward_s=stage_s(layers.forward_s),
        backward_s=stage_s(layers.backward_s),
        out_bytes=layers.out_bytes[end - 1],
        parameter_bytes=np.array([layers.parameter_bytes[a:b].sum() for a, b in zip(first, end, strict=True)]),
        bytes_per_s=sizes.bytes_per_s[size],
    )
    time_s = funcpipe_step_s(
        pipeline,
        degree.num_grains,
        degree.num_replicas,
        latency_s=problem.latency_s,
        slowdown=problem.slowdown,
        all_reduce=problem.all_reduce,
    )
    return Allocation(
        stages=tuple(zip(first.tolist(), end.tolist(), strict=True)),
        sizes=tuple(size.tolist()),
        degree=degree,
        time_s=float(time_s),
        usd=float(time_s) * degree.num_replicas * float(problem.usd_per_s(built.degree, first, end, size).sum()),
    )

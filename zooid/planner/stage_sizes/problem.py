"""The problem of FuncPipe's co-optimisation (§3.4): layers, sizes of members, degrees of replication.

It holds plain numbers, so that they can come from a profile and a catalog, from a paper's table, or from a test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zooid.core.errors import InputError
from zooid.core.records import Record, require
from zooid.planner.front import Ints
from zooid.predictor.equations import pipelined_s
from zooid.predictor.equations.all_reduce import AllReduce
from zooid.predictor.equations.array_checks import Array, above_zero, at_least

MAX_LAYERS = 400
"""Arrays hold every span of layers, which limits their number; FuncPipe merges the layers of longer models (§4)."""


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """Costs of every layer for one grain. The first axis is the layer; times have the member size as second axis."""

    forward_s: Array
    backward_s: Array
    parameter_bytes: Array
    out_bytes: Array
    """Size of the message over the cut behind the layer, in each direction; the last layer's is ignored."""

    def __post_init__(self) -> None:
        num_layers = np.size(self.parameter_bytes)
        times = (num_layers, *np.shape(self.forward_s)[-1:])
        shapes = {"forward_s": times, "backward_s": times, "parameter_bytes": (num_layers,), "out_bytes": (num_layers,)}
        _check_arrays(self, shapes)
        if not all(np.isfinite(getattr(self, name)).all() for name in shapes):
            raise InputError("the costs of layers must be finite; leave out a size on which a layer cannot run")
        if not 1 <= num_layers <= MAX_LAYERS:
            raise InputError(f"{num_layers} layers are given, but 1 to {MAX_LAYERS} can be searched")

    def __len__(self) -> int:
        return len(self.forward_s)


@dataclass(frozen=True, eq=False)
class MemberSizes:
    """The sizes that a member may have: FuncPipe's memory sizes, or any offers. The only axis is the size."""

    memory_bytes: Array
    bytes_per_s: Array
    """Bandwidth to the store, and from it."""
    usd_per_s: Array

    def __post_init__(self) -> None:
        _check_arrays(self, dict.fromkeys(("memory_bytes", "bytes_per_s", "usd_per_s"), (np.size(self.memory_bytes),)))
        above_zero("memory_bytes", self.memory_bytes)
        above_zero("bytes_per_s", self.bytes_per_s)
        if not len(self) or not np.isfinite(self.usd_per_s).all():
            raise InputError("`usd_per_s` must be finite, for at least one size; leave out sizes of unknown price")

    def __len__(self) -> int:
        return len(self.memory_bytes)


@dataclass(frozen=True, eq=False)
class FittedSizes:
    """Sizes that grow with the stage: what a member has that gets the memory which its stage needs.

    All arrays are by [degree, first, end, size]. Where a stage does not fit, they may hold anything.
    """

    slowness: Array
    """Factor on the times of the size itself; below 1 where more memory brings speed."""
    dearness: Array
    """Factor on the price of the size itself; above 1 where the stage needs more memory."""


class Degree(Record, frozen=True, kw_only=True):
    """A degree of replication: d replicas of the pipeline, with μ grains each."""

    num_replicas: int
    num_grains: int
    """Number of grains of each replica in a step."""

    def __post_init__(self) -> None:
        for name in ("num_replicas", "num_grains"):
            value = getattr(self, name)
            require(value >= 1, f"`{name}` is {value}; it must be at least 1")


@dataclass(frozen=True)
class Aim:
    """FuncPipe's objective α₁ · cost + α₂ · time (3a), over the pipelines that take less than `max_time_s`."""

    usd: float
    """α₁: the weight of a dollar."""
    s: float
    """α₂: the weight of a second."""
    max_time_s: float = math.inf

    def __post_init__(self) -> None:
        is_valid = 0 <= self.usd < math.inf and 0 <= self.s < math.inf and self.usd + self.s > 0
        require(is_valid, f"the weights ({self.usd}, {self.s}) must be finite, at least 0, and not both 0")

    def value(self, time_s: Array, usd_per_s: Array, num_replicas: int) -> Array:
        """The objective as time · (α₁ · d · usd_per_s + α₂); infinite for pipelines that take too long."""
        value: Array = time_s * (self.usd * num_replicas * usd_per_s + self.s)
        return np.where(time_s < self.max_time_s, value, np.inf) if math.isfinite(self.max_time_s) else value


@dataclass(frozen=True, eq=False)
class StageSizesProblem:
    """FuncPipe's program (3): where to cut, which size each stage has, how many replicas there are."""

    layers: LayerCosts
    sizes: MemberSizes
    degrees: tuple[Degree, ...]
    needed_bytes: Array
    """Memory that a member needs for the stage of layers [first, end), by [degree, first, end]."""
    fitted: FittedSizes | None = None
    """None if all sizes are fixed."""
    latency_s: float = 0.0
    slowdown: float = 1.0
    """β: the factor by which computing is slower beside transfers."""
    all_reduce: AllReduce = pipelined_s

    def __post_init__(self) -> None:
        num_layers, num_sizes = self.layers.forward_s.shape
        if num_sizes != len(self.sizes):
            raise InputError(
                f"layers have times on {num_sizes} sizes, but {len(self.sizes)} sizes are given; give one time for each"
            )
        if not self.degrees:
            raise InputError("no degree of replication is given; give at least Degree(num_replicas=1, num_grains=…)")
        at_least(0, "latency_s", self.latency_s)
        at_least(1, "slowdown", self.slowdown)
        shape = (len(self.degrees), num_layers, num_layers + 1)
        _check_arrays(self, {"needed_bytes": shape}, least=-math.inf)  # entries that are no stage may hold anything
        if self.fitted is not None:
            _check_arrays(self.fitted, dict.fromkeys(("slowness", "dearness"), (*shape, num_sizes)))

    def with_cuts(self, partition: Sequence[tuple[int, int]] | None) -> "StageSizesProblem":
        """The problem whose stages have just these layers [first, end); None leaves the cuts open."""
        if partition is None:
            return self
        needed_bytes = np.full_like(self.needed_bytes, np.inf)
        first, end = np.array(partition).T
        needed_bytes[:, first, end] = self.needed_bytes[:, first, end]
        return replace(self, needed_bytes=needed_bytes)

    def slowness(self, degree: int, first: Ints, end: Ints, size: Ints) -> Array:
        """Factors on the times of these stages, which have more memory than their size itself where they need it."""
        if self.fitted is None:
            return np.ones(len(first))
        factors: Array = self.fitted.slowness[degree, first, end, size]
        return factors

    def usd_per_s(self, degree: int, first: Ints, end: Ints, size: Ints) -> Array:
        """Prices of members of these stages."""
        usd_per_s = self.sizes.usd_per_s[size]
        return usd_per_s if self.fitted is None else usd_per_s * self.fitted.dearness[degree, first, end, size]


def _check_arrays(record: object, shapes: dict[str, tuple[int, ...]], least: float = 0.0) -> None:
    """Make these fields arrays of floats; reject numbers below `least` and other shapes."""
    for name, shape in shapes.items():
        values = at_least(least, name, getattr(record, name))
        if values.shape != shape:
            raise InputError(f"`{name}` has the shape {values.shape}; to agree with the other arrays, give it {shape}")
        object.__setattr__(record, name, values)

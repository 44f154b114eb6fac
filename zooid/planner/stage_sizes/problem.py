"""The problem of FuncPipe's co-optimisation (§3.4): layers, sizes of members, degrees of replication.

It holds plain numbers, so that they can come from a profile and a catalog, from a paper's table, or from a test.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from zooid.core.errors import InputError
from zooid.core.records import Record, require
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
        for field in fields(self):
            values = at_least(0, field.name, getattr(self, field.name))
            num_axes = 2 if field.name.endswith("_s") else 1
            if values.ndim != num_axes or not np.isfinite(values).all():
                raise InputError(
                    f"`{field.name}` has the axes {values.shape} and must have {num_axes}, of finite numbers: "
                    f"{'layers and sizes' if num_axes == 2 else 'layers'}"
                )
            object.__setattr__(self, field.name, values)
        counts = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(counts.values())) != 1 or self.forward_s.shape != self.backward_s.shape:
            listed = ", ".join(f"`{name}` has {count}" for name, count in counts.items())
            raise InputError(f"all costs must have the same layers and sizes, but of layers {listed}")
        if not 1 <= len(self) <= MAX_LAYERS:
            raise InputError(f"{len(self)} layers are given, but only 1 to {MAX_LAYERS} can be searched; merge layers")

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
        object.__setattr__(self, "memory_bytes", above_zero("memory_bytes", self.memory_bytes))
        object.__setattr__(self, "bytes_per_s", above_zero("bytes_per_s", self.bytes_per_s))
        object.__setattr__(self, "usd_per_s", at_least(0, "usd_per_s", self.usd_per_s))
        shapes = {field.name: getattr(self, field.name).shape for field in fields(self)}
        if len(set(shapes.values())) != 1 or len(self.memory_bytes.shape) != 1 or not len(self):
            listed = ", ".join(f"`{name}` has the axes {shape}" for name, shape in shapes.items())
            raise InputError(f"sizes must be the same everywhere, at least one, along one axis; but {listed}")
        if not np.isfinite(self.usd_per_s).all():
            raise InputError("`usd_per_s` must be finite; leave out a size whose price is unknown")

    def __len__(self) -> int:
        return len(self.memory_bytes)


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
        expected = (len(self.degrees), num_layers, num_layers + 1)
        if np.shape(self.needed_bytes) != expected:
            raise InputError(
                f"`needed_bytes` has the axes {np.shape(self.needed_bytes)}; it must have {expected}: degrees, first "
                "layer, end"
            )

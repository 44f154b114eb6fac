"""What FuncPipe's co-optimisation is given: layers, sizes of members, degrees of replication (§3.4).

Plain numbers, so that a profile and a catalog, a paper's table or a test can each be the source.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from zooid.core.errors import InputError
from zooid.core.records import Record, require
from zooid.predictor.equations import pipelined_s
from zooid.predictor.equations.all_reduce import AllReduce
from zooid.predictor.equations.array_checks import Array, above_zero, at_least

MAX_LAYERS = 400
"""Tables hold every run of layers; a longer model is merged first (`planner.merging`), as FuncPipe does (§4)."""


@dataclass(frozen=True, eq=False)
class Layers:
    """What every layer takes for one grain. The first axis is the layer; times have a second one, the size."""

    forward_s: Array
    backward_s: Array
    parameter_bytes: Array
    activation_bytes: Array
    """Kept from forward to backward, for every grain in flight."""
    out_bytes: Array
    """What crosses a cut behind the layer, and as gradients back; the last layer's counts for nothing."""

    def __post_init__(self) -> None:
        for field in fields(self):
            given = at_least(0, field.name, getattr(self, field.name))
            num_axes = 2 if field.name.endswith("_s") else 1
            if given.ndim != num_axes or not np.isfinite(given).all():
                raise InputError(
                    f"`{field.name}` has the axes {given.shape} and must have {num_axes}, of finite numbers: "
                    f"{'layers and sizes' if num_axes == 2 else 'layers'}"
                )
            object.__setattr__(self, field.name, given)
        counts = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(counts.values())) != 1 or self.forward_s.shape != self.backward_s.shape:
            told = ", ".join(f"`{name}` has {count}" for name, count in counts.items())
            raise InputError(f"layers and sizes must be the same everywhere, but of layers {told}")
        if not 1 <= len(self) <= MAX_LAYERS:
            raise InputError(
                f"{len(self)} layers are given; 1 to {MAX_LAYERS} are searched: merge layers first (`merge_layers`)"
            )

    def __len__(self) -> int:
        return len(self.forward_s)


@dataclass(frozen=True, eq=False)
class Sizes:
    """What a member may be: FuncPipe's memory sizes, or any offers. The only axis is the size."""

    memory_bytes: Array
    bytes_per_s: Array
    """To the store and from it, each way."""
    usd_per_s: Array
    """Not necessarily in proportion to memory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_bytes", above_zero("memory_bytes", self.memory_bytes))
        object.__setattr__(self, "bytes_per_s", above_zero("bytes_per_s", self.bytes_per_s))
        object.__setattr__(self, "usd_per_s", at_least(0, "usd_per_s", self.usd_per_s))
        shapes = {field.name: getattr(self, field.name).shape for field in fields(self)}
        if len(set(shapes.values())) != 1 or len(self.memory_bytes.shape) != 1 or not len(self):
            told = ", ".join(f"`{name}` has the axes {shape}" for name, shape in shapes.items())
            raise InputError(f"sizes must be the same everywhere, at least one, along one axis; but {told}")
        if not np.isfinite(self.usd_per_s).all():
            raise InputError("`usd_per_s` must be finite; leave out a size whose price is unknown")

    def __len__(self) -> int:
        return len(self.memory_bytes)


class Degree(Record, frozen=True, kw_only=True):
    """One way to share the batch: d replicas of the pipeline, of μ grains each."""

    num_replicas: int
    num_grains: int
    """Of each replica."""

    def __post_init__(self) -> None:
        for name in ("num_replicas", "num_grains"):
            value = getattr(self, name)
            require(value >= 1, f"`{name}` is {value}; it must be at least 1")


class Weights(Record, frozen=True, kw_only=True):
    """α₁ and α₂ of FuncPipe's objective α₁ · cost + α₂ · time (3a), for dollars and seconds."""

    usd: float
    s: float

    def __post_init__(self) -> None:
        is_fine = all(0 <= value < float("inf") for value in (self.usd, self.s)) and self.usd + self.s > 0
        require(is_fine, f"the weights ({self.usd}, {self.s}) must be finite, at least 0, and not both 0")


@dataclass(frozen=True, eq=False)
class Problem:
    """FuncPipe's program (3): where to cut, which size each stage has, how many replicas there are."""

    layers: Layers
    sizes: Sizes
    degrees: tuple[Degree, ...]
    latency_s: float = 0.0
    slowdown: float = 1.0
    """β: what computing takes longer beside transfers."""
    base_bytes: float = 0.0
    """s₀: what a member needs before it holds anything of the model."""
    needed_bytes: Array | None = None
    """Of degree n, what a stage of layers [first, end) needs: [n, first, end]. FuncPipe's (3b) if not given."""
    all_reduce: AllReduce = pipelined_s

    def __post_init__(self) -> None:
        num_layers, num_sizes = self.layers.forward_s.shape
        if num_sizes != len(self.sizes):
            raise InputError(f"layers have times on {num_sizes} sizes, but {len(self.sizes)} sizes are given")
        if not self.degrees:
            raise InputError("no degree of replication is given; give at least Degree(num_replicas=1, num_grains=…)")
        at_least(0, "latency_s", self.latency_s)
        at_least(1, "slowdown", self.slowdown)
        at_least(0, "base_bytes", self.base_bytes)
        wanted = (len(self.degrees), num_layers, num_layers + 1)
        if self.needed_bytes is not None and np.shape(self.needed_bytes) != wanted:
            raise InputError(
                f"`needed_bytes` has the axes {np.shape(self.needed_bytes)}; it must have {wanted}: degrees, first "
                "layer, end"
            )

    def stage_bytes(self, degree: int) -> Array:
        """[first, end]: μ â + ŝ (4 − 2y₁) + s₀ (3b), activations of all grains, parameters and gradients, and the
        buffers of synchronisation where there is more than one replica; or what the caller knows better."""
        if self.needed_bytes is not None:
            return np.asarray(self.needed_bytes[degree], np.float64)
        chosen = self.degrees[degree]
        copies = 2 if chosen.num_replicas == 1 else 4
        kept = _runs(self.layers.activation_bytes)
        return chosen.num_grains * kept + copies * _runs(self.layers.parameter_bytes) + self.base_bytes

    def fits(self, degree: int) -> NDArray[np.bool_]:
        """[first, end, size]: whether a stage fits the memory of a member."""
        held: NDArray[np.bool_] = self.stage_bytes(degree)[..., None] <= self.sizes.memory_bytes
        return held


def _runs(values: Array) -> Array:
    """[first, end]: the sum over layers [first, end)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    sums: Array = total[None, :] - total[:-1, None]
    return sums

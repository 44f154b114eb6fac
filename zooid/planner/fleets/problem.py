"""Srifty's problem (§4.4): the machines that can be rented for a data-parallel run, and the work of the run.

Each GPU of a rented machine is one member with its own local batch. The local batches sum to the batch of a step.
"""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.records import Record, require
from zooid.core.resources.offer import Market
from zooid.predictor.equations.array_checks import Array

MAX_GRAINS = 200_000
"""The largest number of grains in a batch: the arrays hold one number for each possible share of each type."""


class ComputePoint(Record, frozen=True, kw_only=True):
    """The measured time of forward and backward of one local batch on one GPU, without communication."""

    num_samples: int
    compute_s: float

    def __post_init__(self) -> None:
        require(self.num_samples >= 1, f"`num_samples` is {self.num_samples}; it must be at least 1")
        _require_positive("compute_s", self.compute_s, f"{self.num_samples} samples")


class VmType(Record, frozen=True, kw_only=True):
    """One kind of machine at one price. On demand and spot are two types."""

    name: str
    market: Market = "on_demand"
    usd_per_hour: float
    """The price of the whole machine."""
    quota: int
    """The largest number of machines that can be rented."""
    num_gpus: int = 1
    compute: tuple[ComputePoint, ...]
    """Measured times by rising local batch, piecewise linear between the points (Srifty §4.1)."""
    bytes_per_s: float
    """The bandwidth of the machine's network interface in each direction."""
    inside_bytes_per_s: float | None = None
    """The bandwidth between GPUs of one machine, or None where it is that of the interface."""
    min_samples: int = 1
    """The smallest local batch for which a GPU is worth renting (Srifty, takeaway 4)."""
    max_samples: int | None = None
    """The largest local batch that fits the memory of one GPU, or None where every batch fits."""
    interruptions_per_hour: float = 0.0
    """The expected number of interruptions of one machine, which is 0 except for spot."""
    restart_s: float = 0.0
    """The time from an interruption until the fleet trains again."""

    def __post_init__(self) -> None:
        require(bool(self.name), "`name` is empty; give each type of machine a name")
        require(
            0 <= self.usd_per_hour < math.inf, f"`usd_per_hour` of {self.name} is {self.usd_per_hour}; give at least 0"
        )
        require(self.quota >= 0, f"`quota` of {self.name} is {self.quota}; it must be at least 0")
        require(self.num_gpus >= 1, f"`num_gpus` of {self.name} is {self.num_gpus}; it must be at least 1")
        require(len(self.compute) > 0, f"`compute` of {self.name} is empty; give at least one measured local batch")
        for before, after in pairwise(self.compute):
            require(
                before.num_samples < after.num_samples and before.compute_s <= after.compute_s,
                f"`compute` of {self.name} goes from {before.compute_s:g} s for {before.num_samples} samples to "
                f"{after.compute_s:g} s for {after.num_samples}; give rising batches, and times that never fall",
            )
        _require_positive("bytes_per_s", self.bytes_per_s, self.name)
        if self.inside_bytes_per_s is not None:
            _require_positive("inside_bytes_per_s", self.inside_bytes_per_s, self.name)
        require(self.min_samples >= 1, f"`min_samples` of {self.name} is {self.min_samples}; give at least 1")
        require(
            self.max_samples is None or self.max_samples >= self.min_samples,
            f"`max_samples` of {self.name} is {self.max_samples}; it must be at least `min_samples`, "
            f"{self.min_samples}",
        )
        for field in ("interruptions_per_hour", "restart_s"):
            value = getattr(self, field)
            require(0 <= value < math.inf, f"`{field}` of {self.name} is {value}; it must be at least 0")

    def compute_s(self, num_samples: ArrayLike) -> Array:
        """Return the compute time of one GPU for each of these local batches.

        Below the first point it is the time of that point. Beyond the last point it follows the last segment, or grows
        in proportion where there is only one point.
        """
        asked = np.asarray(num_samples, np.float64)
        sizes = np.array([point.num_samples for point in self.compute], float)
        times = np.array([point.compute_s for point in self.compute])
        before = (0.0, 0.0) if len(sizes) == 1 else (sizes[-2], times[-2])
        slope = (times[-1] - before[1]) / (sizes[-1] - before[0])
        beyond = np.maximum(asked - sizes[-1], 0.0)
        return np.asarray(np.interp(asked, sizes, times) + slope * beyond)


class FleetProblem(Record, frozen=True, kw_only=True):
    """A run of `num_steps` steps, and the machines that can be rented for it.

    With C the compute time of the slowest member, n members, A their all-reduce, h the overlap, σ the spread:

        step = (1 − h) C' + max(h C', A),  C' = C (1 + σ m(n))                      Srifty §4.3
        time = steps × step × (1 + Σ machines × interruptions per hour × (restart + lost) / 3600)
        cost = time × Σ machines × price

    m(n) is the mean of the largest of n normal deviates. A is that of the slowest type in the fleet (Srifty §4.2).
    """

    vms: tuple[VmType, ...]
    batch_size: int
    grain_size: int = 1
    """The number of samples of which every local batch is a whole multiple."""
    num_steps: int
    gradient_bytes: float = 0.0
    latency_s: float = 0.0
    """The latency of one of the 2(n − 1) rounds of a ring."""
    overlap: float = 0.0
    """The last fraction of the compute time, during which gradients are exchanged: 0 for none of it, 1 for all."""
    compute_spread: float = 0.0
    """The standard deviation of a member's compute time over its mean. It slows the slowest of many members."""
    lost_s: float = 0.0
    """The expected work that is redone after an interruption: half the time between checkpoints."""

    def __post_init__(self) -> None:
        require(len(self.vms) > 0, "`vms` is empty; give at least one type of machine")
        names = [(vm.name, vm.market) for vm in self.vms]
        repeated = next((name for name in names if names.count(name) > 1), None)
        require(repeated is None, f"`vms` has {repeated} twice; give each type and market once, with its whole quota")
        for field in ("batch_size", "grain_size", "num_steps"):
            value = getattr(self, field)
            require(value >= 1, f"`{field}` is {value}; it must be at least 1")
        require(
            self.batch_size % self.grain_size == 0,
            f"`batch_size` is {self.batch_size}, which is no multiple of `grain_size`, {self.grain_size}; shares are "
            "whole grains: give a multiple, or a grain that divides it",
        )
        require(
            self.num_grains <= MAX_GRAINS,
            f"a batch of {self.batch_size} has {self.num_grains} grains of {self.grain_size}; at most {MAX_GRAINS} "
            "are possible: give a larger `grain_size`",
        )
        for field in ("gradient_bytes", "latency_s", "compute_spread", "lost_s"):
            value = getattr(self, field)
            require(0 <= value < math.inf, f"`{field}` is {value}; it must be at least 0")
        require(0 <= self.overlap <= 1, f"`overlap` is {self.overlap}; give a fraction of computing, from 0 to 1")

    @property
    def num_grains(self) -> int:
        return self.batch_size // self.grain_size


def _require_positive(field: str, value: float, whose: str) -> None:
    require(0 < value < math.inf, f"`{field}` of {whose} is {value}; it must be finite and above 0")

"""What there is to rent for one data-parallel run, and what the run has to do: Srifty's problem (§4.4) in numbers.

Every GPU of a rented machine is one member with a local batch of its own; local batches sum to the batch of a step.
"""

import math
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.records import Record, require
from zooid.core.resources.offer import Market
from zooid.predictor.equations.array_checks import Array

FleetGoal: TypeAlias = Literal["fastest", "cheapest"]

MOST_GRAINS = 200_000
"""Of a batch: there is a number for every share that a member of each type can have."""


class ComputePoint(Record, frozen=True, kw_only=True):
    """What forward and backward of one local batch take on one GPU, without any exchange."""

    num_samples: int
    compute_s: float

    def __post_init__(self) -> None:
        require(self.num_samples >= 1, f"`num_samples` is {self.num_samples}; it must be at least 1")
        _require_positive("compute_s", self.compute_s, f"{self.num_samples} samples")


class VmType(Record, frozen=True, kw_only=True):
    """One kind of machine at one price; where it can be had on demand and as spot, those are two."""

    name: str
    market: Market = "on_demand"
    usd_per_hour: float
    """Of the whole machine."""
    quota: int
    """How many can be had at most."""
    num_gpus: int = 1
    compute: tuple[ComputePoint, ...]
    """By rising batch, piecewise linear between (Srifty §4.1)."""
    bytes_per_s: float
    """Of the machine's network interface, each way."""
    inside_bytes_per_s: float | None = None
    """Between GPUs of one machine; None where it is that of the interface."""
    least_samples: int = 1
    """Below this local batch a GPU is not worth having (Srifty, takeaway 4)."""
    most_samples: int | None = None
    """What fits one GPU's memory; None where everything does."""
    interruptions_per_hour: float = 0.0
    """Expected of one such machine: 0 but for spot."""
    restart_s: float = 0.0
    """From an interruption until the fleet trains again."""

    def __post_init__(self) -> None:
        require(bool(self.name), "`name` must not be empty")
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
        require(self.least_samples >= 1, f"`least_samples` of {self.name} is {self.least_samples}; give at least 1")
        require(
            self.most_samples is None or self.most_samples >= self.least_samples,
            f"`most_samples` of {self.name} is {self.most_samples}; it must be at least `least_samples`, "
            f"{self.least_samples}",
        )
        for field in ("interruptions_per_hour", "restart_s"):
            value = getattr(self, field)
            require(0 <= value < math.inf, f"`{field}` of {self.name} is {value}; it must be at least 0")

    def compute_s(self, num_samples: ArrayLike) -> Array:
        """Of one GPU. Below the first point as long as there, a floor; beyond the last along the last segment, or in
        proportion where there is only one point."""
        asked = np.asarray(num_samples, np.float64)
        sizes = np.array([point.num_samples for point in self.compute], float)
        times = np.array([point.compute_s for point in self.compute])
        before = (0.0, 0.0) if len(sizes) == 1 else (sizes[-2], times[-2])
        slope = (times[-1] - before[1]) / (sizes[-1] - before[0])
        beyond = np.maximum(asked - sizes[-1], 0.0)
        taken: Array = np.interp(asked, sizes, times) + slope * beyond
        return taken


class FleetProblem(Record, frozen=True, kw_only=True):
    """A run of so many steps, what can be rented for it, and what it may take and cost.

    With C the longest computing of a member, n members, A their all-reduce, h the overlap, σ the spread:

        step = (1 − h) C' + max(h C', A),  C' = C (1 + σ m(n))                      Srifty §4.3
        time = steps × step × (1 + Σ machines × interruptions per hour × (restart + lost) / 3600)
        cost = time × Σ machines × price

    m(n) is the mean of the largest of n normal deviates. A is that of the slowest type in the fleet (Srifty §4.2).
    """

    vms: tuple[VmType, ...]
    batch_size: int
    grain_size: int = 1
    """Local batches are whole multiples of this."""
    num_steps: int
    gradient_bytes: float = 0.0
    latency_s: float = 0.0
    """Of one of the 2(n − 1) rounds of a ring."""
    overlap: float = 0.0
    """The last part of computing, beside which gradients are exchanged: 0 means after it, 1 all the time."""
    compute_spread: float = 0.0
    """Standard deviation of a member's computing over its mean: the more members, the longer the slowest takes."""
    lost_s: float = 0.0
    """Work that is done again after an interruption, on average: half the time between checkpoints."""
    goal: FleetGoal = "fastest"
    deadline_s: float | None = None
    budget_usd: float | None = None
    most_kinds: int | None = None
    """How many types may be mixed; None for all."""

    def __post_init__(self) -> None:
        require(len(self.vms) > 0, "`vms` is empty; give at least one type of machine")
        names = [(vm.name, vm.market) for vm in self.vms]
        twice = next((name for name in names if names.count(name) > 1), None)
        require(twice is None, f"`vms` has {twice} twice; give each type and market once, with its whole quota")
        for field in ("batch_size", "grain_size", "num_steps"):
            value = getattr(self, field)
            require(value >= 1, f"`{field}` is {value}; it must be at least 1")
        require(
            self.batch_size % self.grain_size == 0,
            f"`batch_size` is {self.batch_size}, which is no multiple of `grain_size`, {self.grain_size}; shares are "
            "whole grains: give a multiple, or a grain that divides it",
        )
        require(
            self.num_grains <= MOST_GRAINS,
            f"a batch of {self.batch_size} has {self.num_grains} grains of {self.grain_size}; at most {MOST_GRAINS} "
            "can be shared out: give a larger `grain_size`",
        )
        for field in ("gradient_bytes", "latency_s", "compute_spread", "lost_s"):
            value = getattr(self, field)
            require(0 <= value < math.inf, f"`{field}` is {value}; it must be at least 0")
        require(0 <= self.overlap <= 1, f"`overlap` is {self.overlap}; it is a part of computing, from 0 to 1")
        require(self.goal in get_args(FleetGoal), f"`goal` is {self.goal!r}; give {' or '.join(get_args(FleetGoal))}")
        for field in ("deadline_s", "budget_usd"):
            value = getattr(self, field)
            require(value is None or value > 0, f"`{field}` is {value}; it must be above 0, or None for no limit")
        require(
            self.most_kinds is None or self.most_kinds >= 1,
            f"`most_kinds` is {self.most_kinds}; it must be at least 1, or None to mix all",
        )

    @property
    def num_grains(self) -> int:
        return self.batch_size // self.grain_size


def _require_positive(field: str, value: float, whose: str) -> None:
    require(0 < value < math.inf, f"`{field}` of {whose} is {value}; it must be finite and above 0")

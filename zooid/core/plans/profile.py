"""What was measured about a model: everything the predictor and the planner know of it."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from zooid.core.jobs.job import AutocastName
from zooid.core.records import FileRecord, Record, require
from zooid.core.resources.link import Link


class Bytes(Record, frozen=True, kw_only=True):
    """An amount of memory or traffic: so much, and so much more for every sample of a grain."""

    per_sample: float = 0.0
    fixed: float = 0.0

    def at(self, num_samples: int) -> float:
        return max(0.0, self.fixed + self.per_sample * num_samples)


class TimePoint(Record, frozen=True, kw_only=True):
    """Median times of one layer for one grain of this many samples."""

    num_samples: int
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        require(self.num_samples >= 1, f"`num_samples` is {self.num_samples}; it must be at least 1")
        require(self.forward_s >= 0 and self.backward_s >= 0, "`forward_s` and `backward_s` must be at least 0")


class GradientReady(Record, frozen=True, kw_only=True):
    """When the gradient of one parameter is complete."""

    name: str
    num_bytes: int
    at_share: float
    """Of the backward of the layer that completes it, from 0 (its begin) to 1 (its end)."""


class LayerProfile(Record, frozen=True, kw_only=True):
    """One layer: the smallest piece the model can be cut into."""

    name: str
    parameter_bytes: int
    buffer_bytes: int
    boundary: Bytes
    """What travels to the next layer, skip connections included; nothing after the last layer."""
    activations: Bytes
    """What the layer keeps from its forward for its backward."""
    forward_peak: Bytes
    """The most that it needs during a forward, on top of what was there before."""
    backward_peak: Bytes
    """The most that it needs during a backward, on top of what was there before."""
    points: tuple[TimePoint, ...]
    """In ascending number of samples; measured alone on the machine."""
    crowded_points: tuple[TimePoint, ...] = ()
    """The same while every other core of the machine does the same work; empty where that was not measured."""
    gradients: tuple[GradientReady, ...] = ()
    """Of the parameters whose gradients this layer completes, in the order in which they become ready."""

    def __post_init__(self) -> None:
        require(len(self.points) >= 1, f"`points` of layer {self.name} must not be empty")
        require(
            self.parameter_bytes >= 0 and self.buffer_bytes >= 0,
            f"`parameter_bytes` and `buffer_bytes` of layer {self.name} must be at least 0",
        )
        for field in ("points", "crowded_points"):
            sizes = [point.num_samples for point in getattr(self, field)]
            require(sizes == sorted(set(sizes)), f"`{field}` of layer {self.name} must ascend in `num_samples`")

    @property
    def memory(self) -> tuple[Bytes, Bytes, Bytes]:
        """What it keeps, and the most that it needs in forward and backward."""
        return self.activations, self.forward_peak, self.backward_peak

    def forward_s(self, num_samples: int, *, crowded: bool = False) -> float:
        return times_at(self._points(crowded), num_samples)[0]

    def backward_s(self, num_samples: int, *, crowded: bool = False) -> float:
        return times_at(self._points(crowded), num_samples)[1]

    def _points(self, crowded: bool) -> tuple[TimePoint, ...]:
        return self.crowded_points if crowded and self.crowded_points else self.points


class TiedParameter(Record, frozen=True, kw_only=True):
    """A parameter that several layers use; a stage counts it once, and stages that share it sum its gradients."""

    name: str
    num_bytes: int
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        require(self.num_bytes >= 0, f"`num_bytes` of {self.name} is {self.num_bytes}; it must be at least 0")


class Copies(Record, frozen=True, kw_only=True):
    """How fast bytes get between pinned memory of the host and a GPU."""

    to_device_bytes_per_s: float
    to_host_bytes_per_s: float

    def __post_init__(self) -> None:
        for rate in (self.to_device_bytes_per_s, self.to_host_bytes_per_s):
            require(0 < rate < math.inf, f"copies of {rate} bytes a second are given; it must be a number above 0")


class DeviceKind(Record, frozen=True, kw_only=True):
    """What the times were measured on."""

    kind: Literal["cpu", "cuda"]
    name: str
    num_threads: int
    num_cores: float
    """Cores of the whole machine, which members that share it contend for; or a member's share of one."""
    score: float
    """Floating-point operations a second of one large product of matrices: what estimates for other devices rest on."""
    copies: Copies | None = None
    """None on a CPU, where nothing is copied, and where the device was not measured."""

    def __post_init__(self) -> None:
        require(self.kind == "cuda" or self.copies is None, f"`copies` of a {self.kind} are given; only a GPU has any")


class Spread(Record, frozen=True, kw_only=True):
    """How much the same work differs, as a part of its median time."""

    of_steps: float
    """From one step to the next."""
    of_runs: float
    """From one measurement to another, some time later."""


class Profile(FileRecord, frozen=True, kw_only=True, tag="profile"):
    """One model, on one kind of device, with the links seen from there."""

    VERSION: ClassVar[int] = 3

    version: int = 3
    job: str
    model_fingerprint: str
    why_whole: str = ""
    """Why the model is trained as one stage, in words; empty where it can be cut."""
    autocast: AutocastName | None = None
    """As the job had it when it was measured."""
    zooid_version: str
    torch_version: str
    date: str
    device: DeviceKind
    estimated_from: str = ""
    """Name of the device that was measured, where this one was not and times are scaled; empty where they are real."""
    num_samples: int
    """Samples of the job's data set."""
    batch_size: int
    largest_grain: int
    """Samples of the largest grain that fits into the device's memory, up to the batch size."""
    knee: int
    """Grain size at which work turns from bound by latency to bound by throughput; smaller grains gain little."""
    epochs: int
    load_s_per_sample: float
    """Time to read and collate one sample; spent by first and last stages."""
    optimizer_s_per_byte: float
    """Time of one optimizer update for each byte of parameters."""
    optimizer_bytes_per_parameter_byte: float
    """Optimizer state kept for each byte of parameters."""
    reduce_s_per_byte: float
    """Time to gather the gradients, and to add another replica's, for each byte of parameters."""
    startup_cpu_s: float
    """Processor time of a member from its first instruction until it can train."""
    runtime_bytes: int
    """Memory of a member that has built its stage and trained, without what belongs to the model."""
    inputs: Bytes
    """The model's own inputs, which a first stage keeps for every grain under way."""
    memory_overhead: float
    """What the allocator takes on top of activations when several grains are under way, as a part of them."""
    spread: Spread
    layers: tuple[LayerProfile, ...]
    tied: tuple[TiedParameter, ...] = ()
    links: tuple[Link, ...]
    """Those seen from the device: to the store (puts) and from it (gets)."""

    def __post_init__(self) -> None:
        require(len(self.layers) >= 1, "`layers` must not be empty")
        require(self.num_samples >= 1, f"`num_samples` is {self.num_samples}; it must be at least 1")
        require(self.batch_size >= 1, f"`batch_size` is {self.batch_size}; it must be at least 1")
        require(self.memory_overhead >= 0, f"`memory_overhead` is {self.memory_overhead}; it must be at least 0")
        require(self.largest_grain >= 1, f"`largest_grain` is {self.largest_grain}; it must be at least 1")
        for tie in self.tied:
            require(
                all(0 <= layer < len(self.layers) for layer in tie.layers),
                f"`tied` names layers {tie.layers} for {tie.name}; there are {len(self.layers)}",
            )

    @property
    def is_estimate(self) -> bool:
        return bool(self.estimated_from)

    def parameter_bytes(self, first_layer: int, end_layer: int) -> int:
        """Of a stage: what several of its layers use counts once."""
        total = sum(layer.parameter_bytes for layer in self.layers[first_layer:end_layer])
        for tie in self.tied:
            uses = sum(1 for layer in tie.layers if first_layer <= layer < end_layer)
            total -= tie.num_bytes * max(0, uses - 1)
        return total


def times_at(points: Sequence[TimePoint], num_samples: int) -> tuple[float, float]:
    """Forward and backward of one layer for a grain of any size, from those that were measured."""
    forward_s = _interpolate([(point.num_samples, point.forward_s) for point in points], num_samples)
    backward_s = _interpolate([(point.num_samples, point.backward_s) for point in points], num_samples)
    return forward_s, backward_s


def _interpolate(points: list[tuple[int, float]], at: int) -> float:
    """Piecewise linear between measured points; beyond the ends along the nearest segment, never below zero.

    A single point says nothing about a fixed cost: time is then proportional to size.
    """
    if len(points) == 1:
        size, time_s = points[0]
        return time_s * at / size
    segments = list(pairwise(points))
    (x0, y0), (x1, y1) = next((segment for segment in segments if at <= segment[1][0]), segments[-1])
    return max(0.0, y0 + (y1 - y0) * (at - x0) / (x1 - x0))

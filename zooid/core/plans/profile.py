"""The profile of a model: all measurements that the predictor and the planner use."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from zooid.core.jobs.job import AutocastName
from zooid.core.records import FileRecord, Record, require, require_at_least
from zooid.core.resources.link import Link


class Bytes(Record, frozen=True, kw_only=True):
    """An amount of memory or traffic: a fixed part, and a part for every sample of a grain."""

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
        require_at_least(1, self, "num_samples")
        require_at_least(0, self, "forward_s", "backward_s")


class GradientReady(Record, frozen=True, kw_only=True):
    """The moment at which the gradient of one parameter is complete."""

    name: str
    num_bytes: int
    at_share: float
    """Moment within the backward of the layer that completes the gradient, from 0 (start) to 1 (end)."""


class LayerProfile(Record, frozen=True, kw_only=True):
    """One layer: the smallest piece into which the model can be cut."""

    name: str
    parameter_bytes: int
    buffer_bytes: int
    boundary: Bytes
    """Bytes sent to the next layer, skip connections included; 0 after the last layer."""
    activations: Bytes
    """Memory that the layer keeps from its forward for its backward."""
    forward_peak: Bytes
    """Peak memory of a forward, on top of the memory in use before it."""
    backward_peak: Bytes
    """Peak memory of a backward, on top of the memory in use before it."""
    points: tuple[TimePoint, ...]
    """Times measured alone on the machine, in ascending number of samples."""
    crowded_points: tuple[TimePoint, ...] = ()
    """Times measured while all other cores do the same work; empty if not measured."""
    gradients: tuple[GradientReady, ...] = ()
    """Gradients that this layer completes, in the order in which they become ready."""

    def __post_init__(self) -> None:
        require(len(self.points) >= 1, f"`points` of layer {self.name} must not be empty")
        require_at_least(0, self, "parameter_bytes", "buffer_bytes", of=f"layer {self.name}")
        for field in ("points", "crowded_points"):
            sizes = [point.num_samples for point in getattr(self, field)]
            require(sizes == sorted(set(sizes)), f"`{field}` of layer {self.name} must ascend in `num_samples`")

    @property
    def memory(self) -> tuple[Bytes, Bytes, Bytes]:
        """Memory of the activations, and the peaks of forward and backward."""
        return self.activations, self.forward_peak, self.backward_peak

    def forward_s(self, num_samples: int, *, crowded: bool = False) -> float:
        return times_at(self._points(crowded), num_samples)[0]

    def backward_s(self, num_samples: int, *, crowded: bool = False) -> float:
        return times_at(self._points(crowded), num_samples)[1]

    def _points(self, crowded: bool) -> tuple[TimePoint, ...]:
        return self.crowded_points if crowded and self.crowded_points else self.points


class TiedParameter(Record, frozen=True, kw_only=True):
    """A parameter that several layers use. A stage counts it once; stages that share it sum its gradients."""

    name: str
    num_bytes: int
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        require_at_least(0, self, "num_bytes", of=self.name)


class Copies(Record, frozen=True, kw_only=True):
    """Copy rates between pinned host memory and a GPU."""

    to_device_bytes_per_s: float
    to_host_bytes_per_s: float

    def __post_init__(self) -> None:
        for rate in (self.to_device_bytes_per_s, self.to_host_bytes_per_s):
            require(0 < rate < math.inf, f"a copy rate is {rate} bytes per second; it must be a finite number above 0")


class DeviceKind(Record, frozen=True, kw_only=True):
    """The device on which the times were measured."""

    kind: Literal["cpu", "cuda"]
    name: str
    num_threads: int
    num_cores: float
    """Cores for which the members of the machine contend; a fraction where a quota limits them."""
    score: float
    """Floating-point operations per second in one large matrix product; times on other devices are scaled by it."""
    copies: Copies | None = None
    """Copy rates of a GPU; None on a CPU, and on a device that was not measured."""

    def __post_init__(self) -> None:
        require(
            self.kind == "cuda" or self.copies is None,
            f"`copies` is given for a {self.kind}; only a GPU has copies: leave it out",
        )


class Spread(Record, frozen=True, kw_only=True):
    """Variation of the time that the same work takes, as a fraction of its median."""

    of_steps: float
    """Variation from one step to the next."""
    of_runs: float
    """Variation between measurements some time apart."""


class Profile(FileRecord, frozen=True, kw_only=True, tag="profile"):
    """The measurements of one model on one kind of device, with the links from and to it."""

    VERSION: ClassVar[int] = 3

    version: int = 3
    job: str
    model_fingerprint: str
    why_whole: str = ""
    """Why the model is trained as one stage, in words; empty if it can be cut."""
    autocast: AutocastName | None = None
    """The job's `autocast` when it was measured."""
    has_policy: bool = False
    """Whether the job has a scaling policy, which may change the batch size."""
    zooid_version: str
    torch_version: str
    date: str
    device: DeviceKind
    estimated_from: str = ""
    """Name of the measured device from which the times are scaled; empty if they were measured on this device."""
    num_samples: int
    """Number of samples in the job's data set."""
    batch_size: int
    largest_grain: int
    """Size of the largest grain that fits into the device's memory, at most the batch size."""
    knee: int
    """Grain size at which work turns from latency-bound to throughput-bound; smaller grains gain little."""
    epochs: int
    load_s_per_sample: float
    """Time to read and collate one sample, spent by first and last stages."""
    optimizer_s_per_byte: float
    """Time of one optimizer update, per byte of parameters."""
    optimizer_bytes_per_parameter_byte: float
    """Bytes of optimizer state, per byte of parameters."""
    reduce_s_per_byte: float
    """Time to gather gradients and add those of another replica, per byte of parameters."""
    startup_cpu_s: float
    """CPU time of a member from its first instruction until it can train."""
    between_steps_s: float = 0.0
    """Time of a member between two steps. Only runs measure it; a profile that no run has corrected has 0."""
    runtime_bytes: int
    """Memory of a member that has trained, without the model's own memory."""
    inputs: Bytes
    """The model's own inputs, which a first stage keeps for every grain in flight."""
    memory_overhead: float
    """Allocator overhead with several grains in flight, as a fraction of their activations."""
    spread: Spread
    layers: tuple[LayerProfile, ...]
    tied: tuple[TiedParameter, ...] = ()
    links: tuple[Link, ...]
    """Links from the device to the store (puts) and back (gets)."""

    def __post_init__(self) -> None:
        require(len(self.layers) >= 1, "`layers` must not be empty")
        require_at_least(1, self, "num_samples", "batch_size", "largest_grain")
        require_at_least(0, self, "memory_overhead", "between_steps_s")
        for tie in self.tied:
            require(
                all(0 <= layer < len(self.layers) for layer in tie.layers),
                f"`tied` names layers {tie.layers} for {tie.name}; give numbers below {len(self.layers)}",
            )

    @property
    def is_estimate(self) -> bool:
        return bool(self.estimated_from)

    @property
    def assumption(self) -> str:
        """What predictions from this profile assume about the job, in words; empty if they assume nothing."""
        if not self.has_policy:
            return ""
        return f"the job has a scaling policy; times and costs hold for its first batch size, {self.batch_size} samples"

    def parameter_bytes(self, first_layer: int, end_layer: int) -> int:
        """Return the parameter bytes of a stage; a parameter that several of its layers use counts once."""
        total = sum(layer.parameter_bytes for layer in self.layers[first_layer:end_layer])
        for tie in self.tied:
            uses = sum(1 for layer in tie.layers if first_layer <= layer < end_layer)
            total -= tie.num_bytes * max(0, uses - 1)
        return total


def times_at(points: Sequence[TimePoint], num_samples: int) -> tuple[float, float]:
    """Estimate forward and backward time of one layer for a grain of any size, from the measured sizes."""
    forward_s = _interpolate([(point.num_samples, point.forward_s) for point in points], num_samples)
    backward_s = _interpolate([(point.num_samples, point.backward_s) for point in points], num_samples)
    return forward_s, backward_s


def _interpolate(points: list[tuple[int, float]], num_samples: int) -> float:
    """Interpolate linearly between points, and extrapolate along the nearest segment, never below zero.

    A single point says nothing about a fixed cost: the time is then proportional to the number of samples.
    """
    if len(points) == 1:
        size, time_s = points[0]
        return time_s * num_samples / size
    segments = list(pairwise(points))
    (x0, y0), (x1, y1) = next((segment for segment in segments if num_samples <= segment[1][0]), segments[-1])
    return max(0.0, y0 + (y1 - y0) * (num_samples - x0) / (x1 - x0))

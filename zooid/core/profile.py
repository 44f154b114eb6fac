"""What was measured about a model: everything the predictor and the planner know of it."""

from itertools import pairwise

from zooid.core.link import Link
from zooid.core.records import FileRecord, Record, require


class TimePoint(Record, frozen=True, kw_only=True):
    """Median times of one layer for one grain of this many samples."""

    num_samples: int
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        require(self.num_samples >= 1, f"`num_samples` is {self.num_samples}; it must be at least 1")
        require(self.forward_s >= 0 and self.backward_s >= 0, "`forward_s` and `backward_s` must be at least 0")


class LayerProfile(Record, frozen=True, kw_only=True):
    """One layer: the smallest piece the model can be cut into."""

    name: str
    parameter_bytes: int
    buffer_bytes: int
    boundary_bytes_per_sample: float
    """What travels to the next layer for each sample, skip connections included; 0 after the last layer."""
    activation_bytes_per_sample: float
    """What the layer keeps for its backward, for each sample."""
    points: tuple[TimePoint, ...]
    """In ascending number of samples; measured alone on the machine."""
    crowded_points: tuple[TimePoint, ...] = ()
    """The same while every other core of the machine does the same work; empty where that was not measured."""

    def __post_init__(self) -> None:
        require(len(self.points) >= 1, f"`points` of layer {self.name} must not be empty")
        for field in ("points", "crowded_points"):
            sizes = [point.num_samples for point in getattr(self, field)]
            require(sizes == sorted(set(sizes)), f"`{field}` of layer {self.name} must ascend in `num_samples`")

    def forward_s(self, num_samples: int, *, crowded: bool = False) -> float:
        return _interpolate([(point.num_samples, point.forward_s) for point in self._points(crowded)], num_samples)

    def backward_s(self, num_samples: int, *, crowded: bool = False) -> float:
        return _interpolate([(point.num_samples, point.backward_s) for point in self._points(crowded)], num_samples)

    def _points(self, crowded: bool) -> tuple[TimePoint, ...]:
        return self.crowded_points if crowded and self.crowded_points else self.points


class DeviceKind(Record, frozen=True, kw_only=True):
    """What the times were measured on."""

    name: str
    num_threads: int
    num_cores: int
    """Cores of the whole machine: members that share it contend for them."""


class Profile(FileRecord, frozen=True, kw_only=True, tag="profile"):
    """One model, on one kind of device, with the links seen from there."""

    job: str
    model_fingerprint: str
    zooid_version: str
    torch_version: str
    device: DeviceKind
    num_samples: int
    """Samples of the job's data set."""
    batch_size: int
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
    """Memory of a member before it has built anything."""
    layers: tuple[LayerProfile, ...]
    links: tuple[Link, ...]
    """Those seen from the device: to the store (puts) and from it (gets)."""

    def __post_init__(self) -> None:
        require(len(self.layers) >= 1, "`layers` must not be empty")
        require(self.num_samples >= 1, f"`num_samples` is {self.num_samples}; it must be at least 1")
        require(self.batch_size >= 1, f"`batch_size` is {self.batch_size}; it must be at least 1")


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

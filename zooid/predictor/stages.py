"""Times and bytes of a run of layers, as sums over the profile's layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from zooid.core.profile import Profile
from zooid.schedule.ties import shared_between


@dataclass(frozen=True)
class StageTimes:
    """One stage working on one grain."""

    forward_s: float
    backward_s: float
    out_bytes: float
    """What travels to the next stage, and as gradients back; 0 for the last stage."""
    parameter_bytes: int
    buffer_bytes: int
    reduce_s: float
    """Gathering and adding gradients, without the transfers."""
    update_s: float
    """Applying one step."""


def stage_times(
    profile: Profile, first_layer: int, end_layer: int, grain_size: int, *, crowded: bool = False
) -> StageTimes:
    """Layers [first_layer, end_layer) on a grain; first and last stages also read the samples.

    `crowded` takes the times that were measured with every core of the machine at work.
    """
    layers = profile.layers[first_layer:end_layer]
    reads_data = first_layer == 0 or end_layer == len(profile.layers)
    parameter_bytes = profile.parameter_bytes(first_layer, end_layer)
    return StageTimes(
        forward_s=sum(layer.forward_s(grain_size, crowded=crowded) for layer in layers)
        + (profile.load_s_per_sample * grain_size if reads_data else 0.0),
        backward_s=sum(layer.backward_s(grain_size, crowded=crowded) for layer in layers),
        out_bytes=layers[-1].boundary.at(grain_size),
        parameter_bytes=parameter_bytes,
        buffer_bytes=sum(layer.buffer_bytes for layer in layers),
        reduce_s=profile.reduce_s_per_byte * parameter_bytes,
        update_s=profile.optimizer_s_per_byte * parameter_bytes,
    )


@dataclass(frozen=True)
class Tie:
    """Parameters that several stages use: their gradients are summed between these stages of each replica."""

    stages: tuple[int, ...]
    num_bytes: int


def ties_between(profile: Profile, partition: Sequence[tuple[int, int]]) -> tuple[Tie, ...]:
    """What the stages of a partition share, in the order in which members sum it."""
    num_bytes = {tied.name: tied.num_bytes for tied in profile.tied}
    shared = shared_between({tied.name: tied.layers for tied in profile.tied}, partition)
    return tuple(Tie(stages, sum(num_bytes[name] for name in names)) for stages, names in shared.items())

"""Times and bytes of a stage, as sums over the profile's layers."""

from collections.abc import Sequence

from zooid.core.plans.profile import Profile
from zooid.core.plans.stage import Bucket, StageTimes, Tie
from zooid.schedule.buckets import cut_buckets
from zooid.schedule.tied_parameters import shared_between


def stage_times(
    profile: Profile,
    first_layer: int,
    end_layer: int,
    grain_size: int,
    *,
    crowded: bool = False,
    is_direct: bool = False,
) -> StageTimes:
    """Predict the times of the layers [first_layer, end_layer) on one grain.

    The first and the last stage also read the samples. `crowded` selects the times measured while every core of the
    machine was busy. `is_direct` selects the buckets of connected members.
    """
    layers = profile.layers[first_layer:end_layer]
    reads_data = first_layer == 0 or end_layer == len(profile.layers)
    parameter_bytes = profile.parameter_bytes(first_layer, end_layer)
    return StageTimes(
        forward_s=sum(layer.forward_s(grain_size, crowded=crowded) for layer in layers)
        + (profile.load_s_per_sample * grain_size if reads_data else 0.0),
        backward_s=sum(layer.backward_s(grain_size, crowded=crowded) for layer in layers),
        out_bytes=layers[-1].boundary.at(grain_size),
        buckets=_buckets(profile, first_layer, end_layer, grain_size, is_direct),
        reduce_s=profile.reduce_s_per_byte * parameter_bytes,
        update_s=profile.optimizer_s_per_byte * parameter_bytes + profile.between_steps_s,
    )


def _buckets(
    profile: Profile, first_layer: int, end_layer: int, grain_size: int, is_direct: bool
) -> tuple[Bucket, ...]:
    """Buckets of gradients in the order in which the stage's backward completes them, as members cut them."""
    layers = profile.layers[first_layer:end_layer]
    sizes: list[int] = []
    ready_s: list[float] = []
    backward_s = 0.0
    for layer in reversed(layers):
        layer_s = layer.backward_s(grain_size)
        for gradient in layer.gradients:
            sizes.append(gradient.num_bytes)
            ready_s.append(backward_s + gradient.at_share * layer_s)
        backward_s += layer_s
    if not sizes:  # a profile written by hand may leave out when gradients are ready
        sizes, ready_s = [profile.parameter_bytes(first_layer, end_layer)], [backward_s]
    buffer_bytes = sum(layer.buffer_bytes for layer in layers)
    return tuple(
        Bucket(
            num_bytes=sum(sizes[first:end]) + (buffer_bytes if end == len(sizes) else 0),
            at_share=max(ready_s[first:end]) / backward_s if backward_s else 1.0,
        )
        for first, end in cut_buckets(sizes, is_direct=is_direct)
    )


def ties_between(profile: Profile, partition: Sequence[tuple[int, int]]) -> tuple[Tie, ...]:
    """Parameters that several stages of a partition share, in the order in which members sum their gradients."""
    num_bytes = {tied.name: tied.num_bytes for tied in profile.tied}
    shared = shared_between({tied.name: tied.layers for tied in profile.tied}, partition)
    return tuple(
        Tie(stages=stages, num_bytes=sum(num_bytes[name] for name in names)) for stages, names in shared.items()
    )

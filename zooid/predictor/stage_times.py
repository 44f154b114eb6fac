"""Times and bytes of a run of layers, as sums over the profile's layers."""

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
    """Layers [first_layer, end_layer) on a grain; first and last stages also read the samples.

    `crowded` takes the times that were measured with every core of the machine at work, `is_direct` the buckets of
    members that are connected.
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
        update_s=profile.optimizer_s_per_byte * parameter_bytes,
    )


def _buckets(
    profile: Profile, first_layer: int, end_layer: int, grain_size: int, is_direct: bool
) -> tuple[Bucket, ...]:
    """Parameters in the order in which the stage's backward completes them, as members cut them."""
    layers = profile.layers[first_layer:end_layer]
    sizes: list[int] = []
    moments_s: list[float] = []
    so_far_s = 0.0
    for layer in reversed(layers):
        layer_s = layer.backward_s(grain_size)
        for gradient in layer.gradients:
            sizes.append(gradient.num_bytes)
            moments_s.append(so_far_s + gradient.at_share * layer_s)
        so_far_s += layer_s
    if not sizes:  # a profile by hand may leave out the moments
        sizes, moments_s = [profile.parameter_bytes(first_layer, end_layer)], [so_far_s]
    statistics = sum(layer.buffer_bytes for layer in layers)
    cuts = cut_buckets(sizes, is_direct=is_direct)
    return tuple(
        Bucket(
            num_bytes=sum(sizes[first:end]) + (statistics if end == len(sizes) else 0),
            at_share=max(moments_s[first:end]) / so_far_s if so_far_s else 1.0,
        )
        for first, end in cuts
    )


def ties_between(profile: Profile, partition: Sequence[tuple[int, int]]) -> tuple[Tie, ...]:
    """What the stages of a partition share, in the order in which members sum it."""
    num_bytes = {tied.name: tied.num_bytes for tied in profile.tied}
    shared = shared_between({tied.name: tied.layers for tied in profile.tied}, partition)
    return tuple(
        Tie(stages=stages, num_bytes=sum(num_bytes[name] for name in names)) for stages, names in shared.items()
    )

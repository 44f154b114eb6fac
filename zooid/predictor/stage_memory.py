"""Peak memory of one member: the runtime, the state of its stage, and the activations that its schedule keeps."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from zooid.core.plans.profile import Bytes, Profile
from zooid.predictor.equations.array_checks import Array
from zooid.schedule.grain_tree import maximal_nodes, most_nodes_held

_BUFFER_COPIES = 5
"""Buffers as they are, at the start of the step, as a base for changes, as the last grain left them, and the summed
changes."""


def stage_memory_bytes(
    profile: Profile,
    first_layer: int,
    end_layer: int,
    grain_size: int,
    grains_kept: int,
    *,
    num_replicas: int = 1,
    more_gradients: float = 0.0,
) -> int:
    """Predict the peak memory of a member that holds the layers [first_layer, end_layer).

    It is the sum of the runtime, weights, gradients, gradients in flight between replicas, optimizer state, the copy
    that a checkpoint is written from, and the peak of computing. Replicas divide the checkpoint's copy.

    The schedule keeps the activations of at most `grains_kept` grains. The peak comes in the forward of the last of
    them, or in the backward of the first. `more_gradients` is the number of further sets of gradients that a
    reproducible run holds.
    """
    layers = profile.layers[first_layer:end_layer]
    copies = _parameter_copies(profile, num_replicas) + more_gradients
    state = profile.parameter_bytes(first_layer, end_layer) * copies
    state += _BUFFER_COPIES * sum(layer.buffer_bytes for layer in layers)
    boundary_before = profile.layers[first_layer - 1].boundary if first_layer > 0 else profile.inputs
    received = boundary_before.at(grain_size)
    kept, peak = grain_bytes((layer.memory for layer in layers), grain_size, received)
    messages = 2 * (received + layers[-1].boundary.at(grain_size))
    return round(_total_bytes(profile, state, kept, peak, grains_kept, messages))


def least_memory_bytes(profile: Profile, grain_size: int, *, num_replicas: int = 1) -> int:
    """A lower bound on the memory of the largest member under any partition.

    Some member has the layer with the largest need: it holds that layer's state and computes it on one grain.
    """
    copies = _parameter_copies(profile, num_replicas)
    needs = [
        layer.parameter_bytes * copies
        + _BUFFER_COPIES * layer.buffer_bytes
        + grain_bytes([layer.memory], grain_size)[1] * (1 + profile.memory_overhead)
        for layer in profile.layers
    ]
    return int(profile.runtime_bytes + max(needs))


def stage_memory_table(
    profile: Profile, grain_size: int, grains_kept: int, *, num_replicas: int = 1, more_gradients: float = 0.0
) -> Array:
    """`stage_memory_bytes` of every span of layers at [first, end]; 0 where `first` is not below `end`."""
    num_layers = len(profile.layers)
    copies = _parameter_copies(profile, num_replicas) + more_gradients
    boundaries = [profile.inputs, *(layer.boundary for layer in profile.layers)]
    crossing = np.array([boundary.at(grain_size) for boundary in boundaries])
    kept, peak = crossing[:-1].copy(), crossing[:-1].copy()  # by first layer
    parameters = np.cumsum([0, *(layer.parameter_bytes for layer in profile.layers)])
    buffers = np.zeros(num_layers)
    table = np.zeros((num_layers, num_layers + 1))
    for end, layer in enumerate(profile.layers, start=1):
        activations, forward_peak, backward_peak = (memory.at(grain_size) for memory in layer.memory)
        firsts = slice(0, end)
        forward = kept[firsts] + forward_peak
        kept[firsts] += activations
        peak[firsts] = np.maximum(peak[firsts], np.maximum(forward, kept[firsts] + backward_peak))
        buffers[firsts] += layer.buffer_bytes
        state = (parameters[end] - parameters[firsts] - _tied_twice(profile, end)) * copies
        state += _BUFFER_COPIES * buffers[firsts]
        messages = 2 * (crossing[:-1][firsts] + crossing[end])
        table[firsts, end] = np.round(_total_bytes(profile, state, kept[firsts], peak[firsts], grains_kept, messages))
    return table


def more_gradients_of_tree(grains: Sequence[Sequence[int]]) -> float:
    """The largest number of further sets of gradients that a member holds when it sums in a tree over grains.

    `grains` are each replica's grains. Besides the sums of its tree nodes, a member holds a buffer and its part of all
    replicas' sums. A member with several nodes also holds copies of them in the order of their owners. Without a tree
    there are two sets, or one in a single replica.
    """
    num_grains = sum(map(len, grains))
    if len(grains) == 1:
        return max(0, most_nodes_held(grains[0], num_grains) - 1)
    counts = [len(maximal_nodes(own, num_grains)) for own in grains]
    received = sum(counts) / len(counts)
    needs = [
        1 + (count if count > 1 else 0) + received + most_nodes_held(own, num_grains)
        for own, count in zip(grains, counts, strict=True)
    ]
    return max(needs) - 2


def grain_bytes(
    layers: Iterable[tuple[Bytes, Bytes, Bytes]], num_samples: int, received: float = 0.0
) -> tuple[float, float]:
    """Bytes of one grain that layers keep between its forward and its backward, and the peak while they compute."""
    kept = peak = received
    for activations, forward_peak, backward_peak in layers:
        forward = kept + forward_peak.at(num_samples)
        kept += activations.at(num_samples)
        peak = max(peak, forward, kept + backward_peak.at(num_samples))
    return kept, peak


_Size = TypeVar("_Size", float, Array)
"""Bytes of one stage, or of many."""


def _total_bytes(profile: Profile, state: _Size, kept: _Size, peak: _Size, grains_kept: int, messages: _Size) -> _Size:
    computing = (kept * (grains_kept - 1) + peak) * (1 + profile.memory_overhead)
    return profile.runtime_bytes + state + computing + messages


def _parameter_copies(profile: Profile, num_replicas: int) -> float:
    """The memory that belongs to a parameter, in units of its own size."""
    saved = 1 + profile.optimizer_bytes_per_parameter_byte
    in_flight = 1 if num_replicas > 1 else 0
    return saved + 1 + in_flight + saved / num_replicas


def _tied_twice(profile: Profile, end: int) -> Array:
    """Bytes of tied parameters that a sum over the layers [first, end) counts more than once, by first layer."""
    repeated = np.zeros(end)
    for tie in profile.tied:
        is_used = np.isin(np.arange(end), tie.layers)
        num_uses = np.cumsum(is_used[::-1])[::-1]
        repeated += tie.num_bytes * np.maximum(0, num_uses - 1)
    return repeated

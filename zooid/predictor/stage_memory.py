"""Memory of one member: what its stage, its schedule and its optimizer keep at the same time."""

from collections.abc import Iterable, Sequence

import numpy as np

from zooid.core.plans.profile import Bytes, Profile
from zooid.predictor.equations.array_checks import Array
from zooid.schedule.grain_tree import maximal_nodes, most_nodes_held

_BUFFER_COPIES = 5
"""Buffers themselves; as the step found them, and what changes are told from; as a grain left them; summed changes."""


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
    """Runtime + weights + gradients + gradients on their way between replicas + optimizer + the copy of weights and
    optimizer that a checkpoint is written from, which replicas divide + the most that computing needs.

    `grains_kept` says how many grains' activations the schedule keeps at most. The peak comes in the forward of the
    last of them, or in the backward of the first, at whichever layer needs the most. `more_gradients` says how many
    more sets of gradients there are, where they are added up in a tree over grains.
    """
    layers = profile.layers[first_layer:end_layer]
    copies = _copies(profile, num_replicas) + more_gradients
    state = profile.parameter_bytes(first_layer, end_layer) * copies
    state += _BUFFER_COPIES * sum(layer.buffer_bytes for layer in layers)
    before = profile.layers[first_layer - 1].boundary if first_layer > 0 else profile.inputs
    received = before.at(grain_size)
    passed_on = layers[-1].boundary.at(grain_size)
    kept, most = grain_bytes((layer.memory for layer in layers), grain_size, received)
    computing = (kept * (grains_kept - 1) + most) * (1 + profile.memory_overhead)
    messages = 2 * (received + passed_on)
    return round(profile.runtime_bytes + state + computing + messages)


def least_memory_bytes(profile: Profile, grain_size: int, *, num_replicas: int = 1) -> int:
    """What some member needs at least, wherever the model is cut: whoever has the largest layer holds its state, and
    computes it on one grain."""
    copies = _copies(profile, num_replicas)
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
    """[first, end]: what `stage_memory_bytes` says of every run of layers; 0 where there is none."""
    num_layers = len(profile.layers)
    copies = _copies(profile, num_replicas) + more_gradients
    boundaries = [profile.inputs, *(layer.boundary for layer in profile.layers)]
    crossing = np.array([boundary.at(grain_size) for boundary in boundaries])
    kept, most = crossing[:-1].copy(), crossing[:-1].copy()  # by first layer
    parameters = np.cumsum([0, *(layer.parameter_bytes for layer in profile.layers)])
    buffers = np.zeros(num_layers)
    table = np.zeros((num_layers, num_layers + 1))
    for end, layer in enumerate(profile.layers, start=1):
        activations, forward_peak, backward_peak = (each.at(grain_size) for each in layer.memory)
        begun = slice(0, end)
        forward = kept[begun] + forward_peak
        kept[begun] += activations
        most[begun] = np.maximum(most[begun], np.maximum(forward, kept[begun] + backward_peak))
        buffers[begun] += layer.buffer_bytes
        state = (parameters[end] - parameters[begun] - _counted_twice(profile, end)) * copies
        state += _BUFFER_COPIES * buffers[begun]
        computing = (kept[begun] * (grains_kept - 1) + most[begun]) * (1 + profile.memory_overhead)
        messages = 2 * (crossing[:-1][begun] + crossing[end])
        table[begun, end] = np.round(profile.runtime_bytes + state + computing + messages)
    return table


def _copies(profile: Profile, num_replicas: int) -> float:
    """Of the parameters: they and the optimizer's state, gradients, those on their way between replicas, and what a
    checkpoint is written from, which replicas divide."""
    saved = 1 + profile.optimizer_bytes_per_parameter_byte
    return saved + 1 + (1 if num_replicas > 1 else 0) + saved / num_replicas


def more_gradients_of_tree(grains: Sequence[Sequence[int]]) -> float:
    """How many more sets of gradients a member has at most, if those of each replica's grains are added up in a tree.

    Beside the sums of its nodes, it has a buffer, copies of them all in the order of their owners if there are several,
    and its part of everybody's. Two sets, or one of a single replica, are there without a tree.
    """
    num_grains = sum(map(len, grains))
    counts = [len(maximal_nodes(own, num_grains)) for own in grains]
    if len(grains) == 1:
        return max(0, most_nodes_held(grains[0], num_grains) - 1)
    received = sum(counts) / len(counts)
    needs = [
        1 + (count if count > 1 else 0) + received + most_nodes_held(own, num_grains)
        for own, count in zip(grains, counts, strict=True)
    ]
    return max(needs) - 2


def _counted_twice(profile: Profile, end: int) -> Array:
    """Of parameters that several layers before `end` use, by the first layer of a stage."""
    twice = np.zeros(end)
    for tie in profile.tied:
        used = np.isin(np.arange(end), tie.layers)
        uses = np.cumsum(used[::-1])[::-1]
        twice += tie.num_bytes * np.maximum(0, uses - 1)
    return twice


def grain_bytes(
    layers: Iterable[tuple[Bytes, Bytes, Bytes]], num_samples: int, received: float = 0.0
) -> tuple[float, float]:
    """What layers keep of one grain between its forward and its backward, and the most that they need meanwhile."""
    kept = most = received
    for activations, forward_peak, backward_peak in layers:
        forward = kept + forward_peak.at(num_samples)
        kept += activations.at(num_samples)
        most = max(most, forward, kept + backward_peak.at(num_samples))
    return kept, most

"""Memory of one member: what its stage, its schedule and its optimizer keep at the same time."""

from collections.abc import Iterable

from zooid.core.profile import Bytes, Profile


def stage_memory_bytes(
    profile: Profile, first_layer: int, end_layer: int, grain_size: int, grains_kept: int, *, num_replicas: int = 1
) -> int:
    """Runtime + weights + gradients + gradients on their way between replicas + optimizer + the copy of weights and
    optimizer that a checkpoint is written from, which replicas divide + the most that computing needs.

    `grains_kept` says how many grains' activations the schedule keeps at most. The peak comes in the forward of the
    last of them, or in the backward of the first, at whichever layer needs the most.
    """
    layers = profile.layers[first_layer:end_layer]
    saved = 1 + profile.optimizer_bytes_per_parameter_byte
    copies = saved + 1 + (1 if num_replicas > 1 else 0) + saved / num_replicas
    state = profile.parameter_bytes(first_layer, end_layer) * copies
    state += 2 * sum(layer.buffer_bytes for layer in layers)  # and as they were before the step
    before = profile.layers[first_layer - 1].boundary if first_layer > 0 else profile.inputs
    received = before.at(grain_size)
    passed_on = layers[-1].boundary.at(grain_size)
    kept, most = grain_bytes((layer.memory for layer in layers), grain_size, received)
    computing = (kept * (grains_kept - 1) + most) * (1 + profile.memory_overhead)
    messages = 2 * (received + passed_on)
    return round(profile.runtime_bytes + state + computing + messages)


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

"""Memory of one member: what its stage, its schedule and its optimizer keep at the same time."""

from zooid.core.profile import Profile


def stage_memory_bytes(
    profile: Profile, first_layer: int, end_layer: int, grain_size: int, grains_in_flight: int
) -> int:
    """Runtime + weights + gradients + gradients held for roll-forward + optimizer + live activations + messages.

    GPipe keeps the activations of all of a replica's grains; `grains_in_flight` says how many that is.
    """
    layers = profile.layers[first_layer:end_layer]
    parameters = sum(layer.parameter_bytes for layer in layers)
    state = parameters * (3 + profile.optimizer_bytes_per_parameter_byte) + sum(x.buffer_bytes for x in layers)
    kept = sum(layer.activation_bytes_per_sample for layer in layers) * grain_size * grains_in_flight
    boundary = profile.layers[first_layer - 1].boundary_bytes_per_sample if first_layer > 0 else 0.0
    messages = 2 * (boundary + layers[-1].boundary_bytes_per_sample) * grain_size
    return round(profile.runtime_bytes + state + kept + messages)

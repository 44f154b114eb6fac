"""A measured profile as if every layer of the model were wider: sizes at which it matters how members are laid out, and
that no small machine measures in minutes."""

from msgspec import structs

from zooid.core.plans.profile import Bytes, LayerProfile, Profile


def widened(profile: Profile, factor: float) -> Profile:
    """Parameters and computing grow with the square of the width, what passes between layers with the width; how fast
    numbers are computed stays as it was measured."""
    return structs.replace(
        profile,
        layers=tuple(_wider(layer, factor) for layer in profile.layers),
        tied=tuple(structs.replace(tie, num_bytes=_times(tie.num_bytes, factor**2)) for tie in profile.tied),
    )


def _wider(layer: LayerProfile, factor: float) -> LayerProfile:
    gradients = tuple(
        structs.replace(gradient, num_bytes=_times(gradient.num_bytes, factor**2)) for gradient in layer.gradients
    )
    points = tuple(
        structs.replace(point, forward_s=factor**2 * point.forward_s, backward_s=factor**2 * point.backward_s)
        for point in layer.points
    )
    return structs.replace(
        layer,
        parameter_bytes=_times(layer.parameter_bytes, factor**2),
        buffer_bytes=_times(layer.buffer_bytes, factor),
        boundary=_wider_bytes(layer.boundary, factor),
        activations=_wider_bytes(layer.activations, factor),
        forward_peak=_wider_bytes(layer.forward_peak, factor),
        backward_peak=_wider_bytes(layer.backward_peak, factor),
        points=points,
        crowded_points=(),
        gradients=gradients,
    )


def _wider_bytes(amount: Bytes, factor: float) -> Bytes:
    """What does not depend on the samples is mostly of the size of parameters."""
    return Bytes(per_sample=factor * amount.per_sample, fixed=factor**2 * amount.fixed)


def _times(num_bytes: int, factor: float) -> int:
    """Whole numbers of four bytes."""
    return round(num_bytes / 4 * factor) * 4

"""A profile whose layers take longer or shorter, as stages of a run have measured them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import LayerProfile, Profile, TimePoint

_NEAR = 1e-4
"""Relative difference of factors that are found to be the same."""


@dataclass(frozen=True)
class ComputeFactors:
    """Factors on the times of a stage, measured over predicted."""

    forward: float = 1.0
    backward: float = 1.0

    def is_near(self, other: "ComputeFactors") -> bool:
        pairs = ((self.forward, other.forward), (self.backward, other.backward))
        return all(math.isclose(one, another, rel_tol=_NEAR) for one, another in pairs)

    def times(self, forward: float, backward: float) -> "ComputeFactors":
        return ComputeFactors(self.forward * forward, self.backward * backward)


def scaled_profile(profile: Profile, plan: Plan, factors: Mapping[int, ComputeFactors], *, crowded: bool) -> Profile:
    """Scale the layers of these stages of a plan by their factors, and all other layers by the factor of their sum.

    The first and the last stage also read samples in their forwards, so reading gets the smaller factor of theirs. Then
    something is left for their layers.
    """
    size = plan.grain_size
    readers = {0, len(plan.stages) - 1} & factors.keys()
    load_s = profile.load_s_per_sample * size
    load_factor = min((factors[stage].forward for stage in readers), default=1.0)
    stage_factors: dict[int, ComputeFactors] = {}
    sums: list[tuple[ComputeFactors, float, float]] = []
    for stage, factor in factors.items():
        layers = profile.layers[slice(*plan.partition[stage])]
        forward_s = sum(layer.forward_s(size, crowded=crowded) for layer in layers)
        backward_s = sum(layer.backward_s(size, crowded=crowded) for layer in layers)
        if stage in readers and forward_s > 0:
            layers_s = (forward_s + load_s) * factor.forward - load_s * load_factor
            factor = ComputeFactors(layers_s / forward_s, factor.backward)
        stage_factors[stage] = factor
        sums.append((factor, forward_s, backward_s))
    by_layer = [_overall(sums)] * len(profile.layers)
    for stage, factor in stage_factors.items():
        first, end = plan.partition[stage]
        by_layer[first:end] = [factor] * (end - first)
    return structs.replace(
        profile,
        layers=tuple(_scaled(layer, factor) for layer, factor in zip(profile.layers, by_layer, strict=True)),
        load_s_per_sample=profile.load_s_per_sample * load_factor,
    )


def _overall(sums: Iterable[tuple[ComputeFactors, float, float]]) -> ComputeFactors:
    """The factors of several stages together, given the seconds of their forwards and backwards."""
    stages = list(sums)
    forward_s = sum(seconds for _, seconds, _ in stages)
    backward_s = sum(seconds for _, _, seconds in stages)
    return ComputeFactors(
        sum(factor.forward * seconds for factor, seconds, _ in stages) / forward_s if forward_s else 1.0,
        sum(factor.backward * seconds for factor, _, seconds in stages) / backward_s if backward_s else 1.0,
    )


def _scaled(layer: LayerProfile, factor: ComputeFactors) -> LayerProfile:
    def scaled(points: tuple[TimePoint, ...]) -> tuple[TimePoint, ...]:
        return tuple(
            structs.replace(
                point, forward_s=point.forward_s * factor.forward, backward_s=point.backward_s * factor.backward
            )
            for point in points
        )

    return structs.replace(layer, points=scaled(layer.points), crowded_points=scaled(layer.crowded_points))

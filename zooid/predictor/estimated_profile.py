"""Estimated profiles: times on an offer that was not measured, scaled from a measured device by peak speed."""

from msgspec import structs

from zooid.catalog import reference_score
from zooid.core.errors import PlanError
from zooid.core.plans.profile import LayerProfile, Profile, TimePoint
from zooid.core.resources.offer import Offer


def estimate_profile(measured: Profile, offer: Offer, measured_size: Offer | None = None) -> Profile:
    """Estimate the profile on an offer, as if all work scaled with peak speed. The result is marked as an estimate.

    If another size of the same offer was measured, `measured_size`, work scales with the cores of a member. Bytes and
    links stay as measured, though links say nothing about another site. The speed of copies is unknown.
    """
    if measured.is_estimate:
        raise PlanError(
            f"the profile of {measured.job} is itself an estimate, from {measured.estimated_from}; give a measured one"
        )
    if measured_size is None:
        factor = measured.device.score / reference_score(offer)
    else:
        factor = min(measured.device.num_cores, measured_size.vcpus) / offer.vcpus
    device = structs.replace(
        measured.device,
        kind="cuda" if offer.gpu else "cpu",
        name=offer.name,
        num_threads=max(1, round(offer.vcpus)),
        num_cores=offer.vcpus,
        score=measured.device.score / factor,
        copies=None,
    )
    return structs.replace(
        measured,
        device=device,
        estimated_from=measured.device.name,
        optimizer_s_per_byte=measured.optimizer_s_per_byte * factor,
        layers=tuple(_scaled(layer, factor) for layer in measured.layers),
    )


def _scaled(layer: LayerProfile, factor: float) -> LayerProfile:
    def slower(points: tuple[TimePoint, ...]) -> tuple[TimePoint, ...]:
        return tuple(
            structs.replace(point, forward_s=point.forward_s * factor, backward_s=point.backward_s * factor)
            for point in points
        )

    return structs.replace(layer, points=slower(layer.points), crowded_points=())

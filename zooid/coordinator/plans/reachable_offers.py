"""Transports that connect members, on offers whose members accept no connections."""

from collections.abc import Iterable

from zooid.coordinator.plans.offer_names import rented_offer
from zooid.core.errors import PlanError
from zooid.core.plans.plan import TransportName
from zooid.core.resources.offer import Offer


def check_connections(transport: TransportName | None, offers: Iterable[Offer]) -> None:
    """Reject a transport that connects members where they cannot be connected.

    A plan may know an offer as a machine that can be connected, though nobody opens a port to it where it is rented.

    >>> check_connections("store", [])
    """
    if transport in (None, "store"):
        return
    started = (rented_offer(offer.name) if offer.is_rented else offer for offer in offers)
    closed = list(dict.fromkeys(offer.name for offer in started if not offer.accepts_connections))
    if closed:
        raise PlanError(
            f"members are to be connected over {transport}, but those on {', '.join(closed[:3])} accept no connections "
            "from one another; use the store: give --transport store, or plan with it"
        )

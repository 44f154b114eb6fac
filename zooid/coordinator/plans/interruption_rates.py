"""Rates at which members are lost, given by the names of offers."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer


def with_interruptions(offers: Iterable[Offer], per_hour: Mapping[str, float] | None) -> tuple[Offer, ...]:
    """Return the offers with these rates: losses of a member per hour, by the name of an offer or its beginning.

    The longest name that means an offer decides. A name that means none of the offers is rejected.
    """
    given = tuple(offers)
    if not per_hour:
        return given
    from zooid.planner.market import is_named  # imports numpy, which runs without rates do not need

    for name, rate in per_hour.items():
        if not any(is_named(offer.name, name) for offer in given):
            names = ", ".join(offer.name for offer in given)
            raise InputError(f"a rate of interruptions is given for {name!r}, but the offers are {names}; name one")
        if not rate >= 0:
            raise InputError(f"{name} is to be interrupted {rate} times an hour; give at least 0")
    names_of = {offer.name: [name for name in per_hour if is_named(offer.name, name)] for offer in given}
    return tuple(
        structs.replace(offer, interruptions_per_hour=per_hour[max(names, key=len)]) if names else offer
        for offer in given
        for names in [names_of[offer.name]]
    )

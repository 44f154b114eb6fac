"""Offers and prices as data: CSV files in `data/`, in which every row has a source and a date.

>>> from zooid.catalog import offer
>>> offer("azure.aci.k80").usd_per_hour
0.5121
"""

from zooid.catalog.own_machine import local_offer
from zooid.catalog.price_lookup import OWNED, prices_for, store_location
from zooid.catalog.shipped_tables import (
    device_scores,
    egress_prices,
    links,
    offer,
    offers,
    reference_score,
    regions,
    sized_offer,
    storage_prices,
)

__all__ = [
    "OWNED",
    "device_scores",
    "egress_prices",
    "links",
    "local_offer",
    "offer",
    "offers",
    "prices_for",
    "reference_score",
    "regions",
    "sized_offer",
    "storage_prices",
    "store_location",
]

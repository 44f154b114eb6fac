"""Price lists that the user has imported, one for each provider, in a folder of the user's own."""

import datetime
from pathlib import Path

from zooid.catalog.machine_prices import MachinePriceList
from zooid.core.environment import prices_folder
from zooid.core.errors import CatalogError, RecordError
from zooid.core.files import replaced_whole
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.offer import Offer

OLD_DAYS = 90
"""Prices change about as often as this, so that older ones deserve a warning."""


def keep_prices(prices: MachinePriceList) -> Path:
    """Write a price list, which replaces the one of the same provider, and return its file."""
    file = Path(prices_folder()) / f"{prices.provider}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced_whole(file) as written:
        written.write_bytes(encode_record(prices))
    return file


def imported_offers() -> tuple[Offer, ...]:
    """Return the offers of all imported price lists."""
    return tuple(offer for prices in kept_prices() for offer in prices.offers())


def kept_prices() -> tuple[MachinePriceList, ...]:
    """Return all imported price lists, by the names of their providers."""
    lists = []
    for file in sorted(Path(prices_folder()).glob("*.json")):
        try:
            lists.append(decode_record(file.read_bytes(), MachinePriceList, str(file)))
        except (OSError, RecordError) as error:
            raise CatalogError(f"{error}; remove {file}, and import its prices again") from error
    return tuple(lists)


def age_days(date: str, today: datetime.date | None = None) -> int:
    """Return how many days ago prices were of this date, `YYYY-MM-DD`, or at most `YYYY-MM`.

    >>> age_days("2026-08-22", datetime.date(2026, 11, 20)), age_days("2026-08", datetime.date(2026, 11, 20))
    (90, 111)
    """
    day = datetime.date.fromisoformat(date if date.count("-") == 2 else f"{date}-01")
    return ((today or datetime.date.today()) - day).days

"""Readers of price lists in the layouts in which others publish them.

Each reader returns an `ImportedPrices`: the prices that it kept, and every other row with its line and the reason.
"""

from zooid.catalog.importers.imported_prices import ImportedPrices, SkippedRow
from zooid.catalog.importers.layouts import read_prices

__all__ = ["ImportedPrices", "SkippedRow", "read_prices"]

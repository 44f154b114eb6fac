"""Readers of price lists in the layouts in which others publish them.

Each reader returns an `ImportedPrices`: the prices that it kept, and every other row with its line and the reason.
"""

from zooid.catalog.importers.imported_prices import ImportedPrices, LeftOut
from zooid.catalog.importers.skypilot_files import find_skypilot_files, read_skypilot_file

__all__ = ["ImportedPrices", "LeftOut", "find_skypilot_files", "read_skypilot_file"]

"""What a reader of price lists returns."""

from collections import Counter
from dataclasses import dataclass

from zooid.catalog.machine_prices import MachinePriceList


@dataclass(frozen=True)
class SkippedRow:
    """A row of a file, or its spot price, that is not in the price list."""

    line: int
    reason: str
    detail: str = ""
    """What was found, where the reason alone does not say it."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}{f' ({self.detail})' if self.detail else ''}"


class Unusable(Exception):
    """A row cannot be kept."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class ImportedPrices:
    """A price list, and what was left out of it."""

    file: str
    prices: MachinePriceList
    num_rows: int
    """Rows of the file, without its header and empty lines."""
    num_kept: int
    rows_left_out: tuple[SkippedRow, ...]
    """Every row that was not kept."""
    spot_left_out: tuple[SkippedRow, ...]
    """Rows that were kept without their spot price."""

    def __post_init__(self) -> None:
        assert self.num_rows == self.num_kept + len(self.rows_left_out), "every row is kept or named"

    @property
    def reasons(self) -> Counter[str]:
        """How many rows were left out for each reason."""
        return Counter(row.reason for row in self.rows_left_out)

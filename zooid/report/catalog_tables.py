"""Offers and price lists on a terminal."""

from collections.abc import Sequence

from rich.table import Table

from zooid.catalog.importers import ImportedPrices
from zooid.catalog.machine_prices import MachinePriceList
from zooid.catalog.offer_choice import usd_per_gpu_hour
from zooid.catalog.price_cache import OLD_DAYS, age_days
from zooid.core.resources.offer import Offer
from zooid.core.units import format_bytes, format_usd
from zooid.report.phrases import NOTHING, count_in_words
from zooid.report.terminal_text import cell

_HEADS = ("an hour", "a GPU", "GPUs", "vCPUs", "memory", "as of", "offer")
_EXAMPLES = 3
"""Rows that are shown for each reason why others were left out."""


def catalog_lines(offers: Sequence[Offer], num_fitting: int) -> list[str]:
    """A line for each offer, with its name at the end, so that no terminal is too narrow to show it whole."""
    rows = [_HEADS, *(_cells(offer) for offer in offers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS) - 1)]
    lines = [
        "  ".join([*(text.rjust(width) for text, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    shown = f", of which {len(offers)} are shown; --limit shows more" if len(offers) < num_fitting else ""
    return [*lines, f"{count_in_words(num_fitting, 'offer')}{shown}"]


def _cells(offer: Offer) -> tuple[str, ...]:
    for_gpu = usd_per_gpu_hour(offer)
    return (
        format_usd(offer.usd_per_hour),
        NOTHING if for_gpu is None else format_usd(for_gpu),
        f"{offer.num_gpus} × {offer.gpu}" if offer.gpu else NOTHING,
        f"{offer.vcpus:g}",
        format_bytes(offer.memory_bytes),
        offer.date,
        f"{offer.name} (retired)" if offer.is_retired else offer.name,
    )


def price_lists_table(lists: Sequence[MachinePriceList]) -> Table:
    """A row for each imported price list, with its age."""
    table = Table(title="imported price lists")
    for name in ("provider", "machines", "source", "as of", "age"):
        table.add_column(name, justify="right" if name in ("machines", "age") else "left")
    for prices in lists:
        days = age_days(prices.date)
        table.add_row(
            cell(prices.provider),
            f"{len(prices.machines)}",
            cell(prices.source),
            cell(prices.date),
            count_in_words(days, "day"),
            style="yellow" if days > OLD_DAYS else None,
        )
    return table


def age_warning(offers: Sequence[Offer]) -> str:
    """Say how many of these prices are old; empty if none is."""
    num_old = sum(age_days(offer.date) > OLD_DAYS for offer in offers)
    if not num_old:
        return ""
    which = "this price is" if len(offers) == 1 else f"{num_old} of these {len(offers)} prices are"
    return f"{which} older than {OLD_DAYS} days; import today's with zooid catalog --import PATH"


def import_in_words(imported: ImportedPrices) -> list[str]:
    """Say what was read from a file, and why rows were left out, with a few of them."""
    prices = imported.prices
    first = (
        f"{imported.file}: {count_in_words(imported.num_rows, 'row')} read, {imported.num_kept} kept as "
        f"{count_in_words(len(prices.machines), 'machine')} of {prices.provider} at prices of {prices.date}"
    )
    lines = [first]
    for reason, number in imported.reasons.most_common():
        named = [row for row in imported.rows_left_out if row.reason == reason][:_EXAMPLES]
        places = ", ".join(f"line {row.line}{f' ({row.detail})' if row.detail else ''}" for row in named)
        lines.append(f"  {number} left out: {reason}: {places}{', …' if number > len(named) else ''}")
    if imported.spot_left_out:
        example = imported.spot_left_out[0]
        lines.append(
            f"  {len(imported.spot_left_out)} kept without their spot price, which is 0 or not below that on demand, "
            f"such as {example}"
        )
    return lines

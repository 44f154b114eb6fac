"""What earlier runs have corrected in a prediction, on a terminal."""

from collections import defaultdict
from collections.abc import Sequence

from rich.table import Table

from zooid.core.plans.correction import Correction
from zooid.core.units import format_bytes_per_s, format_duration
from zooid.report.phrases import NOTHING
from zooid.report.terminal_text import cell, numbers_table

_PARTS = {
    "forward": "forward of a grain",
    "backward": "backward of a grain",
    "update": "update",
    "bandwidth": "bandwidth",
    "round trip": "round trip",
    "step": "step",
}


def correction_tables(corrections: Sequence[Correction]) -> list[Table]:
    """A table for each run: what was predicted and measured of each stage, of each link, and of the step."""
    by_run: defaultdict[str, list[Correction]] = defaultdict(list)
    for correction in corrections:
        by_run[correction.run].append(correction)
    return [_table(run, rows) for run, rows in by_run.items()]


def _table(run: str, rows: Sequence[Correction]) -> Table:
    heads = ("what", "where", "predicted", "measured", "factor")
    table = numbers_table("corrected by a run", heads, f"measured in {run}" if run else "")
    table.columns[1].justify = "left"
    for row in rows:
        shown = format_bytes_per_s if row.part == "bandwidth" else format_duration
        factor = NOTHING if row.factor is None else f"{row.factor:.3g}"
        table.add_row(_PARTS[row.part], cell(row.where), shown(row.predicted), shown(row.measured), factor)
    return table

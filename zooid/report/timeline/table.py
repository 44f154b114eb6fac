"""A step on a terminal: how each member used its time."""

from rich.table import Table

from zooid.core.runs.timeline import Timeline
from zooid.core.units import format_duration
from zooid.report.terminal_text import cell, numbers_table
from zooid.report.timeline.rows import COLUMNS, usage_rows

_CAPTION = "transfers: without waiting for others\nhidden: part of them while it computes\nidle: neither"


def timeline_table(timeline: Timeline, title: str = "timeline of a step") -> Table:
    """A row for each member, and one for all of them together."""
    table = numbers_table(f"{title}: {format_duration(timeline.step_s)}", ("member", *COLUMNS), _CAPTION)
    table.caption_justify = "left"
    *members, total = usage_rows(timeline)
    for name, cells in members:
        table.add_row(cell(name), *cells)
    table.add_section()
    table.add_row(total[0], *total[1])
    return table

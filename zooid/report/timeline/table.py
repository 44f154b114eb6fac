"""What members did with a step, in numbers: the table on a terminal, and the words that the page has, too."""

from rich.table import Table

from zooid.core.runs.step_parts import StepParts, parts_by_member, total_parts
from zooid.core.runs.timeline import Timeline
from zooid.core.units import format_duration
from zooid.report.profile.rows import NOTHING
from zooid.report.terminal_text import cell
from zooid.report.timeline.rows import members_in_order

COLUMNS = {
    "computes": "share of the step in which it computes",
    "transfers": "time in which something is on its way up, down or in a reduce; waiting for others does not count",
    "hidden": "share of that time in which it computes as well",
    "idle": "share of the step in which it neither computes nor transfers",
}
"""Each with what it means."""
_CAPTION = "transfers: without waiting for others\nhidden: part of them while it computes\nidle: neither"


def timeline_table(timeline: Timeline, title: str = "timeline of a step") -> Table:
    """One row for each member, and one for all of them together."""
    table = Table(title=cell(f"{title}: {format_duration(timeline.step_s)}"), caption=_CAPTION, caption_justify="left")
    table.add_column("member")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    *members, everyone = parts_rows(timeline)
    for name, parts in members:
        table.add_row(cell(name), *cells(parts))
    table.add_section()
    table.add_row(everyone[0], *cells(everyone[1]))
    return table


def parts_rows(timeline: Timeline) -> list[tuple[str, StepParts]]:
    """Names of members in order, and last of all `all`."""
    parts = parts_by_member(timeline)
    rows = [(member, parts[member]) for member in members_in_order(timeline)]
    return [*rows, ("all", total_parts(parts.values()))]


def cells(parts: StepParts) -> tuple[str, ...]:
    """In the order of the columns."""
    hidden = parts.hidden_fraction
    return (
        share_in_words(parts.compute_fraction),
        format_duration(parts.moving_s) if parts.moving_s else NOTHING,
        NOTHING if hidden is None else share_in_words(hidden),
        share_in_words(parts.bubble_fraction),
    )


def share_in_words(share: float) -> str:
    return f"{share * 100:.0f} %"

"""A search for a plan on a terminal: the plans to choose from, and the proof that none is better."""

from rich.table import Table

from zooid.core.plans.search_result import Search
from zooid.report.search.rows import (
    PICK,
    PlanRow,
    effort_in_words,
    estimate_mark,
    goal_in_words,
    plan_rows,
    proof_in_words,
)
from zooid.report.terminal_text import cell


def search_table(search: Search) -> Table:
    """The Pareto front, a row for each plan, fastest first; the runner-up is below it where it is not on it."""
    mark = estimate_mark(search)
    title = f"{mark}: {search.pick.job}" if mark else search.pick.job
    table = Table(
        title=cell(f"{title}: plans to choose from, goal {goal_in_words(search)}"),
        caption=cell(f"{effort_in_words(search)}\n{proof_in_words(search)}"),
    )
    table.add_column("", no_wrap=True)
    for name in ("run time\np95", "cost\np95", "layout\nmembers"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("offers", overflow="fold")
    table.add_column("grain", justify="right", no_wrap=True)
    table.add_column("schedule\ntransport", no_wrap=True)
    rows = plan_rows(search)
    for row, next_row in zip(rows, [*rows[1:], None], strict=True):
        is_last_of_front = row.is_on_front and next_row is not None and not next_row.is_on_front
        table.add_row(*_cells(row), style="bold" if row.mark == PICK else None, end_section=is_last_of_front)
    return table


def _cells(row: PlanRow) -> list[str]:
    """Most cells have two lines, so that names of offers have room on a narrow terminal."""
    return [
        cell(row.mark),
        f"{row.run}\n{row.run_p95}",
        f"{row.usd}\n{row.usd_p95}",
        cell(f"{row.layout}\n{row.members}"),
        cell("\n".join(row.offers)),
        row.grain_size,
        f"{row.schedule}\n{row.transport}",
    ]

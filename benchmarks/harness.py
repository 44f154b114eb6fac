"""What every benchmark shares: its options, its progress bar, its table, and the line of JSON at the end."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Value]
Measure: TypeAlias = Callable[[bool], Iterator[Row]]
"""Takes whether the run is quick; yields rows as they are measured."""
Summarise: TypeAlias = Callable[[list[Row]], list[Row]]


def run_benchmark(
    title: str,
    measure: Measure,
    num_rows: Callable[[bool], int],
    summarise: Summarise | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Run one benchmark from the command line. Progress and tables go to stderr, the JSON line to stdout.

    `summarise` adds rows of its own at the end. `arguments` are what a benchmark with options of its own leaves of the
    command line.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="a short form: fewer rows, less exact")
    quick: bool = parser.parse_args(arguments).quick
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that the laboratory is cleared away
    terminal = Console(stderr=True)
    console = terminal if terminal.is_terminal else Console(stderr=True, width=160)
    rows: list[Row] = []
    with Progress(console=console) as progress:
        task = progress.add_task(title, total=num_rows(quick))
        for row in measure(quick):
            rows.append(row)
            progress.update(task, advance=1)
    console.print(_table(title, rows))
    if summarise is not None:
        totals = summarise(rows)
        console.print(_table(f"{title}, in short", totals))
        rows += totals
    print(json.dumps(rows))


def _table(title: str, rows: list[Row]) -> Table:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=title)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    return table


def _cell(value: Value) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

"""Texts for a terminal, shown literally whoever wrote them.

Rich reads square brackets as markup, and terminals obey escape sequences. Names, paths, messages and the output of jobs
may contain both, so everything that is printed or put into a table goes through these functions.
"""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zooid.core.text import printable


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text on lines of its own, without wrapping it."""
    console.print(printable(text), highlight=False, markup=False, emoji=False, style=style, soft_wrap=True)


def cell(text: str) -> str:
    """Escape a text for the title, the caption or a cell of a table."""
    return escape(printable(text))


def numbers_table(title: str, heads: Iterable[str], caption: str = "") -> Table:
    """An empty table with names in the first column and numbers in the others."""
    table = Table(title=cell(title), caption=cell(caption))
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    return table

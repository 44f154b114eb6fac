"""How texts reach a terminal: as they are, whoever wrote them.

Rich reads square brackets as markup, and terminals obey escape sequences. Names of metrics, paths, messages and what
jobs print may hold either, so nothing is printed, and nothing put into a table, but through here.
"""

from rich.console import Console
from rich.markup import escape

from zooid.core.text import printable


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text on lines of its own, without wrapping it."""
    console.print(printable(text), highlight=False, markup=False, emoji=False, style=style, soft_wrap=True)


def cell(text: str) -> str:
    """A text for a table's title, caption or cell."""
    return escape(printable(text))

"""The frame that all pages share, and HTML that several of them have.

A page is one file that needs no network, in light or dark as the reader prefers. Frame, style and scripts lie in
`assets`: `NAME.html` is the body of a page, `NAME.js` its script, and `NAME.css`, if it exists, its additional style.
"""

import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Any

from zooid.core.files import replaced_whole
from zooid.core.version import VERSION


def framed(
    name: str,
    *,
    title: str,
    data: Any,
    versions: str = f"zooid {VERSION}",
    has_plotly: bool = True,
    also: Sequence[str] = (),
    **parts: object,
) -> str:
    """Build the page of this name: `parts` fill its body, and `data` is what its script draws.

    The pages in `also` lend their style and script, which come before its own. Plotly's script makes a page large, so
    it loads, and is part of a page, only where it is needed.
    """
    library = ""
    if has_plotly:
        from plotly.offline import get_plotlyjs

        library = f"<script>{get_plotlyjs()}</script>\n"
    names = (*also, name)
    styles = [asset(f"{page}.css") for page in names if _assets().joinpath(f"{page}.css").is_file()]
    return Template(asset("frame.html")).substitute(
        title=html.escape(title),
        style="".join([asset("page.css"), *styles]),
        body=filled(f"{name}.html", **parts),
        versions=html.escape(versions),
        picture=_as_data(data),
        library=library,
        script="".join(asset(f"{page}.js") for page in names),
    )


def filled(name: str, **parts: object) -> str:
    """Fill the gaps of a piece of HTML."""
    return Template(asset(name)).substitute(parts)


def write_page(path: Path, page: str) -> None:
    """Write a page into a file, whole or not at all."""
    with replaced_whole(path) as staged:
        staged.write_text(page, encoding="utf-8")


def badge(text: str) -> str:
    """A mark beside the heading, or nothing where there is no text."""
    return f'<span class="badge">{html.escape(text)}</span>' if text else ""


def fact_list(facts: Iterable[tuple[str, str, str]]) -> str:
    """The facts at the top of a page: a name, a value, and a note in small print."""
    return "\n".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}<small>{html.escape(note)}</small></dd></div>"
        for name, value, note in facts
    )


def paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)


def radio_buttons(name: str, labels: Sequence[str], checked: int) -> str:
    return "\n".join(
        f'<label><input type="radio" name="{name}" value="{number}"{" checked" if number == checked else ""}>'
        f"<span>{html.escape(label)}</span></label>"
        for number, label in enumerate(labels)
    )


def table(css_class: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    """A table; its rows are HTML, as `table_row` makes them."""
    head = "".join(f"<th>{head}</th>" for head in heads)
    body = "\n".join(rows)
    return f'<table class="{css_class}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'


def table_row(cells: Iterable[str], css_class: str = "") -> str:
    """A row of cells that are HTML."""
    opening = f'<tr class="{css_class}">' if css_class else "<tr>"
    return opening + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def asset(name: str) -> str:
    return _assets().joinpath(name).read_text(encoding="utf-8")


def _assets() -> Traversable:
    return resources.files("zooid.report").joinpath("assets")


def _as_data(value: Any) -> str:
    """JSON for a script element, which no text inside it can end."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")

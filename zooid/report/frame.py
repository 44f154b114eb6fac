"""What all pages have in common: one file each that needs no network, in the colours of the reader's choice.

Frame, style and scripts lie in `assets`: `NAME.html` is the body of a page, `NAME.js` its script, and `NAME.css`, where
there is one, what it adds to the style of all.
"""

import html
import json
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Any

from zooid.core.files import replaced_whole


def framed(
    name: str,
    *,
    title: str,
    versions: str,
    data: Any,
    library: str = "",
    also: Sequence[str] = (),
    **parts: object,
) -> str:
    """The page of this name: `parts` fill its body, `data` is what its script draws, with a library if it needs one.
    Style and script of pages that it has parts of are `also` in it, before its own."""
    names = (*also, name)
    styles = [asset(f"{each}.css") for each in names if _assets().joinpath(f"{each}.css").is_file()]
    return Template(asset("frame.html")).substitute(
        title=html.escape(title),
        style="".join([asset("page.css"), *styles]),
        body=filled(f"{name}.html", **parts),
        versions=html.escape(versions),
        picture=_as_data(data),
        library=f"<script>{library}</script>\n" if library else "",
        script="".join(asset(f"{each}.js") for each in names),
    )


def filled(name: str, **parts: object) -> str:
    """A piece of a page with its gaps filled."""
    return Template(asset(name)).substitute(parts)


def write_page(path: Path, page: str) -> None:
    """A page into a file, whole or not at all."""
    with replaced_whole(path) as staged:
        staged.write_text(page, encoding="utf-8")


def asset(name: str) -> str:
    return _assets().joinpath(name).read_text(encoding="utf-8")


def _assets() -> Traversable:
    return resources.files("zooid.report").joinpath("assets")


def _as_data(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")

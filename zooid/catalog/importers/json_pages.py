"""Price lists that a cloud hands out page by page, saved as JSON.

A file holds one page, a list of pages, or pages one after another, as a loop over the pages that appends to one file
leaves them. Each page is an object whose items are in one of its fields.
"""

import datetime
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zooid.core.errors import CatalogError
from zooid.core.text import quoted

_BLANK = re.compile(r"[ \t\r\n]*")
_MAX_FIELDS_SHOWN = 5


@dataclass(frozen=True)
class SavedItems:
    """The items of all pages of a file."""

    items: tuple[object, ...]
    """In the order of the file, not checked."""
    day: str
    """The day on which the file was last changed, `YYYY-MM-DD`."""


def read_saved_items(file: Path, field: str, kind: str, advice: str) -> SavedItems:
    """Return the items that the pages of a file have in this field.

    The CatalogError for another file says that it is no `kind`, and to give what `advice` names.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
        changed_s = file.stat().st_mtime
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{file} cannot be read: {error}; give {advice}") from error
    refusal = f"{file} is no {kind}"
    try:
        documents = list(_documents(text))
    except (ValueError, RecursionError) as error:
        raise CatalogError(f"{refusal}: it is not JSON ({quoted(str(error))}); give {advice}") from error
    is_list = len(documents) == 1 and isinstance(documents[0], list)
    pages: list[Any] = documents[0] if is_list else documents
    if not pages:
        raise CatalogError(f"{refusal}: it holds no page; give {advice}")
    items: list[object] = []
    for number, page in enumerate(pages, 1):
        found = page.get(field) if isinstance(page, dict) else None
        if not isinstance(found, list):
            given = f"its page {number} is {_described(page)}"
            raise CatalogError(f"{refusal}: {given}, not an object with a list `{field}`; give {advice}")
        items += found
    return SavedItems(tuple(items), datetime.date.fromtimestamp(changed_s).isoformat())


def _documents(text: str) -> Iterator[Any]:
    """Return the JSON values that stand in a text one after another."""
    decoder = json.JSONDecoder()
    position = _after_blank(text, 0)
    while position < len(text):
        document, end = decoder.raw_decode(text, position)
        yield document
        position = _after_blank(text, end)


def _after_blank(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    return position if blank is None else blank.end()


def _described(page: object) -> str:
    if not isinstance(page, dict):
        return {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(page), "a number")
    if not page:
        return "an empty object"
    more = ", …" if len(page) > _MAX_FIELDS_SHOWN else ""
    return f"an object with {quoted(', '.join(list(page)[:_MAX_FIELDS_SHOWN]))}{more}"

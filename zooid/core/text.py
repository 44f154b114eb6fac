"""Texts that others wrote, made safe to show: no control sequences for a terminal, no credentials, no endless lines."""

import re

MOST_SHOWN = 500
"""Characters of a text from elsewhere that one message repeats."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1: they steer terminals
    "\u200e\u200f\u2028-\u202e\u2066-\u2069"  # they reorder or break lines, so that a text reads as another
    "\ud800-\udfff]"  # halves of characters, which cannot be encoded
)
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")


def printable(text: str) -> str:
    r"""The text with every character that steers a terminal or reorders a line spelled out.

    >>> printable("\x1b[2Jall fine")
    '\\x1b[2Jall fine'
    """
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shortened(text: str, most: int = MOST_SHOWN) -> str:
    """The text, cut in its middle where it is longer than `most` characters.

    >>> shortened("0123456789", 5)
    '01…89'
    """
    if len(text) <= most:
        return text
    kept = (most - 1) // 2
    return f"{text[:kept]}…{text[-kept:]}"


def quoted(text: str) -> str:
    """A text from elsewhere as a message repeats it: short, printable, without credentials."""
    return printable(shortened(without_credentials(text)))


def without_credentials(text: str) -> str:
    """The text without what its URLs have before an @, which may be a user's name and password.

    >>> without_credentials("get of http://me:secret@localhost:9000/bucket failed")
    'get of http://…@localhost:9000/bucket failed'
    """
    return _CREDENTIALS.sub("…@", text)


def has_credentials(url: str) -> bool:
    """Whether the URL has a user's name or a password before its host."""
    return _CREDENTIALS.search(url) is not None

"""Untrusted text made safe to print: no terminal control sequences, no credentials, no endless lines."""

import re

_MAX_SHOWN = 500
"""Number of characters of an untrusted text that one message repeats."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1: terminals obey them
    "\u200e\u200f\u2028-\u202e\u2066-\u2069"  # they reorder or break lines, so that the text reads differently
    "\ud800-\udfff]"  # surrogates, which cannot be encoded
)
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")


def printable(text: str) -> str:
    r"""Escape every character that controls a terminal or reorders a line.

    >>> printable("\x1b[2Jall fine")
    '\\x1b[2Jall fine'
    """
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shortened(text: str, max_length: int = _MAX_SHOWN) -> str:
    """Cut out the middle of a text that is longer than `max_length` characters.

    >>> shortened("0123456789", 5)
    '01…89'
    """
    if len(text) <= max_length:
        return text
    num_kept = (max_length - 1) // 2
    return f"{text[:num_kept]}…{text[-num_kept:]}"


def quoted(text: str) -> str:
    """Make an untrusted text safe to repeat in a message: short, printable, without credentials."""
    return printable(shortened(without_credentials(text)))


def without_credentials(text: str) -> str:
    """Remove user names and passwords from the URLs in a text.

    >>> without_credentials("get of http://me:secret@localhost:9000/bucket failed")
    'get of http://…@localhost:9000/bucket failed'
    """
    return _CREDENTIALS.sub("…@", text)


def has_credentials(url: str) -> bool:
    """Whether the URL contains a user name or a password."""
    return _CREDENTIALS.search(url) is not None

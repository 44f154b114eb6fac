"""Base classes of records that are stored as JSON: frozen, validated and versioned.

A record that stands alone in a file carries its kind and its version. The reader never guesses: it rejects a newer
version, another kind, an unknown field or an invalid value, and the message names it.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from zooid.core.errors import OlderRecord, RecordError
from zooid.core.text import printable, quoted


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen part of a file; the reader rejects unknown fields."""


class FileRecord(Record, frozen=True, kw_only=True, tag_field="record"):
    """A record that stands alone in a file or an object. Subclasses set a tag, and raise VERSION when they change."""

    VERSION: ClassVar[int] = 1

    version: int = 1
    """Version of this record's fields; the reader rejects newer ones."""


class _Envelope(msgspec.Struct):
    record: str
    version: int


AnyFileRecord = TypeVar("AnyFileRecord", bound=FileRecord)
Decoded = TypeVar("Decoded")

_MANY_DIGITS = re.compile(rb"[0-9]{20}")
_TEXT_OR_MANY_DIGITS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(?<![.0-9])([0-9]{20,})(?![.0-9eE])', re.DOTALL)

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError)
"""Errors that decoding raises for untrusted bytes: malformed, not UTF-8, nested too deeply, or absurd numbers."""


class InvalidValue(RecordError, ValueError):
    """A record was given an invalid value. If it comes from a file, msgspec adds the field's path to the message."""


def require(condition: bool, message: str) -> None:
    """Raise InvalidValue unless the condition holds."""
    if not condition:
        raise InvalidValue(message)


def require_at_least(minimum: float, record: Record, *fields: str, of: str = "") -> None:
    """Reject a record if one of its fields is below the minimum; None is allowed."""
    for field in fields:
        value = getattr(record, field)
        if value is not None and not value >= minimum:
            raise InvalidValue(f"`{field}`{of and f' of {of}'} is {value}; it must be at least {minimum:g}")


def require_positive(record: Record, *fields: str, of: str = "") -> None:
    """Reject a record if one of its fields is not above 0; None is allowed."""
    for field in fields:
        value = getattr(record, field)
        if value is not None and not value > 0:
            raise InvalidValue(f"`{field}`{of and f' of {of}'} is {value}; it must be above 0")


def require_name(field: str, name: str) -> None:
    """Reject a name that cannot be one part of a key; members and runs name folders and objects."""
    is_plain = printable(name) == name and not any(character in "/\\#\n\t" for character in name)
    require(
        is_plain and name not in ("", ".", ".."),
        f"`{field}` is {quoted(name)!r}; it must be a name without / \\ # and control characters",
    )


def encode_record(record: FileRecord) -> bytes:
    """Encode a record as indented JSON with a trailing newline, so that files are readable and diffs small."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def reject_large_numbers(data: bytes | memoryview) -> None:
    """Raise ValueError if JSON contains an integer beyond 64 bits; zooid writes none, and arithmetic would overflow."""
    if _MANY_DIGITS.search(data) is None:  # the usual case, which is fast
        return
    for match in _TEXT_OR_MANY_DIGITS.finditer(data):
        if match[1]:
            raise ValueError(f"a number has {len(match[1])} digits; it must fit into 64 bits")


def decode_json(data: bytes | memoryview, kind: type[Decoded] | Any, source: str, what: str) -> Decoded:
    """Decode untrusted JSON as this type. The RecordError says that `source` is not `what`, and why."""
    try:
        reject_large_numbers(data)
        decoded: Decoded = msgspec.json.decode(data, type=kind)
    except _UNREADABLE as error:
        raise RecordError(f"{source} is not {what}: {quoted(str(error))}") from error
    return decoded


def decode_record(data: bytes, kind: type[AnyFileRecord], source: str) -> AnyFileRecord:
    """Decode a record of the given kind; `source` names the file or key in messages."""
    return decode_one_of(data, (kind,), source)


def decode_one_of(data: bytes, kinds: Sequence[type[AnyFileRecord]], source: str) -> AnyFileRecord:
    """Decode a record that is of one of these kinds."""
    tags = {str(kind.__struct_config__.tag): kind for kind in kinds}
    expected = " or ".join(tags)
    try:
        reject_large_numbers(data)
        envelope = msgspec.json.decode(data, type=_Envelope)
    except _UNREADABLE as error:
        raise RecordError(
            f"{source} is not a zooid {expected} file ({quoted(str(error))}); was it cut short or written by another "
            "program?"
        ) from error
    kind = tags.get(envelope.record)
    if kind is None:
        held = quoted(envelope.record)
        raise RecordError(f"{source} holds a {held!r}; expected a {' or a '.join(map(repr, tags))}")
    if envelope.version > kind.VERSION:
        raise RecordError(
            f"{source} has version {quoted(str(envelope.version))}; this zooid reads up to {kind.VERSION}: update zooid"
        )
    if envelope.version < kind.VERSION:
        raise OlderRecord(
            f"{source} has version {quoted(str(envelope.version))}; this zooid reads {kind.VERSION}: make it again"
        )
    return decode_json(data, kind, source, f"a valid {envelope.record}")

"""Records that are written to files and objects: frozen, validated, versioned, round-tripping through JSON.

A record that stands alone in a file carries its kind and its version. Reading refuses what it does not know instead of
guessing: a newer version, another kind, an unknown field and a wrong value are each named in the message.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from zooid.core.errors import OlderRecord, RecordError
from zooid.core.text import printable, quoted


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen part of a file; unknown fields are refused when it is read."""


class FileRecord(Record, frozen=True, kw_only=True, tag_field="record"):
    """A record that stands alone in a file or an object. Subclasses give a tag and raise VERSION when they change."""

    VERSION: ClassVar[int] = 1

    version: int = 1
    """Version of this record's fields; a reader refuses newer ones."""


class _Envelope(msgspec.Struct):
    record: str
    version: int


AnyFileRecord = TypeVar("AnyFileRecord", bound=FileRecord)
Decoded = TypeVar("Decoded")

_MANY_DIGITS = re.compile(rb"[0-9]{20}")
_TEXT_OR_MANY_DIGITS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(?<![.0-9])([0-9]{20,})(?![.0-9eE])', re.DOTALL)

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError)
"""What decoding raises for bytes that anybody may have written: malformed, not UTF-8, too deep, or absurd numbers."""


class InvalidValue(RecordError, ValueError):
    """A record was given a value that it refuses; msgspec adds the field's path where it comes from a file."""


def require(condition: bool, message: str) -> None:
    """Refuse a record's value."""
    if not condition:
        raise InvalidValue(message)


def require_name(field: str, name: str) -> None:
    """Refuse what cannot be one part of a key: members and runs name folders and objects."""
    is_plain = printable(name) == name and not any(character in "/\\#\n\t" for character in name)
    require(
        is_plain and name not in ("", ".", ".."),
        f"`{field}` is {quoted(name)!r}; it must be a name without / \\ # and control characters",
    )


def encode_record(record: FileRecord) -> bytes:
    """The record as indented JSON, one trailing newline, so that files are readable and diffs are small."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def refuse_large_numbers(data: bytes | memoryview) -> None:
    """ValueError where JSON has a whole number beyond 64 bits: none was ever written, and arithmetic would overflow."""
    if _MANY_DIGITS.search(data) is None:  # as it nearly always is, at the speed of a search for bytes
        return
    for found in _TEXT_OR_MANY_DIGITS.finditer(data):
        if found[1]:
            raise ValueError(f"a number has {len(found[1])} digits; it must fit into 64 bits")


def decode_json(data: bytes | memoryview, kind: type[Decoded] | Any, source: str, what: str) -> Decoded:
    """Read JSON that others wrote as this type; RecordError says that `source` is not `what`, and why."""
    try:
        refuse_large_numbers(data)
        decoded: Decoded = msgspec.json.decode(data, type=kind)
    except _UNREADABLE as error:
        raise RecordError(f"{source} is not {what}: {quoted(str(error))}") from error
    return decoded


def decode_record(data: bytes, kind: type[AnyFileRecord], source: str) -> AnyFileRecord:
    """Read a record of the given kind back; `source` names the file or key in messages."""
    return decode_one_of(data, (kind,), source)


def decode_one_of(data: bytes, kinds: Sequence[type[AnyFileRecord]], source: str) -> AnyFileRecord:
    """Read a record back that is of one of these kinds, as it says itself."""
    tags = {str(kind.__struct_config__.tag): kind for kind in kinds}
    expected = " or ".join(tags)
    try:
        refuse_large_numbers(data)
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
            f"{source} has field `version` {quoted(str(envelope.version))}; this zooid reads up to {kind.VERSION}: "
            "update zooid"
        )
    if envelope.version < kind.VERSION:
        raise OlderRecord(
            f"{source} has field `version` {quoted(str(envelope.version))}; this zooid reads {kind.VERSION}: "
            "make it again"
        )
    return decode_json(data, kind, source, f"a valid {envelope.record}")

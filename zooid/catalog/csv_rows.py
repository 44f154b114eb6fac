"""Rows of a CSV file as records, read strictly.

A price list that is read wrong costs money, so nothing is skipped or guessed: the columns are exactly the record's
fields, an empty cell means the field's default, and whatever else is found is refused by file and line.
"""

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from zooid.core.errors import CatalogError
from zooid.core.records import InvalidValue, Record

AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_rows(
    text: str,
    file_name: str,
    kind: type[AnyRecord],
    key: Sequence[str],
    check: Callable[[AnyRecord], None] | None = None,
) -> tuple[AnyRecord, ...]:
    """One record for each row of a CSV text; `key` names the fields that no two rows may share, `check` refuses what a
    record itself lets pass, with InvalidValue."""
    lines = _lines(text, file_name)
    _, columns = next(lines, (1, []))
    _check_columns(columns, kind, file_name)
    records: list[AnyRecord] = []
    first_lines: dict[tuple[object, ...], int] = {}
    for number, cells in lines:
        place = f"{file_name}, line {number}"
        record = _read_row(columns, cells, kind, place)
        try:
            if check is not None:
                check(record)
        except InvalidValue as error:
            raise CatalogError(f"{place}: {error}") from error
        identity = tuple(getattr(record, name) for name in key)
        if identity in first_lines:
            named = " and ".join(f"`{name}` {value!r}" for name, value in zip(key, identity, strict=True))
            raise CatalogError(f"{place}: {named} is already on line {first_lines[identity]}; remove one of the rows")
        first_lines[identity] = number
        records.append(record)
    return tuple(records)


def _lines(text: str, file_name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise CatalogError(f"{file_name}, line {reader.line_num} is not CSV: {error}") from error


def _check_columns(columns: list[str], kind: type[AnyRecord], file_name: str) -> None:
    fields = kind.__struct_fields__
    unknown = [name for name in columns if name not in fields]
    missing = [name for name in fields if name not in columns]
    twice = sorted({name for name in columns if columns.count(name) > 1})
    faults = [
        f"{fault} {', '.join(f'`{name}`' for name in names)}"
        for fault, names in (("unknown", unknown), ("missing", missing), ("repeated", twice))
        if names
    ]
    if faults:
        raise CatalogError(
            f"{file_name}, line 1: columns are {'; '.join(faults)}; they must be the fields of {kind.__name__}: "
            f"{', '.join(fields)}"
        )


def _read_row(columns: list[str], cells: list[str], kind: type[AnyRecord], place: str) -> AnyRecord:
    if len(cells) != len(columns):
        raise CatalogError(f"{place} has {len(cells)} cells; the header has {len(columns)}")
    given = {name: cell for name, cell in zip(columns, cells, strict=True) if cell}
    try:
        record = msgspec.convert(given, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise CatalogError(f"{place} is not a valid {kind.__name__}: {error}") from error
    for name in given:
        value = getattr(record, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise CatalogError(f"{place}: `{name}` is {given[name]}; it must be a finite number")
    return record

"""Rows of a CSV file as records, read strictly.

A misread price list costs money, so nothing is skipped or guessed. The columns are exactly the fields of the record, an
empty cell means the default of its field, and anything else is rejected with its file and line.
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
    without: Sequence[str] = (),
) -> tuple[AnyRecord, ...]:
    """One record for each row of a CSV text.

    `key` names the fields that identify a row, which must be unique. `check` raises InvalidValue for further rules.
    `without` are fields that have no column, because no row sets them.
    """
    lines = _lines(text, file_name)
    _, columns = next(lines, (1, []))
    _check_columns(columns, kind, [name for name in kind.__struct_fields__ if name not in without], file_name)
    records: list[AnyRecord] = []
    first_lines: dict[tuple[object, ...], int] = {}
    for number, cells in lines:
        source = f"{file_name}, line {number}"
        record = _read_row(columns, cells, kind, source)
        try:
            if check is not None:
                check(record)
        except InvalidValue as error:
            raise CatalogError(f"{source}: {error}") from error
        identity = tuple(getattr(record, name) for name in key)
        if identity in first_lines:
            named = " and ".join(f"`{name}` {value!r}" for name, value in zip(key, identity, strict=True))
            raise CatalogError(f"{source}: {named} is already on line {first_lines[identity]}; remove one of the rows")
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


def _check_columns(columns: list[str], kind: type[AnyRecord], fields: Sequence[str], file_name: str) -> None:
    unknown = [name for name in columns if name not in fields]
    missing = [name for name in fields if name not in columns]
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    faults = [
        f"{fault} {', '.join(f'`{name}`' for name in names)}"
        for fault, names in (("unknown", unknown), ("missing", missing), ("repeated", repeated))
        if names
    ]
    if faults:
        raise CatalogError(
            f"{file_name}, line 1: columns are {'; '.join(faults)}; they must be the fields of {kind.__name__}: "
            f"{', '.join(fields)}"
        )


def _read_row(columns: list[str], cells: list[str], kind: type[AnyRecord], source: str) -> AnyRecord:
    if len(cells) != len(columns):
        raise CatalogError(f"{source} has {len(cells)} cells; the header has {len(columns)}")
    filled = {name: cell for name, cell in zip(columns, cells, strict=True) if cell}
    try:
        record = msgspec.convert(filled, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise CatalogError(f"{source} is not a valid {kind.__name__}: {error}") from error
    for name in filled:
        value = getattr(record, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise CatalogError(f"{source}: `{name}` is {filled[name]}; it must be a finite number")
    return record

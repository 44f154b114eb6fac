"""The price list of Amazon EC2, in both forms in which AWS publishes it: JSON and CSV.

AWS documents the layout under "Reading the service price list file". The JSON form has a product for each
configuration of a machine, and apart from these the terms of each product. The CSV form has metadata, the names of the
columns, and then a line for each price of a product, which repeats all about the product.
"""

import csv
import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path

import msgspec

from zooid.catalog.importers.aws_products import (
    NOT_ON_DEMAND,
    ON_DEMAND,
    AwsAttributes,
    AwsProduct,
    check_product,
    machine_of_product,
    shown,
)
from zooid.catalog.importers.imported_prices import ImportedPrices, SkippedRow, Unusable
from zooid.catalog.machine_prices import MachinePrice, MachinePriceList, slug
from zooid.core.errors import CatalogError
from zooid.core.text import quoted

_SERVICE = "AmazonEC2"
_FORMAT = "v1.0"
_EXAMPLE = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonEC2/current/us-east-1/index.csv"
_MAX_METADATA_LINES = 20
"""There are five lines before the names of the columns."""
_FIRST_COLUMN = "SKU"
_PRICE_COLUMNS = ("TermType", "Unit", "Currency", "PricePerUnit")
_FAMILY_COLUMN = "Product Family"
_HOUR = "Hrs"
_DOLLARS = "USD"

_COLUMNS = {
    "operating_system": "Operating System",
    "software": "Pre Installed S/W",
    "operation": "operation",
    "tenancy": "Tenancy",
    "capacity_status": "CapacityStatus",
    "market_option": "MarketOption",
    "location_type": "Location Type",
    "instance_type": "Instance Type",
    "machine_class": "Instance Family",
    "region": "Region Code",
    "vcpus": "vCPU",
    "memory": "Memory",
    "gpus": "GPU",
}
"""The column of each attribute in the CSV form."""

_OPTIONAL = ("operation", "market_option", "location_type", "machine_class", "gpus")
"""Attributes whose column a list may lack: a list has only the columns that its products need."""

_Row = tuple[int, MachinePrice]
"""A number in the file, and the machine of the row that has it."""


class _Dimension(msgspec.Struct, frozen=True, rename={"price_per_unit": "pricePerUnit"}):
    """One price of a term, by currency."""

    unit: str
    price_per_unit: dict[str, str]


class _Term(msgspec.Struct, frozen=True, rename={"dimensions": "priceDimensions"}):
    dimensions: dict[str, _Dimension]


class _TermTypes(msgspec.Struct, frozen=True, rename={"on_demand": ON_DEMAND}):
    on_demand: dict[str, msgspec.Raw] = {}


class _PriceFile(
    msgspec.Struct,
    frozen=True,
    rename={"format_version": "formatVersion", "service": "offerCode", "published": "publicationDate"},
):
    """The JSON form. Products and terms stay undecoded, so that a malformed one spoils no other."""

    format_version: str
    service: str
    published: str
    products: dict[str, msgspec.Raw]
    terms: _TermTypes


def read_aws_price_list(file: Path) -> ImportedPrices:
    """Read the prices on demand of Linux machines of shared tenancy from a price list of Amazon EC2, JSON or CSV.

    Rows are the products of the JSON form, numbered from 1 in the order of the file, and the lines of the CSV form. The
    date of the prices is the day on which AWS published the list.
    """
    try:
        if _is_json(file):
            return _imported(file, *_read_json(file))
        return _imported(file, *_read_csv(file))
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{file} cannot be read: {error}") from error


def _is_json(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _imported(file: Path, date: str, rows: Iterable[_Row | SkippedRow]) -> ImportedPrices:
    """Sort the rows into those that are kept and those that are left out."""
    left_out: list[SkippedRow] = []
    alike: defaultdict[tuple[str, str], list[_Row]] = defaultdict(list)
    num_rows = 0
    for row in rows:
        num_rows += 1
        if isinstance(row, SkippedRow):
            left_out.append(row)
        else:
            alike[slug(row[1].region), slug(row[1].instance_type)].append(row)
    kept: list[_Row] = []
    for (first_line, first), *others in alike.values():
        if all(other == first for _, other in others):
            kept.append((first_line, first))
            reason, detail = "an earlier row has the same machine and region", f"line {first_line}"
            left_out += [SkippedRow(line, reason, detail) for line, _ in others]
        else:
            reason = "rows contradict each other on this machine and region"
            detail = f"{first.instance_type}, {first.region}"
            left_out += [SkippedRow(line, reason, detail) for line in (first_line, *(line for line, _ in others))]
    return ImportedPrices(
        file=str(file),
        prices=MachinePriceList(
            provider="aws",
            source="Amazon EC2 price list",
            date=date,
            machines=tuple(machine for _, machine in sorted(kept, key=itemgetter(0))),
        ),
        num_rows=num_rows,
        num_kept=len(kept),
        rows_left_out=tuple(sorted(left_out, key=lambda row: row.line)),
        spot_left_out=(),
    )


def _read_json(file: Path) -> tuple[str, Iterator[_Row | SkippedRow]]:
    """Return the date of a list in JSON, and its rows."""
    try:
        content = msgspec.json.decode(file.read_bytes().removeprefix(b"\xef\xbb\xbf"), type=_PriceFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _other_kind(file, f"its JSON is not of that layout: {quoted(str(error))}") from error
    _check_kind(file, content.service, content.format_version)
    return _date(file, content.published), _json_rows(content)


def _json_rows(content: _PriceFile) -> Iterator[_Row | SkippedRow]:
    products = msgspec.json.Decoder(AwsProduct)
    terms = msgspec.json.Decoder(dict[str, _Term])
    for number, (sku, undecoded) in enumerate(content.products.items(), 1):
        try:
            product = products.decode(undecoded)
            check_product(product)
            term = content.terms.on_demand.get(sku)
            if term is None:
                raise Unusable(NOT_ON_DEMAND)
            yield number, machine_of_product(product.attributes, _hourly_price(terms.decode(term)))
        except Unusable as unusable:
            yield SkippedRow(number, unusable.reason, unusable.detail)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            yield SkippedRow(number, "it is malformed", shown(str(error)))


def _hourly_price(terms: Mapping[str, _Term]) -> str:
    """Return the price of an hour in dollars, as the list writes it."""
    dimensions = [dimension for term in terms.values() for dimension in term.dimensions.values()]
    hourly = [dimension.price_per_unit for dimension in dimensions if dimension.unit == _HOUR]
    if not hourly:
        raise _not_by_the_hour(" ".join(sorted({dimension.unit for dimension in dimensions})))
    prices = sorted({price[_DOLLARS] for price in hourly if _DOLLARS in price})
    if not prices:
        raise _not_in_dollars(" ".join(sorted({currency for price in hourly for currency in price})))
    if len(prices) > 1:
        raise Unusable("it has several prices an hour", shown(" ".join(prices)))
    return prices[0]


def _read_csv(file: Path) -> tuple[str, Iterator[_Row | SkippedRow]]:
    """Return the date of a list in CSV, and its rows."""
    metadata: dict[str, str] = {}
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in zip(range(1, _MAX_METADATA_LINES + 1), lines, strict=False):
            cells = _cells(line)
            if isinstance(cells, Unusable):
                break
            if cells[:1] == [_FIRST_COLUMN]:
                return _checked_head(file, metadata, cells), _csv_rows(file, number, cells)
            if len(cells) == 2:
                metadata[cells[0]] = cells[1]
    raise _other_kind(file, f"it is not JSON, and has no line of column names that begins with {_FIRST_COLUMN}")


def _checked_head(file: Path, metadata: Mapping[str, str], header: list[str]) -> str:
    """Return the date of the list, after a check of its metadata and its columns."""
    _check_kind(file, metadata.get("OfferCode", ""), metadata.get("FormatVersion", ""))
    required = [column for field, column in _COLUMNS.items() if field not in _OPTIONAL]
    missing = [name for name in (*_PRICE_COLUMNS, _FAMILY_COLUMN, *required) if name not in header]
    if missing:
        raise _other_kind(file, f"it lacks the columns {', '.join(missing)}")
    repeated = [name for name in (*_PRICE_COLUMNS, _FAMILY_COLUMN, *_COLUMNS.values()) if header.count(name) > 1]
    if repeated:
        raise _other_kind(file, f"it has several columns {', '.join(repeated)}")
    return _date(file, metadata.get("Publication Date", ""))


def _csv_rows(file: Path, header_line: int, header: list[str]) -> Iterator[_Row | SkippedRow]:
    num_cells = len(header)
    places = {name: place for place, name in enumerate(header)}
    pick_prices = itemgetter(*(places[name] for name in _PRICE_COLUMNS))
    # The place of a column that the list lacks is that of an empty cell, which each line gets at its end.
    pick_attributes = itemgetter(*(places.get(_COLUMNS[name], num_cells) for name in AwsAttributes.__struct_fields__))
    family_place = places[_FAMILY_COLUMN]
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if number <= header_line or line == "\n":
                continue
            try:
                cells = _cells(line)
                if isinstance(cells, Unusable):
                    raise cells
                if len(cells) != num_cells:
                    raise Unusable("it has more or fewer cells than the header", f"{len(cells)}, not {num_cells}")
                cells.append("")
                attributes = AwsAttributes(*pick_attributes(cells))
                check_product(AwsProduct(attributes, cells[family_place]))
                yield number, machine_of_product(attributes, _price_cell(*pick_prices(cells)))
            except Unusable as unusable:
                yield SkippedRow(number, unusable.reason, unusable.detail)


def _cells(line: str) -> list[str] | Unusable:
    """Return the cells of a line. No cell spans lines, so an open quote spoils only one."""
    try:
        return next(csv.reader((line,), strict=True), [])
    except csv.Error as error:
        return Unusable("it is not CSV", str(error))


def _price_cell(term_type: str, unit: str, currency: str, price: str) -> str:
    """Return the price of an hour in dollars, as the list writes it."""
    if term_type != ON_DEMAND:
        raise Unusable(NOT_ON_DEMAND, shown(term_type))
    if unit != _HOUR:
        raise _not_by_the_hour(unit)
    if currency != _DOLLARS:
        raise _not_in_dollars(currency)
    return price


def _not_by_the_hour(unit: str) -> Unusable:
    return Unusable("its price is not that of an hour", shown(unit))


def _not_in_dollars(currency: str) -> Unusable:
    return Unusable("its price is not in dollars", shown(currency))


def _check_kind(file: Path, service: str, format_version: str) -> None:
    if service != _SERVICE:
        raise _other_kind(file, f"its offer code is {quoted(service)!r}, not {_SERVICE!r}")
    if format_version != _FORMAT:
        raise _other_kind(file, f"its format version is {quoted(format_version)!r}, not {_FORMAT!r}")


def _date(file: Path, published: str) -> str:
    try:
        return datetime.datetime.fromisoformat(published).date().isoformat()
    except ValueError:
        raise _other_kind(file, f"its publication date is {quoted(published)!r}, not a time") from None


def _other_kind(file: Path, fault: str) -> CatalogError:
    return CatalogError(
        f"{file} is no price list of Amazon EC2 that can be read: {fault}; give index.json or index.csv of "
        f"{_SERVICE} as AWS publishes it, such as {_EXAMPLE}"
    )

"""Tells the layouts of price lists apart by how their files begin."""

import re
from collections.abc import Iterator
from pathlib import Path

from zooid.catalog.importers.aws_price_list import read_aws_price_list
from zooid.catalog.importers.azure_retail_prices import read_azure_prices
from zooid.catalog.importers.google_skus import read_google_skus
from zooid.catalog.importers.imported_prices import ImportedPrices
from zooid.catalog.importers.skypilot_files import find_skypilot_files, read_skypilot_file
from zooid.core.errors import CatalogError, InputError

_HEAD_BYTES = 64 * 2**10
_AWS = re.compile(rb'\s*(\{\s*)?"(FormatVersion|formatVersion)"')
_LAYOUTS = (
    "SkyPilot's vms.csv in a folder named after its cloud, index.json or index.csv of Amazon EC2, pages of Azure's "
    "Retail Prices API, or pages of the SKUs of Google's Cloud Billing Catalog API"
)


def read_prices(path: Path, date: str | None = None) -> Iterator[ImportedPrices]:
    """Read a file of any layout, or all files of SkyPilot in a folder.

    `date` is that of the prices. Lists of Amazon EC2 have a date of their own, so that none may be given for them.
    """
    if path.is_dir():
        for file in find_skypilot_files(path):
            yield read_skypilot_file(file, date)
        return
    head = _head_of(path)
    if _AWS.match(head):
        if date is not None:
            raise InputError(f"{path} says itself of which date it is; import it without --date")
        yield read_aws_price_list(path)
    elif head.lstrip()[:1] not in (b"{", b"["):
        yield read_skypilot_file(path, date)
    elif b'"skus"' in head:
        yield read_google_skus(path, date)
    elif b'"Items"' in head:
        yield read_azure_prices(path, date)
    else:
        raise CatalogError(f"{path} has none of the known layouts; give {_LAYOUTS}")


def _head_of(file: Path) -> bytes:
    try:
        with file.open("rb") as content:
            return content.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise CatalogError(f"{file} cannot be read: {error.strerror}; give {_LAYOUTS}") from error

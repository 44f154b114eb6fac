"""Rows of SkyPilot's files of prices, checked one by one.

The order of the columns differs by cloud, and some clouds have further columns. Google's accelerators are rows of their
own, without a machine.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zooid.catalog.importers.gpu_memory import listed_mib
from zooid.catalog.importers.imported_prices import SkippedRow, Unusable
from zooid.catalog.machine_prices import slug
from zooid.core.errors import CatalogError
from zooid.core.text import quoted

_COLUMNS = (
    "InstanceType",
    "AcceleratorName",
    "AcceleratorCount",
    "vCPUs",
    "MemoryGiB",
    "GpuInfo",
    "Price",
    "SpotPrice",
    "Region",
)
_ZONE = "AvailabilityZone"
_GIB = 2**30
_NOT_NVIDIA = ("tpu", "inferentia", "trainium", "gaudi", "radeon", "mi25", "mi3", "qualcomm", "virtex", "ascend")
"""Beginnings of the names of accelerators that no member computes on."""


@dataclass(frozen=True)
class SkyRow:
    """A row whose cells can be read."""

    line: int
    instance_type: str
    """Empty in a row of an accelerator."""
    region: str
    zone: str
    vcpus: float | None
    memory_bytes: int | None
    gpu: str
    num_gpus: int
    gpus_mib: int | None
    """What the row says of the memory of its accelerators, of one or of all."""
    usd_per_hour: float | None
    spot_usd_per_hour: float | None

    @property
    def identity(self) -> tuple[str, str, str]:
        """What is priced, and where, as it stands in the names of offers."""
        priced = self.instance_type or f"{self.num_gpus} {self.gpu}"
        return slug(priced), slug(self.region), slug(self.zone)


def read_sky_rows(text: str, file_name: str) -> tuple[list[SkyRow], list[SkippedRow]]:
    """Return the rows of a file, and those that cannot be read. CatalogError if it is no such file."""
    lines = _cells_of_lines(text)
    _, header = next(lines, (1, []))
    missing = [name for name in _COLUMNS if isinstance(header, Unusable) or name not in header]
    if isinstance(header, Unusable) or missing:
        raise CatalogError(
            f"{file_name} is no price file of SkyPilot: its first line lacks the columns {', '.join(missing)}; give "
            "a file such as v8/azure/vms.csv of SkyPilot's catalog"
        )
    rows: list[SkyRow] = []
    left_out: list[SkippedRow] = []
    first_lines: dict[tuple[str, str, str], int] = {}
    for line, cells in lines:
        try:
            row = _row(line, header, cells)
            first_line = first_lines.setdefault(row.identity, line)
            if first_line != line:
                raise Unusable("an earlier row has the same machine and zone", f"line {first_line}")
        except Unusable as unusable:
            left_out.append(SkippedRow(line, unusable.reason, unusable.detail))
        else:
            rows.append(row)
    return rows, left_out


def _cells_of_lines(text: str) -> Iterator[tuple[int, list[str] | Unusable]]:
    """Return the cells of each line that is not empty. No cell spans lines, so an open quote spoils only one."""
    for number, line in enumerate(text.splitlines(), 1):
        if line:
            try:
                yield number, next(csv.reader((line,), strict=True))
            except csv.Error as error:
                yield number, Unusable("it is not CSV", str(error))


def _row(line: int, header: Sequence[str], cells: list[str] | Unusable) -> SkyRow:
    if isinstance(cells, Unusable):
        raise cells
    if len(cells) != len(header):
        raise Unusable("it has more or fewer cells than the header", f"{len(cells)}, not {len(header)}")
    named = dict(zip(header, cells, strict=True))
    gpu = named["AcceleratorName"].strip()
    num_gpus = _count(named)
    if not gpu and num_gpus:
        raise Unusable("its accelerators have no name")
    if gpu and not num_gpus:
        raise Unusable("it has a part of an accelerator, or none", quoted(named["AcceleratorCount"]))
    if gpu.lower().startswith(_NOT_NVIDIA):
        raise Unusable("members compute on NVIDIA's GPUs and on processors only", gpu)
    region = named["Region"].strip(" ,")
    if not region:
        raise Unusable("it has no region")
    instance_type = named["InstanceType"].strip()
    if not instance_type and not gpu:
        raise Unusable("it has neither a machine nor an accelerator")
    gib = _number(named, "MemoryGiB")
    try:
        gpus_mib = listed_mib(named["GpuInfo"]) if gpu else None
    except ValueError as error:
        raise Unusable(str(error), quoted(named["GpuInfo"][:60])) from None
    prices = _number(named, "Price"), _number(named, "SpotPrice")
    if prices == (None, None):
        raise Unusable("it has no price")
    return SkyRow(
        line=line,
        instance_type=instance_type,
        region=region,
        zone=named.get(_ZONE, "").strip(),
        vcpus=_number(named, "vCPUs"),
        memory_bytes=None if gib is None else round(gib * _GIB),
        gpu=gpu,
        num_gpus=num_gpus,
        gpus_mib=gpus_mib,
        usd_per_hour=prices[0],
        spot_usd_per_hour=prices[1],
    )


def _number(named: Mapping[str, str], column: str) -> float | None:
    text = named[column].strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        raise Unusable(f"its {column} is no number", quoted(text)) from None
    if not math.isfinite(number) or number < 0:
        raise Unusable(f"its {column} is not a finite number of at least 0", quoted(text))
    return number


def _count(named: Mapping[str, str]) -> int:
    """Return the number of accelerators; 0 if it is not a whole number of them."""
    number = _number(named, "AcceleratorCount") or 0.0
    return int(number) if number.is_integer() else 0

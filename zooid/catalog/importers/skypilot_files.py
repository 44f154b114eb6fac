"""SkyPilot's files of prices, versions 7 and 8: one for each cloud, in a folder that has its name."""

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zooid.catalog.importers.google_hosts import google_hosts
from zooid.catalog.importers.gpu_memory import mib_of_one
from zooid.catalog.importers.imported_prices import ImportedPrices, SkippedRow, Unusable
from zooid.catalog.importers.skypilot_rows import SkyRow, read_sky_rows
from zooid.catalog.machine_prices import MachinePrice, MachinePriceList
from zooid.catalog.shipped_tables import device_scores
from zooid.core.errors import CatalogError
from zooid.core.records import InvalidValue

_FILE_NAME = "vms.csv"
_GOOGLE = "gcp"
_PROVIDERS = {"lambda": "lambdalabs"}
"""Clouds that SkyPilot names otherwise than the catalog does."""
_MIB = 2**20


def find_skypilot_files(path: Path) -> tuple[Path, ...]:
    """Return the files of prices in a folder, at any depth, or the file itself."""
    if path.is_file():
        return (path,)
    found = tuple(sorted(path.rglob(_FILE_NAME)))
    if not found:
        raise CatalogError(f"{path} holds no file {_FILE_NAME}; give SkyPilot's folder, such as ~/.sky/catalogs/v8")
    return found


def read_skypilot_file(file: Path, date: str | None = None) -> ImportedPrices:
    """Read the prices of a cloud, which is the name of the file's folder. `date` is that of the prices.

    Without `date`, it is the day on which the file was last changed, which for SkyPilot's own copy is when it was
    fetched.
    """
    cloud = file.resolve().parent.name
    try:
        text = file.read_text(encoding="utf-8-sig")
        changed_s = file.stat().st_mtime
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{file} cannot be read: {error}") from error
    rows, left_out = read_sky_rows(text, str(file))
    num_rows = len(rows) + len(left_out)
    rows, without_memory = _with_memory_of_one(rows)
    left_out += without_memory
    spot_left_out: list[SkippedRow] = []
    rows = list(_with_plausible_spot(rows, spot_left_out))
    machines: list[MachinePrice] = []
    kept: set[int] = set()
    for parts in _google_parts(rows) if cloud == _GOOGLE else ((row,) for row in rows):
        try:
            machines.append(_machine(parts))
        except Unusable as unusable:
            left_out.append(SkippedRow(parts[-1].line, unusable.reason, unusable.detail))
        else:
            kept.update(part.line for part in parts)
    lines_left_out = {row.line for row in left_out}
    alone = [row for row in rows if row.line not in kept and row.line not in lines_left_out]
    left_out += [SkippedRow(row.line, _why_alone(row), row.gpu or row.instance_type) for row in alone]
    left_out = [row for row in left_out if row.line not in kept]
    provider = _PROVIDERS.get(cloud, cloud)
    return ImportedPrices(
        file=str(file),
        prices=MachinePriceList(
            provider=provider,
            source=f"SkyPilot's price file of {cloud}",
            date=date or datetime.date.fromtimestamp(changed_s).isoformat(),
            machines=tuple(machines),
        ),
        num_rows=num_rows,
        num_kept=len(kept),
        rows_left_out=tuple(sorted({row.line: row for row in left_out}.values(), key=lambda row: row.line)),
        spot_left_out=tuple(row for row in spot_left_out if row.line in kept),
    )


def _with_memory_of_one(rows: Iterable[SkyRow]) -> tuple[list[SkyRow], list[SkippedRow]]:
    """Give every row the memory of one of its accelerators."""
    rows = list(rows)
    usual_mib: dict[str, int] = {}
    for row in rows:
        if row.num_gpus == 1 and row.gpus_mib is not None:
            usual_mib[row.gpu] = min(row.gpus_mib, usual_mib.get(row.gpu, row.gpus_mib))
    usual_mib |= {score.device: score.memory_bytes // _MIB for score in device_scores() if score.memory_bytes}
    changed, left_out = [], []
    for row in rows:
        if row.gpus_mib is None:
            changed.append(replace(row, gpus_mib=usual_mib.get(row.gpu)))
            continue
        mib = mib_of_one(row.gpus_mib, row.num_gpus, usual_mib.get(row.gpu))
        if mib is None:
            detail = f"{row.num_gpus} × {row.gpu}, {row.gpus_mib} MiB"
            left_out.append(SkippedRow(row.line, "its memory may be that of one or of all accelerators", detail))
        else:
            changed.append(replace(row, gpus_mib=mib))
    return changed, left_out


def _with_plausible_spot(rows: Iterable[SkyRow], left_out: list[SkippedRow]) -> Iterator[SkyRow]:
    """Take spot prices away that nobody pays."""
    for row in rows:
        if row.spot_usd_per_hour is None or row.usd_per_hour is None:
            yield row
        elif row.spot_usd_per_hour == 0 and row.usd_per_hour > 0:
            left_out.append(SkippedRow(row.line, "its spot price is 0"))
            yield replace(row, spot_usd_per_hour=None)
        elif row.spot_usd_per_hour >= row.usd_per_hour > 0:
            detail = f"{row.spot_usd_per_hour:g} and {row.usd_per_hour:g} dollars"
            left_out.append(SkippedRow(row.line, "its spot price is not below that on demand", detail))
            yield replace(row, spot_usd_per_hour=None)
        else:
            yield row


def _google_parts(rows: Sequence[SkyRow]) -> Iterator[tuple[SkyRow, ...]]:
    """Return machines alone, and machines with accelerators of the same zone."""
    fixed = {host.instance_type for host in google_hosts() if host.is_fixed}
    machines = {(row.instance_type, row.zone): row for row in rows if row.instance_type}
    yield from ((row,) for row in machines.values() if row.instance_type not in fixed)
    hosts: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for host in google_hosts():
        hosts[host.accelerator, host.num_gpus].append(host.instance_type)
    for row in rows:
        if not row.instance_type:
            for instance_type in hosts[row.gpu, row.num_gpus]:
                if (instance_type, row.zone) in machines:
                    yield machines[instance_type, row.zone], row


def _machine(parts: Sequence[SkyRow]) -> MachinePrice:
    """Return the machine that consists of these rows, whose prices add up."""
    machine, gpus = parts[0], parts[-1]
    if machine.vcpus is None or machine.memory_bytes is None:
        raise Unusable("its vCPUs or memory are not given", machine.instance_type)
    usd_per_hour, spot_usd_per_hour = (
        _sum(prices) for prices in ([part.usd_per_hour for part in parts], [part.spot_usd_per_hour for part in parts])
    )
    try:
        return MachinePrice(
            instance_type=machine.instance_type,
            region=machine.region,
            zone=machine.zone,
            vcpus=machine.vcpus,
            memory_bytes=machine.memory_bytes,
            gpu=gpus.gpu,
            num_gpus=gpus.num_gpus,
            gpu_memory_bytes=(gpus.gpus_mib or 0) * _MIB,
            usd_per_hour=usd_per_hour,
            spot_usd_per_hour=spot_usd_per_hour,
        )
    except InvalidValue as error:
        raise Unusable("its figures are not plausible", str(error)) from error


def _why_alone(row: SkyRow) -> str:
    if row.instance_type:
        return "its accelerators, without which it cannot be rented, have no price in its zone"
    return "no machine of its zone is known to hold so many of its accelerators"


def _sum(prices: Iterable[float | None]) -> float | None:
    total = 0.0
    for usd in prices:
        if usd is None:
            return None
        total += usd
    return total

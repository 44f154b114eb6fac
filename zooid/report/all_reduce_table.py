"""All-reduces as they were measured, as a table."""

import statistics
from collections import defaultdict

from rich.table import Table

from zooid.core.plans.all_reduce_samples import AllReduceSamples
from zooid.core.units import format_bytes, format_bytes_per_s, format_duration
from zooid.report.profile.rows import NOTHING


def all_reduce_table(samples: AllReduceSamples) -> Table:
    """One row for each number of members and bytes, one column for each number of all-reduces at once: median time, bus
    bandwidth and spread."""
    rows: defaultdict[tuple[int, int], defaultdict[int, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sample in samples.samples:
        cell = rows[sample.num_members, sample.num_bytes][sample.concurrency]
        cell.append((sample.took_s, sample.bus_bytes_per_s))
    columns = sorted({sample.concurrency for sample in samples.samples})
    libraries = " and ".join(sorted({sample.library for sample in samples.samples}))
    table = Table(title=f"all-reduces of {libraries}: time, bus bandwidth and spread")
    for name in ("members", "bytes", *(f"{number} at once" for number in columns)):
        table.add_column(name, justify="right")
    for (num_members, num_bytes), by_concurrency in sorted(rows.items()):
        cells = [_cell(by_concurrency.get(number)) for number in columns]
        table.add_row(str(num_members), format_bytes(num_bytes), *cells)
    return table


def _cell(measured: list[tuple[float, float]] | None) -> str:
    if measured is None:
        return NOTHING
    times_s, rates = zip(*measured, strict=True)
    spread = (max(times_s) - min(times_s)) / statistics.median(times_s)
    rate = format_bytes_per_s(statistics.median(rates))
    return f"{format_duration(statistics.median(times_s))}\n{rate}, {spread * 100:.1f} %"

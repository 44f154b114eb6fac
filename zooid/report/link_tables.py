"""Tables of measurements between members: links and all-reduces."""

import statistics
from collections import defaultdict

from rich.table import Table

from zooid.core.plans.all_reduce_samples import AllReduceSamples
from zooid.core.resources.link import Link, Links
from zooid.core.units import format_bytes, format_bytes_per_s, format_duration
from zooid.report.phrases import NOTHING, count_in_words
from zooid.report.terminal_text import cell


def links_table(links: Links) -> Table:
    """Bandwidth per member: a row for each link and number of members, a column for each number of streams."""
    rows: dict[tuple[str, str, int], dict[int, Link]] = {}
    for link in links.links:
        rows.setdefault((link.from_site, link.to_site, link.num_members), {})[link.num_streams] = link
    columns = sorted({link.num_streams for link in links.links})
    table = Table(title=cell(f"links on {links.date}: what each member gets, and its spread"))
    for name in ("from", "to", "members", "round trip", *(count_in_words(number, "stream") for number in columns)):
        table.add_column(name, justify="left" if name in ("from", "to") else "right")
    for (from_site, to_site, num_members), by_streams in rows.items():
        rtt_s = next(iter(by_streams.values())).rtt_s
        cells = [_bandwidth(by_streams.get(number)) for number in columns]
        table.add_row(cell(from_site), cell(to_site), str(num_members), format_duration(rtt_s), *cells)
    gaps = (f"no link from {gap.from_site} to {gap.to_site}: {gap.reason}" for gap in links.missing)
    table.caption = cell("\n".join(gaps))
    return table


def _bandwidth(link: Link | None) -> str:
    if link is None:
        return NOTHING
    return f"{format_bytes_per_s(link.bandwidth_bytes_per_s)}\n{link.spread * 100:.1f} %"


def all_reduce_table(samples: AllReduceSamples) -> Table:
    """Median time, bus bandwidth and spread of all-reduces.

    Numbers of members and bytes have a row each; numbers of concurrent all-reduces have a column each.
    """
    rows: defaultdict[tuple[int, int], defaultdict[int, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sample in samples.samples:
        measured = rows[sample.num_members, sample.num_bytes][sample.concurrency]
        measured.append((sample.took_s, sample.bus_bytes_per_s))
    columns = sorted({sample.concurrency for sample in samples.samples})
    libraries = " and ".join(sorted({sample.library for sample in samples.samples}))
    table = Table(title=f"all-reduces of {libraries}: time, bus bandwidth and spread")
    for name in ("members", "bytes", *(f"{number} at once" for number in columns)):
        table.add_column(name, justify="right")
    for (num_members, num_bytes), by_concurrency in sorted(rows.items()):
        cells = [_all_reduce(by_concurrency.get(number)) for number in columns]
        table.add_row(str(num_members), format_bytes(num_bytes), *cells)
    return table


def _all_reduce(measured: list[tuple[float, float]] | None) -> str:
    if measured is None:
        return NOTHING
    times_s, rates = zip(*measured, strict=True)
    spread = (max(times_s) - min(times_s)) / statistics.median(times_s)
    rate = format_bytes_per_s(statistics.median(rates))
    return f"{format_duration(statistics.median(times_s))}\n{rate}, {spread * 100:.1f} %"

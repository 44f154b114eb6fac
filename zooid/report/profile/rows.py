"""What tables and pages say about a profile, in the same words; layers of deep models in groups."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from zooid.core.plans.profile import Copies, DeviceKind, Profile
from zooid.core.resources.link import Link
from zooid.core.units import format_bytes, format_bytes_per_s, format_duration
from zooid.report.phrases import ESTIMATE, count_in_words

MAX_ROWS = 40
MIN_ROWS = 10
"""Where shorter names would leave fewer rows than this, neighbours are grouped in runs instead."""

_NAME_PARTS = re.compile(r"[.#]?[^.#]+")


def marked(profile: Profile, title: str) -> str:
    """Mark the title of a profile whose times were estimated, not measured."""
    return f"{ESTIMATE}: {title}" if profile.is_estimate else title


def device_in_words(device: DeviceKind) -> str:
    if device.kind == "cuda":
        return device.name
    threads, cores = count_in_words(device.num_threads, "thread"), count_in_words(device.num_cores, "core")
    return f"{device.name}, {threads} of {cores}"


def origin_in_words(profile: Profile) -> str:
    """Source and date of the measured times."""
    device = device_in_words(profile.device)
    if profile.is_estimate:
        return f"estimated for {device} from {profile.estimated_from}, {profile.date}"
    return f"measured on {device}, {profile.date}"


def link_in_words(link: Link) -> str:
    return (
        f"{link.from_site} → {link.to_site} {format_bytes_per_s(link.bandwidth_bytes_per_s)}, "
        f"{format_duration(link.rtt_s)} a request"
    )


def copies_in_words(copies: Copies) -> tuple[str, str]:
    """Rates of copies to the device and back to the host."""
    return (
        f"{format_bytes_per_s(copies.to_device_bytes_per_s)} to the device",
        f"{format_bytes_per_s(copies.to_host_bytes_per_s)} to the host",
    )


def exact_bytes(num_bytes: float) -> str:
    """A number of bytes with its unit, followed by the exact number where that says more."""
    short = format_bytes(num_bytes)
    return short if num_bytes < 1000 else f"{short} ({round(num_bytes):,} B)"


def layers_in_words(numbers: tuple[int, ...]) -> str:
    *first, last = [str(number) for number in numbers]
    return f"layers {', '.join(first)} and {last}" if first else f"layer {last}"


def spread_in_words(spread: float) -> str:
    return f"{spread * 100:.2g} %"


@dataclass(frozen=True)
class LayerGroup:
    """Neighbouring layers that share one row of a table, and the name that they have in common."""

    name: str
    first_layer: int
    end_layer: int

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.first_layer


def grouped(names: Sequence[str]) -> list[LayerGroup]:
    """Group layers by the beginnings of their module paths, so that the table of a deep model fits a screen.

    Up to `MAX_ROWS` layers stay alone. Otherwise the longest common beginnings that fit `MAX_ROWS` rows are used.
    Where those leave very few rows (a hundred equal blocks in one list), one more part of the path is compared, and
    neighbouring blocks are grouped in runs: `h.0 … 2`.
    """
    layers = [LayerGroup(name, number, number + 1) for number, name in enumerate(names)]
    if len(layers) <= MAX_ROWS:
        return layers
    deepest = max(len(_name_parts(name)) for name in names)
    depth = next((depth for depth in range(1, deepest) if len(_by_prefix(layers, depth)) > MAX_ROWS), deepest)
    coarse = _by_prefix(layers, depth - 1)
    if len(coarse) >= MIN_ROWS:
        return coarse
    fine = layers if depth == deepest else _by_prefix(layers, depth)
    runs = (_in_runs(fine, depth - 1, length) for length in range(2, len(fine) + 1))
    return next(groups for groups in runs if len(groups) <= MAX_ROWS)


def _by_prefix(groups: Sequence[LayerGroup], depth: int) -> list[LayerGroup]:
    """Join neighbours whose names begin with the same parts; a group without such neighbours keeps its name."""
    return [
        _joined(neighbours, prefix if len(neighbours) > 1 else neighbours[0].name)
        for prefix, neighbours in _neighbours(groups, depth)
    ]


def _in_runs(groups: Sequence[LayerGroup], depth: int, length: int) -> list[LayerGroup]:
    """Join up to `length` neighbours at a time, among those whose names begin with the same parts."""
    result = []
    for _, neighbours in _neighbours(groups, depth):
        for begin in range(0, len(neighbours), length):
            run = neighbours[begin : begin + length]
            first, last = run[0].name, run[-1].name
            result.append(_joined(run, first if len(run) == 1 else f"{first} … {_name_parts(last)[-1].lstrip('.')}"))
    return result


def _neighbours(groups: Sequence[LayerGroup], depth: int) -> list[tuple[str, list[LayerGroup]]]:
    def prefix(group: LayerGroup) -> str:
        return "".join(_name_parts(group.name)[:depth])

    return [(name, list(neighbours)) for name, neighbours in groupby(groups, prefix)]


def _joined(groups: Sequence[LayerGroup], name: str) -> LayerGroup:
    return LayerGroup(name, groups[0].first_layer, groups[-1].end_layer)


def _name_parts(name: str) -> list[str]:
    """Split a module path; the number that tells layers of one module apart is its last part."""
    return _NAME_PARTS.findall(name) or [name]

"""A profile as bars: a row for each layer, with panels for time, parameters, activations and cuts.

All shapes and texts are decided here, for every measured grain size; the page's script only draws them.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zooid.core.plans.profile import Profile
from zooid.core.units import format_bytes, format_duration
from zooid.report import plots
from zooid.report.phrases import NOTHING
from zooid.report.profile.rows import exact_bytes

PANELS = ("time", "parameters", "kept", "cut")
_WIDTHS = (1.7, 1.0, 1.0, 1.0)
_GAP = 0.025
"""The gap between two panels, as a fraction of the picture's width."""
_ROOM_FOR_LABELS = 1.35
"""The length of an axis over that of its longest bar, so that the label at the end of the bar fits."""
_MAX_NAME_LENGTH = 34
"""Characters of a name beside its row; a longer name loses its beginning there, but not in its card."""
_PX_PER_CHARACTER = 6.8
_MIN_NAMES_PX = 120
_TOP_PX, _RIGHT_PX, _BOTTOM_PX = 24, 14, 6


@dataclass(frozen=True)
class _Bars:
    """Bars of one colour in one panel, one for each layer; `bases` says where each begins."""

    panel: int
    color: str
    lengths: list[float]
    bases: list[float]
    labels: list[str]
    is_hatched: bool = False


def probed_sizes(profile: Profile) -> list[int]:
    """The grain sizes that the layers were measured at."""
    return [point.num_samples for point in profile.layers[0].points]


def picture(profile: Profile) -> dict[str, Any]:
    """The layout, the names of the rows, and the bars and texts of each grain size."""
    return {
        "layout": _layout(profile),
        "names": [html.escape(_shortened(layer.name)) for layer in profile.layers],  # plotly reads tags in texts
        "grains": [_grain(profile, size) for size in probed_sizes(profile)],
    }


def names_px(profile: Profile) -> int:
    """The width of the column with names and numbers of layers."""
    longest = max(len(_shortened(layer.name)) for layer in profile.layers)
    return max(_MIN_NAMES_PX, round((longest + len(str(len(profile.layers)))) * _PX_PER_CHARACTER) + 56)


def panel_domains() -> list[tuple[float, float]]:
    """Begin and end of each panel, as fractions of the width."""
    unit = (1 - _GAP * (len(_WIDTHS) - 1)) / sum(_WIDTHS)
    starts = [sum(_WIDTHS[:number]) * unit + _GAP * number for number in range(len(_WIDTHS))]
    return [(round(start, 6), round(start + width * unit, 6)) for start, width in zip(starts, _WIDTHS, strict=True)]


def _grain(profile: Profile, size: int) -> dict[str, Any]:
    bars = _all_bars(profile, size)
    formats = (format_duration, format_bytes, format_bytes, format_bytes)
    return {
        "traces": [_trace(colored) for colored in bars],
        "axes": [
            _axis([colored for colored in bars if colored.panel == panel], show) for panel, show in enumerate(formats)
        ],
        "sums": _sums(profile, size),
        "cards": [_card(profile, number, size) for number in range(len(profile.layers))],
    }


def _all_bars(profile: Profile, size: int) -> list[_Bars]:
    layers = profile.layers
    zeros, unlabelled = [0.0] * len(layers), [""] * len(layers)
    forward = [layer.forward_s(size) for layer in layers]
    backward = [layer.backward_s(size) for layer in layers]
    both = [format_duration(forward_s + backward_s) for forward_s, backward_s in zip(forward, backward, strict=True)]
    tied = [float(sum(tie.num_bytes for tie in profile.tied if number in tie.layers)) for number in range(len(layers))]
    untied = [layer.parameter_bytes - part for layer, part in zip(layers, tied, strict=True)]
    parameters = [_amount(layer.parameter_bytes) for layer in layers]
    kept = [layer.activations.at(size) for layer in layers]
    crossing = [layer.boundary.at(size) for layer in layers]
    return [
        _Bars(0, "forward", forward, zeros, unlabelled),
        _Bars(0, "backward", backward, forward, both),
        _Bars(1, "parameters", untied, zeros, unlabelled),
        _Bars(1, "parameters", tied, untied, parameters, is_hatched=True),
        _Bars(2, "kept", kept, zeros, [_amount(num_bytes) for num_bytes in kept]),
        _Bars(3, "cut", crossing, zeros, [_amount(num_bytes) for num_bytes in crossing]),
    ]


def _trace(bars: _Bars) -> dict[str, Any]:
    return plots.bars(
        y=list(range(len(bars.lengths))),
        x=bars.lengths,
        base=bars.bases,
        text=bars.labels,
        textposition="outside",
        xaxis=_axis_name("x", bars.panel),
        hoverinfo="none",
        meta=bars.color,
        marker={
            "line": {"width": 0},
            "pattern": {"shape": "/", "size": 5, "solidity": 0.3, "fillmode": "overlay"} if bars.is_hatched else {},
        },
    )


def _layout(profile: Profile) -> dict[str, Any]:
    still = {"fixedrange": True, "zeroline": False, "tickmode": "array", "tickangle": 0, "ticks": ""}
    across = {
        _axis_name("xaxis", panel): {"domain": domain, "side": "top", **still}
        for panel, domain in enumerate(panel_domains())
    }
    return plots.layout(
        barmode="overlay",
        bargap=0.3,
        hovermode="y",
        margin={"l": names_px(profile), "r": _RIGHT_PX, "t": _TOP_PX, "b": _BOTTOM_PX},
        yaxis={"range": [len(profile.layers) - 0.5, -0.5], "showgrid": False, **still},
        **across,
    )


def _axis(bars: Sequence[_Bars], show: Callable[[float], str]) -> dict[str, Any]:
    """The axis of a panel, long enough for its longest row."""
    longest = max(
        base + length for colored in bars for base, length in zip(colored.bases, colored.lengths, strict=True)
    )
    ticks = _ticks(longest)
    return {
        "range": [0, (longest or 1.0) * _ROOM_FOR_LABELS],
        "values": ticks,
        "labels": [show(tick) for tick in ticks],
    }


def _ticks(longest: float) -> list[float]:
    """Two or three round numbers from 0 on; more are not needed, since every bar has a label."""
    if longest <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(longest))
    step = power * (1 if longest < 2 * power else 2 if longest < 5 * power else 5)
    return [step * count for count in range(math.floor(longest / step) + 1)]


def _sums(profile: Profile, size: int) -> dict[str, str]:
    """Texts under the headings: sums over the whole model, and the smallest and largest cut."""
    layers = profile.layers
    crossing = [layer.boundary.at(size) for layer in layers[:-1]]
    cut_range = dict.fromkeys(map(format_bytes, (min(crossing), max(crossing)))) if crossing else {NOTHING: None}
    return {
        "forward": format_duration(sum(layer.forward_s(size) for layer in layers)),
        "backward": format_duration(sum(layer.backward_s(size) for layer in layers)),
        "parameters": format_bytes(profile.parameter_bytes(0, len(layers))),
        "kept": format_bytes(sum(layer.activations.at(size) for layer in layers)),
        "cut": " to ".join(cut_range),
    }


def _card(profile: Profile, number: int, size: int) -> dict[str, Any]:
    """The card of a layer: its name, and everything that is known about it."""
    layer = profile.layers[number]
    is_last = number == len(profile.layers) - 1
    crowded = []
    if layer.crowded_points:
        crowded = [
            ("forward, all cores busy", format_duration(layer.forward_s(size, crowded=True))),
            ("backward, all cores busy", format_duration(layer.backward_s(size, crowded=True))),
        ]
    rows = [
        ("forward", format_duration(layer.forward_s(size))),
        ("backward", format_duration(layer.backward_s(size))),
        *crowded,
        ("parameters", exact_bytes(layer.parameter_bytes)),
        *[(f"tied: {tie.name}", exact_bytes(tie.num_bytes)) for tie in profile.tied if number in tie.layers],
        *([("buffers", exact_bytes(layer.buffer_bytes))] if layer.buffer_bytes else []),
        ("activations kept", exact_bytes(layer.activations.at(size))),
        ("peak in forward", exact_bytes(layer.forward_peak.at(size))),
        ("peak in backward", exact_bytes(layer.backward_peak.at(size))),
        ("to the next layer", NOTHING if is_last else exact_bytes(layer.boundary.at(size))),
    ]
    return {"name": layer.name, "position": f"layer {number}", "rows": rows}


def _amount(num_bytes: float) -> str:
    return format_bytes(num_bytes) if num_bytes else NOTHING


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else "…" + name[1 - _MAX_NAME_LENGTH :]


def _axis_name(axis: str, panel: int) -> str:
    return f"{axis}{panel + 1}" if panel else axis

"""A profile as bars: a row for each layer, and panels beside each other for time, parameters, activations and cuts.

Everything that is drawn or said is decided here, for every grain size that was probed; the page's script only puts it
on the screen. Plotly checks the parts of the picture and loads when one is made.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zooid.core.plans.profile import LayerProfile, Profile
from zooid.core.units import format_bytes, format_duration
from zooid.report.profile.rows import NOTHING, exact_bytes

PANELS = ("time", "parameters", "kept", "cut")
_WIDTHS = (1.7, 1.0, 1.0, 1.0)
_GAP = 0.025
"""Between two panels, as a part of the picture's width."""
_ROOM_FOR_LABELS = 1.35
"""How far an axis goes on beyond the longest bar, so that the number at its end has room."""
_LONGEST_NAME = 34
"""Characters of a name beside its row; a longer one loses its beginning there, and is whole in the card."""
_PX_PER_CHARACTER = 6.8
_LEAST_NAMES_PX = 120
_TOP_PX, _RIGHT_PX, _BOTTOM_PX = 24, 14, 6


@dataclass(frozen=True)
class _Bars:
    """One colour of one panel: a bar for each layer, from where the bar before it ends."""

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
    """The layout, the names of the rows, and for each grain size what depends on it."""
    return {
        "layout": _layout(profile),
        "names": [html.escape(_shortened(layer.name)) for layer in profile.layers],  # plotly reads tags in texts
        "grains": [_grain(profile, size) for size in probed_sizes(profile)],
    }


def names_px(profile: Profile) -> int:
    """Room for names and numbers of layers, to the left of the panels."""
    longest = max(len(_shortened(layer.name)) for layer in profile.layers)
    return max(_LEAST_NAMES_PX, round((longest + len(str(len(profile.layers)))) * _PX_PER_CHARACTER) + 56)


def panel_domains() -> list[tuple[float, float]]:
    """Where each panel begins and ends, as parts of the width."""
    unit = (1 - _GAP * (len(_WIDTHS) - 1)) / sum(_WIDTHS)
    starts = [sum(_WIDTHS[:number]) * unit + _GAP * number for number in range(len(_WIDTHS))]
    return [(round(start, 6), round(start + width * unit, 6)) for start, width in zip(starts, _WIDTHS, strict=True)]


def tied_bytes(profile: Profile, number: int) -> int:
    """Of a layer's parameters, those that other layers use, too."""
    return sum(tie.num_bytes for tie in profile.tied if number in tie.layers)


def _grain(profile: Profile, size: int) -> dict[str, Any]:
    bars = _all_bars(profile, size)
    formats = (format_duration, format_bytes, format_bytes, format_bytes)
    return {
        "traces": [_trace(one) for one in bars],
        "axes": [_axis([one for one in bars if one.panel == panel], formats[panel]) for panel in range(len(PANELS))],
        "sums": _sums(profile, size),
        "cards": [_card(profile, number, size) for number in range(len(profile.layers))],
    }


def _all_bars(profile: Profile, size: int) -> list[_Bars]:
    layers = profile.layers
    zeros, unlabelled = [0.0] * len(layers), [""] * len(layers)
    forward = [layer.forward_s(size) for layer in layers]
    backward = [layer.backward_s(size) for layer in layers]
    both = [format_duration(there + back) for there, back in zip(forward, backward, strict=True)]
    tied = [float(tied_bytes(profile, number)) for number in range(len(layers))]
    own = [layer.parameter_bytes - part for layer, part in zip(layers, tied, strict=True)]
    parameters = [_amount(layer.parameter_bytes) for layer in layers]
    kept = [layer.activations.at(size) for layer in layers]
    crossing = [layer.boundary.at(size) for layer in layers]
    return [
        _Bars(0, "forward", forward, zeros, unlabelled),
        _Bars(0, "backward", backward, forward, both),
        _Bars(1, "parameters", own, zeros, unlabelled),
        _Bars(1, "parameters", tied, own, parameters, is_hatched=True),
        _Bars(2, "kept", kept, zeros, [_amount(num_bytes) for num_bytes in kept]),
        _Bars(3, "cut", crossing, zeros, [_amount(num_bytes) for num_bytes in crossing]),
    ]


def _trace(bars: _Bars) -> dict[str, Any]:
    """As plotly takes it; `meta` names its colour, which the page has in light and in dark."""
    from plotly.graph_objects import Bar

    trace: dict[str, Any] = Bar(
        orientation="h",
        y=list(range(len(bars.lengths))),
        x=bars.lengths,
        base=bars.bases,
        text=bars.labels,
        textposition="outside",
        textangle=0,
        constraintext="none",
        cliponaxis=False,
        xaxis=_axis_name("x", bars.panel),
        hoverinfo="none",
        meta=bars.color,
        marker={
            "line": {"width": 0},
            "pattern": {"shape": "/", "size": 5, "solidity": 0.3, "fillmode": "overlay"} if bars.is_hatched else {},
        },
    ).to_plotly_json()
    return trace


def _layout(profile: Profile) -> dict[str, Any]:
    from plotly.graph_objects import Layout

    still = {"fixedrange": True, "zeroline": False, "tickmode": "array", "tickangle": 0, "ticks": ""}
    across = {
        _axis_name("xaxis", panel): {"domain": domain, "side": "top", **still}
        for panel, domain in enumerate(panel_domains())
    }
    layout: dict[str, Any] = Layout(
        barmode="overlay",
        bargap=0.3,
        showlegend=False,
        hovermode="y",
        dragmode=False,
        margin={"l": names_px(profile), "r": _RIGHT_PX, "t": _TOP_PX, "b": _BOTTOM_PX},
        yaxis={"range": [len(profile.layers) - 0.5, -0.5], "showgrid": False, **still},
        **across,
    ).to_plotly_json()
    return layout


def _axis(bars: Sequence[_Bars], show: Callable[[float], str]) -> dict[str, Any]:
    """Of one panel: up to its longest row."""
    most = max(base + length for one in bars for base, length in zip(one.bases, one.lengths, strict=True))
    ticks = _ticks(most)
    return {"range": [0, (most or 1.0) * _ROOM_FOR_LABELS], "values": ticks, "labels": [show(tick) for tick in ticks]}


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 up to `most`: two or three of them, since every bar has its own at its end."""
    if most <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(most))
    step = power * (1 if most < 2 * power else 2 if most < 5 * power else 5)
    return [step * count for count in range(math.floor(most / step) + 1)]


def _sums(profile: Profile, size: int) -> dict[str, str]:
    """What stands under the headings: of the whole model, or for cuts from the narrowest to the widest."""
    layers = profile.layers
    crossing = [layer.boundary.at(size) for layer in layers[:-1]]
    narrow_to_wide = dict.fromkeys(format_bytes(end(crossing)) for end in (min, max)) if crossing else {NOTHING: None}
    return {
        "forward": format_duration(sum(layer.forward_s(size) for layer in layers)),
        "backward": format_duration(sum(layer.backward_s(size) for layer in layers)),
        "parameters": format_bytes(profile.parameter_bytes(0, len(layers))),
        "kept": format_bytes(sum(layer.activations.at(size) for layer in layers)),
        "cut": " to ".join(narrow_to_wide),
    }


def _card(profile: Profile, number: int, size: int) -> dict[str, Any]:
    """All that is known of a layer: its name, and rows of words and numbers."""
    layer = profile.layers[number]
    is_last = number == len(profile.layers) - 1
    rows = [
        ("forward", format_duration(layer.forward_s(size))),
        ("backward", format_duration(layer.backward_s(size))),
        *_crowded_rows(layer, size),
        ("parameters", exact_bytes(layer.parameter_bytes)),
        *[(f"tied: {tie.name}", exact_bytes(tie.num_bytes)) for tie in profile.tied if number in tie.layers],
        *([("buffers", exact_bytes(layer.buffer_bytes))] if layer.buffer_bytes else []),
        ("activations kept", exact_bytes(layer.activations.at(size))),
        ("most in forward", exact_bytes(layer.forward_peak.at(size))),
        ("most in backward", exact_bytes(layer.backward_peak.at(size))),
        ("to the next layer", NOTHING if is_last else exact_bytes(layer.boundary.at(size))),
    ]
    return {"name": layer.name, "place": f"layer {number}", "rows": rows}


def _crowded_rows(layer: LayerProfile, size: int) -> list[tuple[str, str]]:
    if not layer.crowded_points:
        return []
    return [
        ("forward, all cores busy", format_duration(layer.forward_s(size, crowded=True))),
        ("backward, all cores busy", format_duration(layer.backward_s(size, crowded=True))),
    ]


def _amount(num_bytes: float) -> str:
    return format_bytes(num_bytes) if num_bytes else NOTHING


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else "…" + name[1 - _LONGEST_NAME :]


def _axis_name(axis: str, panel: int) -> str:
    return f"{axis}{panel + 1}" if panel else axis

"""Parts of pictures for plotly: traces, layouts, and axes with their ticks.

Plotly checks the parts, and loads when one is made. The `meta` of a trace names its colour, which differs between the
light and the dark page.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zooid.core.units import format_duration, format_usd

_MAX_LINEAR_RATIO = 10.0
"""Values that differ by a larger factor than this have a logarithmic axis."""
_MAX_TICKS = 8
_MAX_LOG_TICKS = 12
_PAD = 0.07
"""The margin at both ends of an axis, as a fraction of the span of its values."""


def bars(**options: Any) -> dict[str, Any]:
    """A trace of horizontal bars."""
    from plotly.graph_objects import Bar

    fixed = {"orientation": "h", "textangle": 0, "constraintext": "none", "cliponaxis": False}
    return dict(Bar(**fixed, **options).to_plotly_json())


def points(**options: Any) -> dict[str, Any]:
    """A trace of points or lines."""
    from plotly.graph_objects import Scatter

    return dict(Scatter(**options).to_plotly_json())


def layout(**options: Any) -> dict[str, Any]:
    """A layout without a legend, which the reader cannot drag."""
    from plotly.graph_objects import Layout

    return dict(Layout(showlegend=False, dragmode=False, **options).to_plotly_json())


@dataclass(frozen=True)
class Scale:
    """Round numbers and labels for the axis of one quantity."""

    steps: tuple[float, ...]
    """Round numbers in ascending order: distances between ticks, or the ticks of a logarithmic axis."""
    show: Callable[[float], str]


_DECIMALS = tuple(digit * 10.0**power for power in range(-12, 13) for digit in (1, 2, 5))
_DAY_S = 86400.0

DURATION = Scale(
    (
        *(step for step in _DECIMALS if step <= 10),
        *(20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0),
        *(step * _DAY_S for step in _DECIMALS if step >= 1),
    ),
    format_duration,
)
MONEY = Scale(_DECIMALS, format_usd)
COUNT = Scale(tuple(step for step in _DECIMALS if step >= 1), lambda number: f"{number:g}")


def axis(values: Sequence[float], scale: Scale) -> dict[str, Any]:
    """An axis for plotly; logarithmic where values differ by more than a factor of ten, and none is 0."""
    low, high = min(values), max(values)
    if low > 0 and high / low > _MAX_LINEAR_RATIO:
        low_end, high_end = _padded(math.log10(low), math.log10(high))
        ticks = [step for step in scale.steps if low_end <= math.log10(step) <= high_end]
        stride = math.ceil(len(ticks) / _MAX_LOG_TICKS) or 1
        return _axis("log", (low_end, high_end), ticks[::stride], scale)
    low_end, high_end = _padded(low, high)
    return _axis("linear", (low_end, high_end), _even_ticks(low_end, high_end, scale), scale)


def _padded(low: float, high: float) -> tuple[float, float]:
    span = high - low or abs(high) or 1.0
    return low - _PAD * span, high + _PAD * span


def _even_ticks(low_end: float, high_end: float, scale: Scale) -> list[float]:
    """As many ticks as there is room for, none below 0, and no two with the same label."""
    for step in scale.steps:
        first, last = max(0, math.ceil(low_end / step)), math.floor(high_end / step)
        if last - first < _MAX_TICKS:
            ticks = [step * count for count in range(first, last + 1)]
            if len({scale.show(tick) for tick in ticks}) == len(ticks):
                return ticks
    return []


def _axis(kind: str, ends: tuple[float, float], ticks: Sequence[float], scale: Scale) -> dict[str, Any]:
    return {
        "type": kind,
        "range": list(ends),
        "tickmode": "array",
        "tickvals": list(ticks),
        "ticktext": [scale.show(tick) for tick in ticks],
    }

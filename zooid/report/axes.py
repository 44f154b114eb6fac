"""Axes for values that span little or much: from where to where they go, where ticks stand, and what these say."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zooid.core.units import format_duration, format_usd

_MOST_SPAN = 10.0
"""Values that differ by a larger factor have a logarithmic axis."""
_MOST_TICKS = 8
_MOST_LOG_TICKS = 12
_PAD = 0.07
"""What an axis has beyond the outermost values, as a part of its length."""


@dataclass(frozen=True)
class Scale:
    """Of one quantity."""

    steps: tuple[float, ...]
    """Round numbers, the least first: distances of ticks, or ticks themselves where the axis is logarithmic."""
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
    """As plotly takes it; logarithmic where the values span more than a factor of ten, and none is 0."""
    low, high = min(values), max(values)
    if low > 0 and high / low > _MOST_SPAN:
        least, most = _padded(math.log10(low), math.log10(high))
        ticks = [step for step in scale.steps if least <= math.log10(step) <= most]
        every = math.ceil(len(ticks) / _MOST_LOG_TICKS) or 1
        return _axis("log", (least, most), ticks[::every], scale)
    least, most = _padded(low, high)
    return _axis("linear", (least, most), _even_ticks(least, most, scale), scale)


def _padded(low: float, high: float) -> tuple[float, float]:
    span = high - low or abs(high) or 1.0
    return low - _PAD * span, high + _PAD * span


def _even_ticks(least: float, most: float, scale: Scale) -> list[float]:
    """As many as there is room for, as long as no two of them read alike; never below 0."""
    for step in scale.steps:
        first, last = max(0, math.ceil(least / step)), math.floor(most / step)
        if last - first < _MOST_TICKS:
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

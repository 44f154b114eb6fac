"""Draws the runs of one comparison over time: accuracy, workers and cost, one above the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.adabatch.recording import Points, Recording

WIDTH, LEFT, RIGHT, TOP, GAP, BOTTOM = 1000, 70, 20, 78, 36, 44
COLOURS = ("#3b6ea5", "#c0392b", "#2e8b57")
GRID = "#e2e2e2"


@dataclass(frozen=True)
class Panel:
    """One of the diagrams that share a time axis."""

    title: str
    height: int
    low: float
    high: float
    ticks: Sequence[float]
    label: Callable[[float], str]
    is_stepped: bool
    """Whether a value holds until the next one, instead of changing evenly."""


def draw(found: Mapping[str, Recording]) -> str:
    """The picture as SVG."""
    end_s = max(recording.run_s for recording in found.values())
    lowest = min(value for recording in found.values() for _, value in recording.accuracy)
    most = max(value for recording in found.values() for _, value in recording.workers)
    usd = max(value for recording in found.values() for _, value in recording.cost)
    low, usd_step = int(20 * lowest) / 20, _nice(usd / 4)
    panels = [
        Panel("accuracy on the test pictures", 230, low, 0.9, _ticks(low, 0.9, 0.05), lambda x: f"{x:.0%}", False),
        Panel("workers", 120, 0, most, [most / 4 * number for number in range(5)], lambda x: f"{x:g}", True),
        Panel("cost", 150, 0, usd, _ticks(0, usd, usd_step), lambda x: f"${x:.3f}", False),
    ]
    curves: list[Callable[[Recording], Points]] = [
        lambda recording: recording.accuracy,
        lambda recording: [*recording.workers, (recording.run_s, recording.workers[-1][1])],
        lambda recording: (
            [point for point in recording.cost if point[0] <= recording.run_s]
            + [(recording.run_s, recording.usd_at(recording.run_s))]
        ),
    ]
    height = TOP + sum(panel.height + GAP for panel in panels) - GAP + BOTTOM
    parts = [_text(LEFT, 22, "Fashion-MNIST with a fixed and with a growing number of workers", size=15, bold=True)]
    parts += _legend(found)
    top = TOP
    for panel, curve in zip(panels, curves, strict=True):
        parts += _axes(panel, top, end_s)
        for colour, recording in zip(COLOURS, found.values(), strict=True):
            parts.append(_line(panel, top, end_s, curve(recording), colour))
        top += panel.height + GAP
    bottom = top - GAP
    for at_s in _ticks(0, end_s, _nice(end_s / 8)):
        parts.append(_text(_x(at_s, end_s), bottom + 18, f"{at_s:g} s", anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, "time since the first step began", anchor="middle"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "</svg>\n"
    )


def _legend(found: Mapping[str, Recording]) -> list[str]:
    parts = []
    for number, (colour, (name, recording)) in enumerate(zip(COLOURS, found.items(), strict=True)):
        x = LEFT + 270 * number
        text = f"{name} worker{'' if name == '1' else 's'}, at the end {recording.accuracy[-1][1]:.1%}"
        parts.append(f'<rect x="{x}" y="32" width="22" height="4" fill="{colour}"/>')
        parts.append(_text(x + 28, 39, text))
    return parts


def _axes(panel: Panel, top: float, end_s: float) -> list[str]:
    parts = [_text(LEFT, top - 8, panel.title, bold=True)]
    for tick in panel.ticks:
        y = _y(panel, top, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 8, y + 4, panel.label(tick), anchor="end"))
    for at_s in _ticks(0, end_s, _nice(end_s / 8)):
        x = _x(at_s, end_s)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + panel.height}" stroke="{GRID}"/>')
    return parts


def _line(panel: Panel, top: float, end_s: float, points: Points, colour: str) -> str:
    corners: list[tuple[float, float]] = []
    for at_s, value in points:
        if panel.is_stepped and corners:
            corners.append((_x(at_s, end_s), corners[-1][1]))
        corners.append((_x(at_s, end_s), _y(panel, top, value)))
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    end_x, end_y = corners[-1]
    return (
        f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
        f'<circle cx="{end_x:.1f}" cy="{end_y:.1f}" r="3.5" fill="{colour}"/>'
    )


def _x(at_s: float, end_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at_s / end_s


def _y(panel: Panel, top: float, value: float) -> float:
    inside = min(max(value, panel.low), panel.high)
    return top + panel.height * (panel.high - inside) / (panel.high - panel.low)


def _ticks(low: float, high: float, step: float) -> list[float]:
    """
    >>> _ticks(0, 10, 4)
    [0, 4, 8]
    """
    return [low + number * step for number in range(int((high - low) / step + 1e-9) + 1)]


def _nice(step: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below this.

    >>> _nice(0.03), _nice(7), _nice(20)
    (0.05, 10, 20)
    """
    power = 1e-9
    while power * 10 <= step:
        power *= 10
    return float(f"{next(power * times for times in (1, 2, 5, 10) if power * times >= step - 1e-12):.3g}")


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, bold: bool = False) -> str:
    weight = "bold" if bold else "normal"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )

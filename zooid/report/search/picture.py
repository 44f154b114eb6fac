"""The candidates of a search as dots: what each costs against how long it takes, and what became of it.

Everything that is drawn or said is decided here; the page's script puts it on the screen, in the colours of the page.
Plotly checks the parts of the picture and loads when one is made.
"""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zooid.core.plans.plan import Plan
from zooid.core.plans.search_result import Candidate, Search
from zooid.core.units import format_duration, format_usd
from zooid.report.axes import COUNT, DURATION, MONEY, axis
from zooid.report.profile.rows import count_in_words
from zooid.report.search.rows import RUNNER_UP, VERDICTS, counted, schedule_in_words

MOST_DOTS = 3000
"""More make the page slow and the picture no clearer."""
_NEAR = 2.0
"""What takes and costs at most so many times what the dearest and the slowest plan of the front do is near it."""
_WIDEST_HOVER = 72
_HEIGHT_PX = 520
_STRIP_PX = 64
"""Of the picture's height, for each number of members where nothing is charged."""
_MARGIN = {"l": 10, "r": 16, "t": 22, "b": 44}


@dataclass(frozen=True)
class Kind:
    """Of dots that look the same."""

    name: str
    """Of its colour, too."""
    words: str
    symbol: str
    size: float
    opacity: float = 1.0
    line_px: float = 1.0
    free_words: str = ""
    """Where nothing is charged, if that is said in other words."""

    def in_words(self, *, free: bool) -> str:
        return self.free_words if free and self.free_words else self.words


KINDS = (
    Kind("bounded", "at least this, not simulated: another is better even so", "x-thin-open", 5, 0.45),
    Kind("impossible", "at least this, not simulated: too large, or beyond a limit", "x-thin-open", 5, 0.6),
    Kind("open", "at least this, not simulated: left open", "x-thin-open", 6, 0.9),
    Kind(
        "dominated",
        "simulated, another is faster and cheaper",
        "circle",
        8,
        0.75,
        free_words="simulated, another is faster",
    ),
    Kind("beyond", "simulated, beyond a limit", "circle-open", 8, 1.0, 1.5),
    Kind("front", "front: none is both faster and cheaper", "circle", 11),
    Kind("pick", "pick", "star", 21),
)
"""In the order in which they are drawn, the last on top."""
_KIND_OF_BOUNDED = {"too large": "impossible", "beyond a limit": "impossible", "open": "open"}
_KIND_OF_SIMULATED = {"pick": "pick", "front": "front", "beyond a limit": "beyond", "too large": "beyond"}


def kind_of(candidate: Candidate) -> str:
    if candidate.is_simulated:
        return _KIND_OF_SIMULATED.get(candidate.verdict, "dominated")
    return _KIND_OF_BOUNDED.get(candidate.verdict, "bounded")


def is_free(found: Search) -> bool:
    """Whether nothing is charged for any plan, so that only time tells them apart."""
    return not any(each.run_usd for each in found.candidates) and not found.pick.prediction.run_usd


def drawn(candidates: Sequence[Candidate]) -> list[Candidate]:
    """At most MOST_DOTS: of too many, those that were not simulated are thinned out first, and the front never."""
    kept = [each for each in candidates if kind_of(each) in ("pick", "front")]
    for is_simulated in (True, False):
        group = [each for each in candidates if each.is_simulated is is_simulated]
        group = [each for each in group if kind_of(each) not in ("pick", "front")]
        kept += _thinned(group, max(0, MOST_DOTS - len(kept)))
    return kept


def _thinned(group: list[Candidate], most: int) -> list[Candidate]:
    """Evenly from the fastest to the slowest, so that what is left looks as the whole did."""
    if len(group) <= most:
        return group
    ordered = sorted(group, key=lambda each: (each.run_s, each.run_usd))
    return [ordered[number * len(group) // most] for number in range(most)]


def candidates_plot(found: Search) -> dict[str, Any]:
    """Cost over time; the number of members over time where nothing is charged. The views are what the reader may look
    at: everything, and what is near the front where that is less."""
    shown, free = drawn(found.candidates), is_free(found)
    points = [_point(each, free=free) for each in shown]
    traces = [] if free else [_front_line(found.front)]
    for kind in KINDS:
        own = [each for each in shown if kind_of(each) == kind.name]
        if own:
            traces.append(_dots(own, kind, free=free))
    if found.runner_up is not None:
        traces.append(_ring(found.runner_up, free=free))
    near = _near_front(points, found, free=free)
    views = [_view("all", points, free=free)]
    if near and len(near) < len(points):
        views.append(_view("near the front", near, free=free))
    return {"traces": traces, "layout": _layout(points, free=free), "views": views}


def _point(candidate: Candidate, *, free: bool) -> tuple[float, float]:
    return candidate.run_s, candidate.num_members if free else candidate.run_usd


def _near_front(points: Sequence[tuple[float, float]], found: Search, *, free: bool) -> list[tuple[float, float]]:
    most_s = _NEAR * max(plan.prediction.run_s for plan in (*found.front, found.pick))
    most_usd = _NEAR * max(plan.prediction.run_usd for plan in (*found.front, found.pick))
    return [(run_s, high) for run_s, high in points if run_s <= most_s and (free or high <= most_usd)]


def _view(name: str, points: Sequence[tuple[float, float]], *, free: bool) -> dict[str, Any]:
    times, heights = [run_s for run_s, _ in points], [high for _, high in points]
    return {"name": name, "xaxis": axis(times, DURATION), "yaxis": axis(heights, COUNT if free else MONEY)}


def _front_line(front: Sequence[Plan]) -> dict[str, Any]:
    """What the least cost is for so much time: it stays until the next plan of the front is fast enough."""
    from plotly.graph_objects import Scatter

    line: dict[str, Any] = Scatter(
        x=[plan.prediction.run_s for plan in front],
        y=[plan.prediction.run_usd for plan in front],
        mode="lines",
        line={"shape": "hv", "width": 1.5},
        hoverinfo="skip",
        meta="front",
    ).to_plotly_json()
    return line


def _dots(candidates: Sequence[Candidate], kind: Kind, *, free: bool) -> dict[str, Any]:
    """As plotly takes it; `meta` names its colour, which the page has in light and in dark."""
    from plotly.graph_objects import Scatter

    points = [_point(each, free=free) for each in candidates]
    is_pick = kind.name == "pick"
    dots: dict[str, Any] = Scatter(
        x=[run_s for run_s, _ in points],
        y=[high for _, high in points],
        mode="markers+text" if is_pick else "markers",
        text=["<b>pick</b>"] * len(points) if is_pick else None,
        textposition="bottom left" if is_pick else None,  # where no plan can be, since nothing beats a front
        marker={
            "symbol": kind.symbol,
            "size": kind.size,
            "opacity": kind.opacity,
            "line": {"width": kind.line_px},
        },
        hoverinfo="text",
        hovertext=[_hover(each) for each in candidates],
        cliponaxis=not is_pick,  # its label may stand beyond the edge
        meta=kind.name,
    ).to_plotly_json()
    return dots


def _ring(plan: Plan, *, free: bool) -> dict[str, Any]:
    """Around the runner-up's dot, which says what it is."""
    from plotly.graph_objects import Scatter

    ring: dict[str, Any] = Scatter(
        x=[plan.prediction.run_s],
        y=[plan.num_members if free else plan.prediction.run_usd],
        mode="markers+text",
        text=[f"<b>{RUNNER_UP}</b>"],
        textposition="top right",
        marker={"symbol": "circle-open", "size": 19, "line": {"width": 1.5}},
        hoverinfo="skip",
        cliponaxis=False,
        meta="pick",
    ).to_plotly_json()
    return ring


def _hover(candidate: Candidate) -> str:
    at_least = "" if candidate.is_simulated else "at least "
    # each of the names stands for equally many members: those of a stage, or of a replica
    names = [name for name in candidate.offers for _ in range(candidate.num_members // len(candidate.offers))]
    verdict = VERDICTS[candidate.verdict] + (f": {candidate.reason}" if candidate.reason else "")
    lines = [
        f"{candidate.layout} on {', '.join(counted(names))}",
        f"{count_in_words(candidate.num_members, 'member')}, grains of {candidate.grain_size}, "
        f"{schedule_in_words(candidate.schedule, candidate.ahead)}, {candidate.transport}",
        f"takes {at_least}{format_duration(candidate.run_s)}, costs {at_least}{format_usd(candidate.run_usd)}",
        verdict,
    ]
    first, *others = ["<br>".join(map(html.escape, textwrap.wrap(line, _WIDEST_HOVER))) for line in lines]
    return "<br>".join([f"<b>{first}</b>", *others])


def _layout(points: Sequence[tuple[float, float]], *, free: bool) -> dict[str, Any]:
    from plotly.graph_objects import Layout

    num_strips = len({high for _, high in points}) if free else 0
    height = min(_HEIGHT_PX, (num_strips + 2) * _STRIP_PX) if free else _HEIGHT_PX
    still = {"fixedrange": True, "zeroline": False, "tickangle": 0, "ticks": ""}
    layout: dict[str, Any] = Layout(
        showlegend=False,
        dragmode=False,
        hovermode="closest",
        height=height,
        margin=_MARGIN,
        xaxis={**still, "title": {"text": "run time", "standoff": 12}},
        yaxis={**still, "title": {"text": "members" if free else "cost", "standoff": 14}, "automargin": True},
    ).to_plotly_json()
    return layout

"""The candidates of a search as dots: cost over time, in a colour for each verdict.

All shapes and texts are decided here; the page's script draws them, in the colours of the page.
"""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zooid.core.plans.plan import Plan
from zooid.core.plans.search_result import Candidate, Search
from zooid.core.units import format_duration, format_usd
from zooid.report import plots
from zooid.report.phrases import count_in_words
from zooid.report.plots import COUNT, DURATION, MONEY, axis
from zooid.report.search.rows import RUNNER_UP, VERDICTS, counted, schedule_in_words

MAX_DOTS = 3000
"""More dots make the page slow and the picture no clearer."""
_NEAR = 2.0
"""Candidates near the front are at most this many times slower and dearer than its slowest and dearest plan."""
_MAX_HOVER_WIDTH = 72
_HEIGHT_PX = 520
_STRIP_PX = 64
"""The height of the strip for each number of members, where nothing is charged."""
_MARGIN = {"l": 10, "r": 16, "t": 22, "b": 44}


@dataclass(frozen=True)
class DotKind:
    """Dots that look the same, since their candidates have the same verdict."""

    name: str
    """The name of the kind and of its colour."""
    words: str
    symbol: str
    size: float
    opacity: float = 1.0
    line_px: float = 1.0
    free_words: str = ""
    """Other words for it where nothing is charged, if any."""

    def in_words(self, *, free: bool) -> str:
        return self.free_words if free and self.free_words else self.words


DOT_KINDS = (
    DotKind("bounded", "lower bound, not simulated: pruned", "x-thin-open", 5, 0.45),
    DotKind("impossible", "lower bound, not simulated: infeasible, or beyond a limit", "x-thin-open", 5, 0.6),
    DotKind("open", "lower bound, not simulated: left open", "x-thin-open", 6, 0.9),
    DotKind(
        "dominated",
        "simulated, another is faster and cheaper",
        "circle",
        8,
        0.75,
        free_words="simulated, another is faster",
    ),
    DotKind("beyond", "simulated, beyond a limit", "circle-open", 8, 1.0, 1.5),
    DotKind("front", "front: none is both faster and cheaper", "circle", 11),
    DotKind("pick", "pick", "star", 21),
)
"""Kinds in drawing order; the last is on top."""
_KIND_OF_BOUNDED = {
    "too large": "impossible",
    "hopeless": "impossible",
    "beyond a limit": "impossible",
    "open": "open",
}
_KIND_OF_SIMULATED = {"pick": "pick", "front": "front", "beyond a limit": "beyond", "too large": "beyond"}


def kind_of(candidate: Candidate) -> str:
    if candidate.is_simulated:
        return _KIND_OF_SIMULATED.get(candidate.verdict, "dominated")
    return _KIND_OF_BOUNDED.get(candidate.verdict, "bounded")


def is_free(search: Search) -> bool:
    """Whether nothing is charged for any plan."""
    return not any(candidate.run_usd for candidate in search.candidates) and not search.pick.prediction.run_usd


def drawn(candidates: Sequence[Candidate]) -> list[Candidate]:
    """At most MAX_DOTS candidates; those that were not simulated are left out first, and the front never."""
    kept = [each for each in candidates if kind_of(each) in ("pick", "front")]
    others = [each for each in candidates if kind_of(each) not in ("pick", "front")]
    for is_simulated in (True, False):
        group = [each for each in others if each.is_simulated is is_simulated]
        kept += _thinned(group, max(0, MAX_DOTS - len(kept)))
    return kept


def _thinned(group: list[Candidate], max_dots: int) -> list[Candidate]:
    """Thin out evenly from the fastest to the slowest, so that the picture keeps its shape."""
    if len(group) <= max_dots:
        return group
    ordered = sorted(group, key=lambda candidate: (candidate.run_s, candidate.run_usd))
    return [ordered[number * len(group) // max_dots] for number in range(max_dots)]


def candidates_plot(search: Search) -> dict[str, Any]:
    """Plot cost over time, or the number of members over time where nothing is charged.

    The reader chooses between two views: all candidates, and those near the front where these are fewer.
    """
    shown, free = drawn(search.candidates), is_free(search)
    points = [_point(each, free=free) for each in shown]
    traces = [] if free else [_front_line(search.front)]
    for kind in DOT_KINDS:
        if of_kind := [each for each in shown if kind_of(each) == kind.name]:
            traces.append(_dots(of_kind, kind, free=free))
    if search.runner_up is not None:
        traces.append(_ring(search.runner_up, free=free))
    near = _near_front(points, search, free=free)
    views = [_view("all", points, free=free)]
    if near and len(near) < len(points):
        views.append(_view("near the front", near, free=free))
    return {"traces": traces, "layout": _layout(points, free=free), "views": views}


def _point(candidate: Candidate, *, free: bool) -> tuple[float, float]:
    return candidate.run_s, candidate.num_members if free else candidate.run_usd


def _near_front(points: Sequence[tuple[float, float]], search: Search, *, free: bool) -> list[tuple[float, float]]:
    max_s = _NEAR * max(plan.prediction.run_s for plan in (*search.front, search.pick))
    max_usd = _NEAR * max(plan.prediction.run_usd for plan in (*search.front, search.pick))
    return [(run_s, high) for run_s, high in points if run_s <= max_s and (free or high <= max_usd)]


def _view(name: str, points: Sequence[tuple[float, float]], *, free: bool) -> dict[str, Any]:
    times, heights = [run_s for run_s, _ in points], [high for _, high in points]
    return {"name": name, "xaxis": axis(times, DURATION), "yaxis": axis(heights, COUNT if free else MONEY)}


def _front_line(front: Sequence[Plan]) -> dict[str, Any]:
    """The least cost for each run time, as a line of steps through the front."""
    return plots.points(
        x=[plan.prediction.run_s for plan in front],
        y=[plan.prediction.run_usd for plan in front],
        mode="lines",
        line={"shape": "hv", "width": 1.5},
        hoverinfo="skip",
        meta="front",
    )


def _dots(candidates: Sequence[Candidate], kind: DotKind, *, free: bool) -> dict[str, Any]:
    points = [_point(each, free=free) for each in candidates]
    is_pick = kind.name == "pick"
    return plots.points(
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
        cliponaxis=not is_pick,  # the label of the pick may reach beyond the edge
        meta=kind.name,
    )


def _ring(plan: Plan, *, free: bool) -> dict[str, Any]:
    """A ring around the dot of the runner-up."""
    return plots.points(
        x=[plan.prediction.run_s],
        y=[plan.num_members if free else plan.prediction.run_usd],
        mode="markers+text",
        text=[f"<b>{RUNNER_UP}</b>"],
        textposition="top right",
        marker={"symbol": "circle-open", "size": 19, "line": {"width": 1.5}},
        hoverinfo="skip",
        cliponaxis=False,
        meta="pick",
    )


def _hover(candidate: Candidate) -> str:
    at_least = "" if candidate.is_simulated else "at least "
    # each name stands for equally many members: those of a stage, or those of a replica
    names = [name for name in candidate.offers for _ in range(candidate.num_members // len(candidate.offers))]
    verdict = VERDICTS[candidate.verdict] + (f": {candidate.reason}" if candidate.reason else "")
    lines = [
        f"{candidate.layout} on {', '.join(counted(names))}",
        f"{count_in_words(candidate.num_members, 'member')}, grains of {candidate.grain_size}, "
        f"{schedule_in_words(candidate.schedule, candidate.ahead)}, {candidate.transport}",
        f"takes {at_least}{format_duration(candidate.run_s)}, costs {at_least}{format_usd(candidate.run_usd)}",
        verdict,
    ]
    first, *others = ["<br>".join(map(html.escape, textwrap.wrap(line, _MAX_HOVER_WIDTH))) for line in lines]
    return "<br>".join([f"<b>{first}</b>", *others])


def _layout(points: Sequence[tuple[float, float]], *, free: bool) -> dict[str, Any]:
    num_strips = len({high for _, high in points}) if free else 0
    height = min(_HEIGHT_PX, (num_strips + 2) * _STRIP_PX) if free else _HEIGHT_PX
    still = {"fixedrange": True, "zeroline": False, "tickangle": 0, "ticks": ""}
    return plots.layout(
        hovermode="closest",
        height=height,
        margin=_MARGIN,
        xaxis={**still, "title": {"text": "run time", "standoff": 12}},
        yaxis={**still, "title": {"text": "members" if free else "cost", "standoff": 14}, "automargin": True},
    )

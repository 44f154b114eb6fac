"""A forecast as bars: the time of a step by member, money by kind, and the effect of changes.

All shapes and texts are decided here; the page's script draws them, in the colours of the page.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from zooid.core.plans.forecast import Forecast
from zooid.core.runs.step_parts import StepParts, parts_by_member
from zooid.core.runs.timeline import action_name
from zooid.core.units import format_duration, format_usd
from zooid.report import plots
from zooid.report.phrases import percent, signed_percent, whole_percent
from zooid.report.prediction.rows import COST_KINDS, PARTS, change_in_words, part_seconds
from zooid.report.timeline.rows import members_in_order

PART_COLORS = {"compute": "forward", "transfer": "uplink", "reduce": "reduce", "bubble": "commit"}
GAIN_COLORS = {"samples/s": "forward", "dollars for a million samples": "backward"}
_MAX_MEMBERS = 16
"""Above this number, only the busiest member of each stage is shown, since replicas are alike."""
_ROW_PX = 34
_MARGIN = {"l": 10, "r": 16, "t": 4, "b": 34}
_MAX_IN_MS_S = 1.0
_MIN_LABELLED = 0.03
"""A bar shorter than this fraction of the picture's width has no room for a label."""


def time_plot(forecast: Forecast) -> dict[str, Any]:
    """A row for each member, with the parts of its step from left to right; a measured step is below it."""
    rows = _member_rows(forecast)
    longest_s = max(parts.step_s for parts in rows.values())
    unit, factor = ("ms", 1e3) if longest_s <= _MAX_IN_MS_S else ("s", 1.0)
    traces = []
    for name, color in PART_COLORS.items():
        seconds = [part_seconds(parts)[name] for parts in rows.values()]
        fractions = [
            part_s / parts.step_s if parts.step_s else 0.0 for part_s, parts in zip(seconds, rows.values(), strict=True)
        ]
        traces.append(
            _bars(
                rows=list(rows),
                lengths=[part_s * factor for part_s in seconds],
                color=color,
                labels=[
                    whole_percent(fraction) if part_s >= _MIN_LABELLED * longest_s else ""
                    for part_s, fraction in zip(seconds, fractions, strict=True)
                ],
                is_inside=True,
                hover=[
                    f"{PARTS[name]}: {format_duration(part_s)}, {fraction * 100:.1f} %"
                    for part_s, fraction in zip(seconds, fractions, strict=True)
                ],
            )
        )
    return _plot(traces, len(rows), suffix=f" {unit}", is_stacked=True)


def _member_rows(forecast: Forecast) -> dict[str, StepParts]:
    predicted = parts_by_member(forecast.timeline)
    measured_timeline = forecast.measured.timeline if forecast.measured is not None else None
    measured = {} if measured_timeline is None else parts_by_member(measured_timeline)
    names = members_in_order(forecast.timeline)
    if len(names) > _MAX_MEMBERS:
        names = _busiest_of_stages(names, predicted, forecast)
    rows: dict[str, StepParts] = {}
    for name in names:
        rows[name] = predicted[name]
        if name in measured:
            rows[f"{name}, measured"] = measured[name]
    return rows


def _busiest_of_stages(names: Sequence[str], parts: Mapping[str, StepParts], forecast: Forecast) -> list[str]:
    """The member of each stage that computes longest; the names of its actions say its stage."""
    stage_of = {interval.member: action_name(interval.action).stage for interval in forecast.timeline.intervals}
    busiest: dict[int | None, str] = {}
    for name in names:
        stage = stage_of[name]
        if stage not in busiest or parts[name].compute_s > parts[busiest[stage]].compute_s:
            busiest[stage] = name
    return list(busiest.values())


def money_plot(forecast: Forecast) -> dict[str, Any] | None:
    """A row for each kind of cost above 0; None where nothing is charged."""
    terms = [term for term in forecast.prediction.cost_terms if term.usd > 0]
    total_usd = forecast.prediction.run_usd
    if not terms:
        return None
    labels = [f"{format_usd(term.usd)}, {percent(term.usd / total_usd)}" for term in terms]
    names = [COST_KINDS.get(term.kind, term.kind) for term in terms]
    bars = _bars(rows=names, lengths=[term.usd for term in terms], color="kept", labels=labels, hover=labels)
    return _plot([bars], len(terms), prefix="$", room=1.45)


def gains_plot(forecast: Forecast) -> dict[str, Any] | None:
    """Two bars for each possible change, and a mark for the gain that granularity alone predicts.

    None where no change is possible.
    """
    gains = [gain for gain in forecast.gains if gain.speedup is not None]
    if not gains:
        return None
    rows = [change_in_words(gain) for gain in gains]
    values = {
        "samples/s": [gain.speedup for gain in gains],
        "dollars for a million samples": [gain.usd_change for gain in gains],
    }
    traces = [
        _bars(
            rows=rows,
            lengths=[(change or 0.0) * 100 for change in changes],
            color=GAIN_COLORS[name],
            labels=[signed_percent(change) for change in changes],
            hover=[f"{name}: {signed_percent(change)}" for change in changes],
        )
        for name, changes in values.items()
        if any(change is not None for change in changes)
    ]
    marks = plots.points(
        x=[(gain.by_granularity or 0.0) * 100 for gain in gains],
        y=[html.escape(row) for row in rows],
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 30, "line": {"width": 2}},
        hoverinfo="text",
        hovertext=[f"samples/s by granularity alone: {signed_percent(gain.by_granularity)}" for gain in gains],
        meta="ink",
    )
    reached = [(gain.speedup or 0.0, gain.by_granularity or 0.0, gain.usd_change or 0.0) for gain in gains]
    low, high = min(0.0, *map(min, reached)) * 100, max(0.0, *map(max, reached)) * 100
    room = (high - low or 1.0) * 0.25
    plot = _plot([*traces, marks], 2 * len(gains), suffix=" %")
    plot["layout"]["xaxis"]["range"] = [low - (room if low < 0 else 0), high + room]
    return plot


def _bars(
    *,
    rows: Sequence[str],
    lengths: Sequence[float],
    color: str,
    labels: Sequence[str],
    hover: Sequence[str],
    is_inside: bool = False,
) -> dict[str, Any]:
    return plots.bars(
        y=[html.escape(row) for row in rows],  # plotly reads tags in texts
        x=list(lengths),
        text=list(labels),
        textposition="inside" if is_inside else "outside",
        insidetextanchor="middle",
        hoverinfo="text",
        hovertext=[f"{html.escape(row)}<br>{html.escape(text)}" for row, text in zip(rows, hover, strict=True)],
        meta=color,
        marker={"line": {"width": 0}},
    )


def _plot(
    traces: Sequence[dict[str, Any]],
    num_rows: int,
    *,
    prefix: str = "",
    suffix: str = "",
    is_stacked: bool = False,
    room: float = 1.0,
) -> dict[str, Any]:
    longest = max((max(trace["x"], default=0.0) for trace in traces), default=0.0)
    layout = plots.layout(
        barmode="stack" if is_stacked else "group",
        bargap=0.35,
        height=num_rows * _ROW_PX + _MARGIN["t"] + _MARGIN["b"],
        margin=_MARGIN,
        xaxis={
            "fixedrange": True,
            "tickprefix": prefix,
            "ticksuffix": suffix,
            "nticks": 7,
            **({} if is_stacked or room == 1.0 else {"range": [0, longest * room]}),
        },
        yaxis={"fixedrange": True, "autorange": "reversed", "automargin": True, "showgrid": False, "ticksuffix": "  "},
    )
    return {"traces": list(traces), "layout": layout}

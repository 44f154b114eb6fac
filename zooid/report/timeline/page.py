"""A page of timelines: the same step predicted, rehearsed and measured, on one time axis.

All shapes and texts are decided here; the page's script draws them, in the colours of the page.
"""

import html
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from zooid.core.errors import InputError
from zooid.core.runs.timeline import Timeline
from zooid.core.units import format_duration
from zooid.report.frame import filled, framed
from zooid.report.phrases import count_in_words
from zooid.report.timeline.rows import COLUMNS, LANE_NAMES, Bar, bars_of, members_in_order, usage_rows

_MANY_ROWS = 8
"""Rows are lower in timelines of more members than this, so that all of them fit a screen."""
_PX_PER_CHARACTER = 7.5
_MIN_IN_SECONDS_S = 10.0

_COLUMNS = '<colgroup><col class="names"><col><col class="number" span="3"><col class="number last"></colgroup>'
"""The ruler and all pictures have these columns, so that they are aligned."""
_LEGEND = {
    "forward": "forward",
    "backward": "backward",
    "commit": "commit",
    "compute": "other computing",
    "uplink": LANE_NAMES["uplink"],
    "downlink": LANE_NAMES["downlink"],
    "reduce": LANE_NAMES["reduce"],
}


def timeline_page(timelines: Mapping[str, Timeline], *, title: str = "timeline of a step", origin: str = "") -> str:
    """One file that needs no network; `origin` says where the timelines come from."""
    main, data = timeline_main(timelines)
    return framed(
        "timeline",
        title=title,
        data=data,
        has_plotly=False,
        heading=html.escape(title),
        origin=html.escape(origin),
        main=main,
    )


def timeline_main(timelines: Mapping[str, Timeline]) -> tuple[str, dict[str, Any]]:
    """The main part of the page, which other pages may contain, and the data that its script draws."""
    if not timelines:
        raise InputError("no timeline was given; give at least one, by its name")
    bars = {name: bars_of(timeline) for name, timeline in timelines.items()}
    lanes = [lane for lane in LANE_NAMES if any(bar.lane == lane for step_bars in bars.values() for bar in step_bars)]
    members = [member for timeline in timelines.values() for member in timeline.members]
    is_compact = any(len(timeline.members) > _MANY_ROWS for timeline in timelines.values())
    data = {
        "lane_names": [LANE_NAMES[lane] for lane in lanes],
        "end_s": max(timeline.step_s for timeline in timelines.values()),
        "timelines": [_picture(timelines[name], step_bars, lanes) for name, step_bars in bars.items()],
    }
    main = filled(
        "timeline_main.html",
        density="compact" if is_compact else "roomy",
        num_lanes=len(lanes),
        names_px=round(max((len(member) for member in members), default=0) * _PX_PER_CHARACTER)
        + (56 if is_compact else 100),
        legend=_legend({bar.color for step_bars in bars.values() for bar in step_bars}),
        columns=_COLUMNS,
        heads="\n".join(
            f'<th scope="col" title="{html.escape(meaning)}">{name}</th>' for name, meaning in COLUMNS.items()
        ),
        sections="\n".join(_section(number, name, timelines[name], lanes) for number, name in enumerate(timelines)),
    )
    return main, data


def _legend(colors: set[str]) -> str:
    keys = [f'<span><i class="key {color}"></i>{name}</span>' for color, name in _LEGEND.items() if color in colors]
    return "\n".join([*keys, '<span><i class="key wait"></i>waiting for others</span>'])


def _section(number: int, name: str, timeline: Timeline, lanes: list[str]) -> str:
    """A table with a row of numbers for each member, and the picture in one of its columns."""
    *members, (total_name, total_cells) = usage_rows(timeline)
    names = "".join(f"<i>{LANE_NAMES[lane]}</i>" for lane in lanes)
    rows: list[str] = []
    for member, cells in members:
        picture = "" if rows else f'<td class="picture" data-timeline="{number}" rowspan="{len(members)}"></td>'
        numbers = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(
            f'<tr><th scope="row"><div><b>{html.escape(member)}</b><span class="lanes">{names}</span></div></th>'
            f"{picture}{numbers}</tr>"
        )
    foot = "".join(f"<td>{cell}</td>" for cell in total_cells)
    about = f"{format_duration(timeline.step_s)}, {count_in_words(len(members), 'member')}"
    return (
        f'<section><h2>{html.escape(name)} <small>{about}</small></h2>\n<table class="step">\n'
        f"{_COLUMNS}\n"
        f"<tbody>\n{chr(10).join(rows)}\n</tbody>\n"
        f'<tfoot><tr><th scope="row"><div><b>{total_name}</b></div></th><td></td>{foot}</tr></tfoot>\n'
        "</table></section>"
    )


def _picture(timeline: Timeline, bars: list[Bar], lanes: list[str]) -> dict[str, Any]:
    """Rows, and bars as short lists in the order of `_bar`, since there may be thousands."""
    rows = {member: number for number, member in enumerate(members_in_order(timeline))}
    drawn = []
    for (member, lane), in_lane in groupby(bars, key=lambda bar: (bar.member, bar.lane)):
        lane_bars = list(in_lane)
        num_tracks = max(bar.track for bar in lane_bars) + 1
        drawn += [_bar(bar, rows[member], lanes.index(lane), num_tracks, timeline.step_s) for bar in lane_bars]
    return {"members": list(rows), "step_s": timeline.step_s, "bars": drawn}


def _bar(bar: Bar, row: int, lane: int, num_tracks: int, step_s: float) -> list[Any]:
    waited_s = bar.start_s - bar.posted_s
    return [
        row,
        lane,
        bar.track,
        num_tracks,
        bar.color,
        bar.grain,
        round(bar.posted_s, 9),
        round(bar.start_s, 9),
        round(bar.end_s, 9),
        bar.is_rendezvous,
        bar.action,
        bar.words,
        _moment(bar.start_s, step_s),
        format_duration(bar.end_s - bar.start_s),
        format_duration(waited_s) if waited_s > 0 else "",
    ]


def _moment(moment_s: float, step_s: float) -> str:
    """A moment with enough digits to tell neighbouring actions apart."""
    return f"{moment_s:.3f}s" if step_s >= _MIN_IN_SECONDS_S else f"{moment_s * 1e3:.2f}ms"

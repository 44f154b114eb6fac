"""A page of timelines: the same step as predicted, rehearsed and measured, under one another on one time axis.

Everything that is drawn or said is decided here; the page's script puts it on the screen, in the colours of the page.
"""

import html
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from zooid.core.errors import InputError
from zooid.core.runs.timeline import Timeline
from zooid.core.units import format_duration
from zooid.core.version import VERSION
from zooid.report.frame import filled, framed
from zooid.report.profile.rows import count_in_words
from zooid.report.timeline.rows import LANE_NAMES, Bar, bars_of, members_in_order
from zooid.report.timeline.table import COLUMNS, cells, parts_rows

_MANY_ROWS = 8
"""More members than this in a timeline get lower rows, so that all of them fit a screen."""
_PX_PER_CHARACTER = 7.5
_IN_SECONDS_FROM_S = 10.0

_COLUMNS = '<colgroup><col class="names"><col><col class="number" span="3"><col class="number last"></colgroup>'
"""The ruler and all pictures share these, so that they lie under one another."""
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
    """One page, each timeline under its name; `origin` says where they come from."""
    main, data = timeline_main(timelines)
    return framed(
        "timeline",
        title=title,
        versions=f"zooid {VERSION}",
        data=data,
        heading=html.escape(title),
        origin=html.escape(origin),
        main=main,
    )


def timeline_main(timelines: Mapping[str, Timeline]) -> tuple[str, dict[str, Any]]:
    """The main part of such a page, which other pages may have as well, and what the script draws in it."""
    if not timelines:
        raise InputError("there is no timeline to show; give at least one, by name")
    bars = {name: bars_of(timeline) for name, timeline in timelines.items()}
    lanes = [lane for lane in LANE_NAMES if any(bar.lane == lane for of_one in bars.values() for bar in of_one)]
    members = [member for timeline in timelines.values() for member in timeline.members]
    is_compact = any(len(timeline.members) > _MANY_ROWS for timeline in timelines.values())
    data = {
        "lane_names": [LANE_NAMES[lane] for lane in lanes],
        "end_s": max(timeline.step_s for timeline in timelines.values()),
        "timelines": [_picture(timelines[name], of_one, lanes) for name, of_one in bars.items()],
    }
    main = filled(
        "timeline_main.html",
        density="compact" if is_compact else "roomy",
        num_lanes=len(lanes),
        names_px=round(max((len(member) for member in members), default=0) * _PX_PER_CHARACTER)
        + (56 if is_compact else 100),
        legend=_legend({bar.color for of_one in bars.values() for bar in of_one}),
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
    """The picture lies in a table that says each member's numbers beside its row."""
    *members, everyone = parts_rows(timeline)
    names = "".join(f"<i>{LANE_NAMES[lane]}</i>" for lane in lanes)
    rows: list[str] = []
    for member, usage in members:
        picture = "" if rows else f'<td class="picture" data-timeline="{number}" rowspan="{len(members)}"></td>'
        numbers = "".join(f"<td>{cell}</td>" for cell in cells(usage))
        rows.append(
            f'<tr><th scope="row"><div><b>{html.escape(member)}</b><span class="lanes">{names}</span></div></th>'
            f"{picture}{numbers}</tr>"
        )
    foot = "".join(f"<td>{cell}</td>" for cell in cells(everyone[1]))
    about = f"{format_duration(timeline.step_s)}, {count_in_words(len(members), 'member')}"
    return (
        f'<section><h2>{html.escape(name)} <small>{about}</small></h2>\n<table class="step">\n'
        f"{_COLUMNS}\n"
        f"<tbody>\n{chr(10).join(rows)}\n</tbody>\n"
        f'<tfoot><tr><th scope="row"><div><b>{everyone[0]}</b></div></th><td></td>{foot}</tr></tfoot>\n'
        "</table></section>"
    )


def _picture(timeline: Timeline, bars: list[Bar], lanes: list[str]) -> dict[str, Any]:
    """Rows, and bars as short lists in the order of `_bar`, for there may be thousands."""
    rows = {member: number for number, member in enumerate(members_in_order(timeline))}
    drawn = []
    for (member, lane), in_lane in groupby(bars, key=lambda bar: (bar.member, bar.lane)):
        own = list(in_lane)
        num_tracks = max(bar.track for bar in own) + 1
        drawn += [_bar(bar, rows[member], lanes.index(lane), num_tracks, timeline.step_s) for bar in own]
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
        bar.is_meeting,
        bar.action,
        bar.words,
        _moment(bar.start_s, step_s),
        format_duration(bar.end_s - bar.start_s),
        format_duration(waited_s) if waited_s > 0 else "",
    ]


def _moment(at_s: float, step_s: float) -> str:
    """Fine enough to tell neighbouring actions apart."""
    return f"{at_s:.3f}s" if step_s >= _IN_SECONDS_FROM_S else f"{at_s * 1e3:.2f}ms"

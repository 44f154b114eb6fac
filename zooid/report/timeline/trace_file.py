"""Steps as a trace file, since viewers such as Perfetto zoom and search better than a page can.

The format is Chrome's trace events: a member is a process, a lane a thread, an action an event in microseconds.
"""

import json
from collections.abc import Mapping
from typing import Any

from zooid.core.runs.timeline import Timeline
from zooid.core.version import VERSION
from zooid.report.timeline.rows import LANE_NAMES, Bar, bars_of, members_in_order

_THREADS_PER_LANE = 1000
"""Number of threads that are reserved for each lane of a member."""


def chrome_trace(timelines: Mapping[str, Timeline]) -> bytes:
    """Put timelines into one trace, each from 0 on; a process is named after its timeline and member."""
    events: list[dict[str, Any]] = []
    process = 0
    for name, timeline in timelines.items():
        bars = bars_of(timeline)
        for member in members_in_order(timeline):
            process += 1
            label = f"{name} {member}" if len(timelines) > 1 else member
            events += _names(process, label, [bar for bar in bars if bar.member == member])
            events += [_event(process, bar) for bar in bars if bar.member == member]
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"zooid_version": VERSION}}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _names(process: int, label: str, bars: list[Bar]) -> list[dict[str, Any]]:
    """Metadata events: names of the process and its threads, and their order."""
    threads = {_thread(bar): LANE_NAMES[bar.lane] + (f" {bar.track + 1}" if bar.track else "") for bar in bars}
    named = [("process_name", 0, {"name": label}), ("process_sort_index", 0, {"sort_index": process})]
    for thread, name in sorted(threads.items()):
        named += [("thread_name", thread, {"name": name}), ("thread_sort_index", thread, {"sort_index": thread})]
    return [{"ph": "M", "pid": process, "tid": thread, "name": field, "args": args} for field, thread, args in named]


def _event(process: int, bar: Bar) -> dict[str, Any]:
    # begin and end are rounded before the duration is taken: viewers drop events of a thread that overlap
    start_ns, end_ns = round(bar.start_s * 1e9), round(bar.end_s * 1e9)
    waited_s = bar.start_s - bar.posted_s
    known = {"stage": bar.name.stage, "number": bar.name.number, "waited_ms": round(waited_s * 1e3, 6) or None}
    return {
        "ph": "X",
        "pid": process,
        "tid": _thread(bar),
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "name": bar.action,
        "cat": bar.lane,
        "args": {"what": bar.words} | {key: value for key, value in known.items() if value is not None},
    }


def _thread(bar: Bar) -> int:
    return list(LANE_NAMES).index(bar.lane) * _THREADS_PER_LANE + bar.track + 1

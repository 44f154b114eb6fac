"""Timelines: what they add up to, and that tables, pages and traces show every action where it was."""

import json
from collections import defaultdict
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.unit.test_pages import Page
from zooid import coordinator
from zooid.cli.timeline_command import timeline as timeline_command
from zooid.core.errors import InputError, RecordError
from zooid.core.records import InvalidValue, decode_record, encode_record
from zooid.core.runs import keys
from zooid.core.runs.step_parts import StepParts, parts_by_member, total_parts
from zooid.core.runs.timeline import (
    Interval,
    Timeline,
    action_name,
    joined,
    without_waiting,
)
from zooid.report import chrome_trace, timeline_page, timeline_table
from zooid.store import open_store

_LANES = {"F": "compute", "B": "compute", "COMMIT": "compute", "REDUCE": "reduce", "SHARE": "reduce"}


def ran(member: str, action: str, start_s: float, end_s: float) -> Interval:
    """In the lane that the action has."""
    kind = action_name(action).kind
    lane = "uplink" if "SEND" in kind else "downlink" if "RECV" in kind else _LANES[kind]
    return Interval(member=member, lane=lane, action=action, start_s=start_s, end_s=end_s)


def step_of(*intervals: Interval) -> Timeline:
    return Timeline(intervals=intervals)


TWO_STAGES = step_of(
    ran("r0s0", "0F0", 0, 2),
    ran("r0s0", "0F1", 2, 4),
    ran("r0s0", "0SEND_F0", 2, 3),
    ran("r0s0", "0SEND_F1", 4, 5),
    ran("r0s0", "0RECV_B0", 0, 11),
    ran("r0s0", "0RECV_B1", 11, 13),
    ran("r0s0", "0B0", 11, 14),
    ran("r0s0", "0B1", 14, 17),
    ran("r0s0", "0COMMIT", 17, 18),
    ran("r0s1", "1RECV_F0", 0, 4),
    ran("r0s1", "1RECV_F1", 0, 6),
    ran("r0s1", "1F0", 4, 6),
    ran("r0s1", "1F1", 6, 7),
    ran("r0s1", "1B0", 7, 9),
    ran("r0s1", "1SEND_B0", 9, 10),
    ran("r0s1", "1B1", 9, 12),
    ran("r0s1", "1SEND_B1", 12, 12.5),
    ran("r0s1", "1COMMIT", 13, 18),
)
"""Receives are posted long before they can take something, and stage 1 is early for the commit."""


def facts(parts: StepParts) -> tuple[float, float, float, float]:
    return parts.step_s, parts.compute_s, parts.moving_s, parts.hidden_s


class TestParts:
    def test_a_step_worked_out_by_hand(self) -> None:
        parts = parts_by_member(TWO_STAGES)
        # r0s0: computes 0–4 and 11–18; sends 2–3 (hidden) and 4–5; receives 10–11 and 12.5–13 (hidden)
        assert facts(parts["r0s0"]) == (18, 11, 3.5, 1.5)
        # r0s1: computes 4–12 and 17–18; receives 3–4 and 5–6 (hidden); sends 9–10 (hidden) and 12–12.5
        assert facts(parts["r0s1"]) == (18, 9, 3.5, 2)
        assert parts["r0s0"].compute_fraction == pytest.approx(11 / 18)
        assert parts["r0s0"].bubble_s == pytest.approx(18 - 11 - 2)
        assert parts["r0s1"].hidden_fraction == pytest.approx(2 / 3.5)
        assert total_parts(parts.values()).hidden_fraction == pytest.approx(3.5 / 7)
        assert total_parts(parts.values()).compute_fraction == pytest.approx(20 / 36)

    def test_transfers_side_by_side_count_once(self) -> None:
        step = step_of(ran("a", "0SEND_F0", 0, 4), ran("a", "0SEND_F1", 1, 3), ran("a", "0SEND_B2", 3, 5))
        assert facts(parts_by_member(step)["a"]) == (5, 0, 5, 0)

    def test_without_transfers_there_is_no_share_of_them(self) -> None:
        assert parts_by_member(step_of(ran("a", "0F0", 0, 4)))["a"].hidden_fraction is None
        assert total_parts([]).hidden_fraction is None
        assert total_parts([]).compute_fraction == 0

    @settings(deadline=None, max_examples=60)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["compute", "uplink", "downlink", "reduce"]), st.integers(0, 20), st.integers(0, 9)
            ),
            max_size=12,
        )
    )
    def test_every_moment_is_counted_once(self, spans: list[tuple[str, int, int]]) -> None:
        """Against counting the seconds of a clock one by one."""
        step = Timeline(
            intervals=tuple(
                Interval(member="a", lane=lane, action="0ODD", start_s=start, end_s=start + length)
                for lane, start, length in spans
            )
        )
        doing: dict[int, set[str]] = defaultdict(set)
        for lane, start, length in spans:
            for second in range(start, start + length):
                doing[second].add("compute" if lane == "compute" else "transfer")
        counted = (
            step.step_s,
            sum("compute" in lanes for lanes in doing.values()),
            sum("transfer" in lanes for lanes in doing.values()),
            sum(len(lanes) == 2 for lanes in doing.values()),
        )
        parts = parts_by_member(step)
        assert [facts(of_member) for of_member in parts.values()] == ([counted] if spans else [])
        assert all(of_member.bubble_s == step.step_s - len(doing) for of_member in parts.values())


class TestWaiting:
    def starts_of(self, *intervals: Interval) -> list[float]:
        return [interval.start_s for interval in without_waiting(step_of(*intervals)).intervals]

    def test_a_receive_counts_from_the_end_of_its_send(self) -> None:
        assert self.starts_of(ran("b", "1RECV_F3", 0, 9), ran("a", "0SEND_F3", 5, 7)) == [7, 5]
        assert self.starts_of(ran("a", "0RECV_B3", 0, 9), ran("b", "1SEND_B3", 5, 7)) == [7, 5]

    def test_a_send_of_another_grain_or_stage_is_not_its_send(self) -> None:
        others = (ran("a", "0SEND_F4", 5, 7), ran("a", "0SEND_B3", 5, 7), ran("c", "2SEND_F3", 5, 7))
        assert self.starts_of(ran("b", "1RECV_F3", 1, 9), *others)[0] == 1

    def test_what_came_before_its_send_had_ended_only_waited(self) -> None:
        """Between connected members, the last bytes are taken before the sender knows; and clocks differ."""
        waited = without_waiting(step_of(ran("b", "1RECV_F3", 0, 6), ran("a", "0SEND_F3", 5, 7))).intervals[0]
        assert (waited.start_s, waited.end_s) == (6, 6)

    def test_a_reduce_counts_from_when_all_replicas_of_the_stage_are_there(self) -> None:
        reduces = (ran("a", "0REDUCE1", 2, 9), ran("b", "0REDUCE1", 5, 9), ran("b", "0REDUCE2", 6, 9))
        assert self.starts_of(*reduces, ran("c", "1REDUCE1", 8, 9)) == [5, 5, 6, 8]

    def test_a_commit_counts_from_when_all_members_are_there(self) -> None:
        assert self.starts_of(ran("a", "0COMMIT", 2, 9), ran("b", "1COMMIT", 6, 8)) == [6, 6]


class TestRecords:
    def test_what_members_recorded_is_put_on_one_clock(self) -> None:
        late = Timeline(intervals=(ran("b", "1F0", 1, 2),), start_at_s=1000.5)
        early = Timeline(intervals=(ran("a", "0F0", 0, 2),), start_at_s=1000.0)
        step = joined([late, early])
        assert [(i.member, i.start_s, i.end_s) for i in step.intervals] == [("a", 0, 2), ("b", 1.5, 2.5)]
        assert step.start_at_s == 1000

    def test_a_record_comes_back_as_it_was(self) -> None:
        assert decode_record(encode_record(TWO_STAGES), Timeline, "file") == TWO_STAGES

    def test_what_cannot_be_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match=r"`lane` of 0F0 is 'gpu'; it must be one of compute, uplink"):
            Interval(member="a", lane="gpu", action="0F0", start_s=0, end_s=1)
        with pytest.raises(InvalidValue, match=r"`end_s` of 0F0 is 1; it must not be before 2"):
            ran("a", "0F0", 2, 1)


class TimelinePage(Page):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "col":  # has no end
            super().handle_starttag(tag, attrs)

    def bars(self, number: int = 0) -> list[dict[str, Any]]:
        """Of one timeline, with names for what the page has as lists."""
        names = "row lane track num_tracks color grain posted start end is_rendezvous action words from duration waited"
        return [dict(zip(names.split(), bar, strict=True)) for bar in self.picture["timelines"][number]["bars"]]


def read(*timelines: Timeline, **named: Timeline) -> TimelinePage:
    return TimelinePage(timeline_page({f"step {number}": one for number, one in enumerate(timelines)} | named))


class TestPage:
    def test_every_action_is_drawn_where_it_was(self) -> None:
        page = read(measured=TWO_STAGES)
        assert page.picture["timelines"][0]["members"] == ["r0s0", "r0s1"]
        assert page.picture["lane_names"] == ["compute", "upload", "download"]
        bars = {bar["action"]: bar for bar in page.bars()}
        assert sorted(bars) == sorted(interval.action for interval in TWO_STAGES.intervals)
        backward = bars["0B0"]
        assert (backward["row"], backward["lane"], backward["start"], backward["end"]) == (0, 0, 11, 14)
        assert (backward["color"], backward["grain"], backward["words"]) == ("backward", 0, "backward of grain 0")
        assert (backward["from"], backward["duration"], backward["waited"]) == ("11.000s", "3s", "")
        receive = bars["1RECV_F0"]
        assert (receive["row"], receive["lane"], receive["posted"], receive["start"]) == (1, 2, 0, 3)
        assert receive["waited"] == "3s"
        assert bars["1COMMIT"]["is_rendezvous"]
        assert not receive["is_rendezvous"]

    def test_numbers_stand_beside_the_rows(self) -> None:
        page = read(measured=TWO_STAGES)
        cells = [cell for cell in page.texts("td") if cell]
        assert cells == [
            *("61 %", "3.5s", "43 %", "28 %"),
            *("50 %", "3.5s", "57 %", "42 %"),
            *("56 %", "7s", "50 %", "35 %"),
        ]
        assert page.texts("h2") == ["measured 18s, 2 members"]

    def test_timelines_lie_under_one_another_on_one_axis(self) -> None:
        quick = step_of(ran("r0s0", "0F0", 0, 1))
        page = read(predicted=quick, measured=TWO_STAGES)
        assert [title.split()[0] for title in page.texts("h2")] == ["predicted", "measured"]
        assert page.picture["end_s"] == 18
        assert [one["step_s"] for one in page.picture["timelines"]] == [1, 18]
        pictures = [attributes for _, attributes in page.elements if attributes.get("class") == "picture"]
        assert [(one["data-timeline"], one["rowspan"]) for one in pictures] == [("0", "1"), ("1", "2")]

    def test_transfers_side_by_side_do_not_hide_each_other(self) -> None:
        page = read(step_of(ran("a", "0SEND_F0", 0, 4), ran("a", "0SEND_F1", 1, 3), ran("a", "0SEND_F2", 3, 5)))
        assert [(bar["track"], bar["num_tracks"]) for bar in page.bars()] == [(0, 2), (1, 2), (1, 2)]

    def test_members_are_in_the_order_of_their_numbers(self) -> None:
        step = step_of(*(ran(member, "0F0", 0, 1) for member in ("r10s0", "r2s1", "r2s0", "spare")))
        assert read(step).picture["timelines"][0]["members"] == ["r2s0", "r2s1", "r10s0", "spare"]

    def test_actions_of_a_newer_zooid_are_shown_by_their_names(self) -> None:
        step = step_of(Interval(member="a", lane="compute", action="0EVALUATE", start_s=0, end_s=1))
        [bar] = read(step).bars()
        assert (bar["color"], bar["words"], bar["grain"]) == ("compute", "0EVALUATE", None)

    def test_a_step_without_actions_is_a_page_without_rows(self) -> None:
        assert read(step_of()).picture["timelines"] == [{"members": [], "step_s": 0, "bars": []}]

    def test_no_timeline_is_refused(self) -> None:
        with pytest.raises(InputError, match="give at least one"):
            timeline_page({})

    def test_names_are_text_whatever_they_contain(self) -> None:
        odd = "</script><b>&$x"
        step = step_of(Interval(member=odd, lane="compute", action=odd, start_s=0, end_s=1))
        page = TimelinePage(timeline_page({odd: step}, title=odd, origin=odd))
        usual = step_of(Interval(member="a", lane="compute", action="usual", start_s=0, end_s=1))
        plain = TimelinePage(timeline_page({"name": usual}, title="title", origin="origin"))
        assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
        assert page.texts("h1") == [odd]
        assert page.picture["timelines"][0]["members"] == [odd]

    def test_it_is_light_and_loads_nothing_from_elsewhere(self) -> None:
        many = step_of(
            *(ran(f"r{m}s0", f"0{kind}{g}", g, g + 1) for m in range(16) for g in range(32) for kind in ("F", "SEND_F"))
        )
        text = timeline_page({"predicted": many, "measured": many})
        assert len(text) < 500_000
        page = TimelinePage(text)
        assert not [attributes for _, attributes in page.elements if {"src", "href", "data"} & attributes.keys()]
        assert all(word not in style for style in page.texts("style") for word in ("url(", "@import"))
        [policy] = [attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes]
        assert policy is not None
        assert policy.startswith("default-src 'none';")


class TestTrace:
    def test_members_are_processes_and_lanes_are_threads(self) -> None:
        trace = json.loads(chrome_trace({"measured": TWO_STAGES}))
        assert trace["displayTimeUnit"] == "ms"
        named = {(e["name"], e["pid"], e["tid"]): e["args"] for e in trace["traceEvents"] if e["ph"] == "M"}
        assert [args["name"] for (what, _, _), args in named.items() if what == "process_name"] == ["r0s0", "r0s1"]
        events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        assert len(events) == len(TWO_STAGES.intervals)
        assert {(named["thread_name", e["pid"], e["tid"]]["name"], e["cat"]) for e in events} == {
            ("compute", "compute"),
            ("upload", "uplink"),
            ("download", "downlink"),
        }
        [backward] = [e for e in events if e["name"] == "0B0"]
        assert (backward["ts"], backward["dur"]) == (11e6, 3e6)
        assert backward["args"] == {"what": "backward of grain 0", "stage": 0, "number": 0}
        [receive] = [e for e in events if e["name"] == "1RECV_F0"]
        assert (receive["ts"], receive["dur"], receive["args"]["waited_ms"]) == (3e6, 1e6, 3000)

    def test_several_timelines_have_processes_of_their_own(self) -> None:
        trace = json.loads(chrome_trace({"predicted": TWO_STAGES, "measured": TWO_STAGES}))
        names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
        assert names == ["predicted r0s0", "predicted r0s1", "measured r0s0", "measured r0s1"]
        assert len({e["pid"] for e in trace["traceEvents"]}) == 4

    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1)), min_size=1, max_size=12))
    def test_no_event_reaches_into_another_of_its_thread(self, spans: list[tuple[float, float]]) -> None:
        """Viewers drop those that do."""
        step = step_of(
            *(ran("a", f"0SEND_F{number}", start, start + length) for number, (start, length) in enumerate(spans))
        )
        threads = defaultdict(list)
        for event in json.loads(chrome_trace({"step": step}))["traceEvents"]:
            if event["ph"] == "X":
                start_ns = round(event["ts"] * 1000)
                threads[event["tid"]].append((start_ns, start_ns + round(event["dur"] * 1000)))
        assert sum(len(spans) for spans in threads.values()) == len(spans)
        for own in threads.values():
            assert all(before[1] <= after[0] for before, after in pairwise(sorted(own)))


def record(url: str, step: int, *members: str, start_at_s: float = 1000.0) -> None:
    store = open_store(url)
    for number, member in enumerate(members):
        mine = Timeline(intervals=(ran(member, f"{number}F{step}", 0, 1),), start_at_s=start_at_s + number)
        store.put(keys.timeline(step, member), encode_record(mine))


class TestReading:
    def test_the_latest_step_of_all_members_unless_another_is_named(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/run"
        record(url, 9, "r0s0", "r0s1")
        record(url, 110, "r0s0", "r0s1")
        latest = coordinator.timeline(url)
        assert (latest.run, latest.step) == (url, 110)
        assert [(i.member, i.action, i.start_s) for i in latest.timeline.intervals] == [
            ("r0s0", "0F110", 0),
            ("r0s1", "1F110", 1),
        ]
        assert coordinator.timeline(url, step=9).step == 9

    def test_a_step_that_was_not_recorded_is_refused_with_those_that_were(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/run"
        for step in (9, 19):
            record(url, step, "r0s0")
        with pytest.raises(InputError, match=r"step 3 of .*/run was not recorded; give one of 9, 19$"):
            coordinator.timeline(url, step=3)

    @pytest.mark.parametrize("step", [None, 4])
    def test_a_run_without_a_recorded_step_is_refused(self, step: int | None, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"/run has no recorded step: .* check the URL"):
            coordinator.timeline(f"file://{tmp_path}/run", step=step)

    @pytest.mark.parametrize(
        ("damaged", "message"),
        [
            (b'{"record": "timeline", "vers', "is not a zooid timeline file"),
            (b'{"record": "plan", "version": 1}', "holds a 'plan'; expected a 'timeline'"),
            (
                b'{"record": "timeline", "version": 1, "intervals": [{"member": "a", "lane": "compute",'
                b' "action": "0F0", "start_s": 2, "end_s": 1}]}',
                r"`end_s` of 0F0 is 1; it must not be before 2.*intervals\[0\]",
            ),
        ],
    )
    def test_a_damaged_file_is_named(self, damaged: bytes, message: str, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/run"
        record(url, 5, "r0s0")
        open_store(url).put(keys.timeline(5, "r0s1"), damaged)
        with pytest.raises(RecordError, match=rf"timelines/00000005/r0s1\.json .*{message}"):
            coordinator.timeline(url)


class TestCommand:
    def test_it_prints_the_table_and_writes_page_and_trace(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        url, page, trace = f"file://{tmp_path}/run", tmp_path / "page.html", tmp_path / "trace.json"
        record(url, 5, "r0s0", "r0s1")
        timeline_command(url, out=page, perfetto=trace)
        printed = capsys.readouterr().out
        assert "step 5: 2s" in printed
        assert f"picture: {page}\ntrace: {trace}\n" in printed
        assert TimelinePage(page.read_text(encoding="utf-8")).texts("h1") == ["step 5"]
        assert len(json.loads(trace.read_bytes())["traceEvents"]) > 2

    def test_a_page_over_its_trace_is_refused(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/run"
        record(url, 5, "r0s0")
        with pytest.raises(InputError, match=r"--out and --perfetto both name .*; name two files"):
            timeline_command(url, out=tmp_path / "a", perfetto=tmp_path / "b" / ".." / "a")

    def test_the_table_has_a_row_for_each_member_and_one_for_all(self) -> None:
        console = Console(width=100, record=True, file=StringIO())
        console.print(timeline_table(TWO_STAGES, "step [5]"))
        text = console.export_text()
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
        assert rows == [
            ["r0s0", "61 %", "3.5s", "43 %", "28 %"],
            ["r0s1", "50 %", "3.5s", "57 %", "42 %"],
            ["all", "56 %", "7s", "50 %", "35 %"],
        ]
        assert "step [5]: 18s" in text

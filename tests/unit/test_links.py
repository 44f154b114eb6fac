"""Links as records and as a table, which rounds members measure, and what links follow from them."""

from typing import Any

import pytest
from rich.console import Console

from zooid.core.errors import RecordError
from zooid.core.link import STORE_SITE, Link, Links, MissingLink
from zooid.core.records import decode_one_of, decode_record, encode_record
from zooid.core.spec import ProbeMember, ProbeSpec, RunClaim
from zooid.profiler.probing.rounds import (
    STORE,
    Flow,
    Place,
    Round,
    crowd_sizes,
    links_from,
    peer_crowds,
    peer_rounds,
    store_rounds,
)
from zooid.profiler.probing.window import Window
from zooid.report import links_table

DATE = "2024-05-01"


def a_link(**changed: Any) -> Link:
    valid: dict[str, Any] = {"from_site": "home", "to_site": "store", "bandwidth_bytes_per_s": 2e7, "rtt_s": 0.001}
    return Link(**valid | {"source": "probe of s3", "date": DATE} | changed)


def a_spec(**changed: Any) -> ProbeSpec:
    valid: dict[str, Any] = {
        "run": "7",
        "member": "m1",
        "store": "file:///somewhere",
        "num_threads": 1,
        "members": (ProbeMember(name="m0", site="home"), ProbeMember(name="m1", site="away")),
        "ends": ("store", "peers"),
        "num_streams": (1, 4, 16),
        "num_repeats": 3,
        "seconds": 1.0,
        "timeout_s": 60.0,
    }
    return ProbeSpec(**valid | changed)


class TestRecords:
    def test_a_link_stands_for_one_member_and_one_stream_unless_it_says_more(self) -> None:
        assert (a_link().num_members, a_link().num_streams, a_link().spread) == (1, 1, 0.0)

    @pytest.mark.parametrize("changed", [{"num_members": 0}, {"num_streams": 0}, {"spread": -0.1}])
    def test_a_link_that_nobody_can_have_measured_is_refused(self, changed: dict[str, float]) -> None:
        with pytest.raises(RecordError, match=f"`{next(iter(changed))}`.* of home to store must be at least"):
            a_link(**changed)

    def test_links_come_back_as_they_were_written(self) -> None:
        links = Links(
            zooid_version="0.1.0",
            date=DATE,
            links=(a_link(num_members=2, num_streams=4, spread=0.02), a_link()),
            missing=(MissingLink(from_site="home", to_site="away", reason="a wall"),),
        )
        assert decode_record(encode_record(links), Links, "links.json") == links

    def test_no_link_is_there_twice(self) -> None:
        with pytest.raises(RecordError, match=r"home to store with 2 member\(s\) and 4 stream\(s\) twice"):
            Links(zooid_version="0.1.0", date=DATE, links=(a_link(num_members=2, num_streams=4),) * 2)

    def test_a_member_knows_its_rank(self) -> None:
        spec = decode_record(encode_record(a_spec()), ProbeSpec, "m1.json")
        assert spec.rank == 1

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"member": "m7"}, "`member` is m7; `members` has m0, m1"),
            ({"members": (ProbeMember(name="m1", site="home"),) * 2}, "a name twice"),
            ({"ends": ()}, "`ends` is empty"),
            ({"num_streams": ()}, "`num_streams`"),
            ({"num_repeats": 0}, "`num_repeats` is 0"),
            ({"seconds": 0.0}, "`seconds`"),
        ],
    )
    def test_a_probe_that_cannot_be_made_is_refused(self, changed: dict[str, Any], message: str) -> None:
        with pytest.raises(RecordError, match=message):
            a_spec(**changed)

    def test_a_program_tells_the_kinds_of_its_specs_apart(self) -> None:
        kinds = (RunClaim, ProbeSpec)
        assert decode_one_of(encode_record(a_spec()), kinds, "m1.json") == a_spec()
        assert decode_one_of(encode_record(RunClaim(run="7")), kinds, "run.json") == RunClaim(run="7")
        with pytest.raises(RecordError, match="holds a 'probe_spec'; expected a 'run' or a 'links'"):
            decode_one_of(encode_record(a_spec()), (RunClaim, Links), "m1.json")


class TestRounds:
    def test_members_double_until_all_are_there(self) -> None:
        assert [crowd_sizes(number) for number in (1, 2, 3, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8]]

    def test_the_store_is_measured_by_each_site_alone_and_then_by_growing_crowds(self) -> None:
        rounds = store_rounds(["home", "home", "away"], [1, 4])
        up = [each.flows for each in rounds if each.kind == "round_trip" and each.flows[0].target == STORE]
        assert [[flow.source for flow in flows] for flows in up] == [[0], [2], [0, 1], [0, 1, 2]]
        assert len(rounds) == 4 * 2 * (1 + 2)
        assert all(each.is_with_store for each in rounds)

    def test_pairs_are_measured_each_way_and_rings_all_at_once(self) -> None:
        assert peer_crowds(["home", "home", "away"]) == [
            (Flow(0, 1),),
            (Flow(1, 0),),
            (Flow(0, 2),),
            (Flow(2, 0),),
            (Flow(0, 1), Flow(1, 0)),
            (Flow(0, 1), Flow(1, 2), Flow(2, 0)),
        ]
        assert peer_crowds(["home"]) == []

    def test_what_cannot_be_reached_is_missing_and_all_else_is_measured(self) -> None:
        rounds, missing = peer_rounds(["home", "home", "away"], [4], lambda flow: 2 not in flow)
        assert missing == [Flow(0, 2), Flow(2, 0), Flow(1, 2)]
        assert [each.flows for each in rounds if each.kind == "bandwidth"] == [
            (Flow(0, 1),),
            (Flow(1, 0),),
            (Flow(0, 1), Flow(1, 0)),
        ]

    def test_links_are_medians_over_repeats_and_members_of_a_site(self) -> None:
        crowd = (Flow(0, STORE), Flow(1, STORE))
        rounds = [Round("round_trip", crowd), Round("bandwidth", crowd, 1), Round("bandwidth", crowd, 4)]
        samples = {
            Place(0, 0): [0.01, 0.02, 0.03],
            Place(0, 1): [0.02, 0.02, 0.02],
            Place(1, 0): [10.0, 10.0, 10.0],
            Place(1, 1): [10.0, 10.0, 10.0],
            Place(2, 0): [36.0, 40.0, 40.0],
            Place(2, 1): [40.0, 40.0, 44.0],
        }
        one, four = links_from(rounds, samples, ["home"] * 2, store_source="store", peer_source="tcp", date=DATE)
        assert (one.from_site, one.to_site, one.source, one.date) == ("home", STORE_SITE, "store", DATE)
        assert (one.bandwidth_bytes_per_s, one.num_members, one.num_streams, one.spread) == (10.0, 2, 1, 0.0)
        assert (four.bandwidth_bytes_per_s, four.num_members, four.num_streams) == (40.0, 2, 4)
        assert four.spread == pytest.approx(0.2)
        assert one.rtt_s == four.rtt_s == 0.02
        assert one.stream_bytes_per_s == four.stream_bytes_per_s == 10.0

    def test_directions_between_sites_are_kept_apart(self) -> None:
        rounds = [
            each
            for flow in (Flow(0, 1), Flow(1, 0))
            for each in (Round("round_trip", (flow,)), Round("bandwidth", (flow,)))
        ]
        samples = {Place(number, 0): [value] for number, value in enumerate((0.1, 5.0, 0.1, 50.0))}
        links = links_from(rounds, samples, ["home", "away"], store_source="store", peer_source="tcp", date=DATE)
        assert [(link.from_site, link.to_site, link.bandwidth_bytes_per_s) for link in links] == [
            ("home", "away", 5.0),
            ("away", "home", 50.0),
        ]
        assert {link.stream_bytes_per_s for link in links} == {None}, "one stream is all that was tried"


def test_a_window_counts_what_lies_in_it() -> None:
    window = Window(1.0, 2.0, 1.0)
    two_streams = [(10.0, 12.0), (12.0, 14.0), (10.0, 11.0), (11.0, 13.0), (13.0, 14.0)]
    assert window.bytes_per_s(two_streams, 100, began_s=10.0) == pytest.approx((50 + 50 + 100) / 2)
    assert Window.of(10.0).lead_s == 2.0


def test_the_table_has_a_row_for_each_crowd_and_names_what_is_missing() -> None:
    links = Links(
        zooid_version="0.1.0",
        date=DATE,
        links=(
            a_link(num_streams=1, bandwidth_bytes_per_s=5e6, spread=0.014),
            a_link(num_streams=4),
            a_link(num_members=2, num_streams=4, bandwidth_bytes_per_s=1.25e7),
        ),
        missing=(MissingLink(from_site="home", to_site="away", reason="m0 cannot connect to m1 [no route]"),),
    )
    console = Console(width=100)
    with console.capture() as captured:
        console.print(links_table(links))
    text = captured.get()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert rows == [
        ["home", "store", "1", "1ms", "5 MB/s", "20 MB/s"],
        ["", "", "", "", "1.4 %", "0.0 %"],
        ["home", "store", "2", "1ms", "–", "12.5 MB/s"],
        ["", "", "", "", "", "0.0 %"],
    ]
    assert "1 stream ┃ 4 streams" in " ".join(text.split())
    assert "no link from home to away: m0 cannot connect to m1 [no route]" in " ".join(text.split())

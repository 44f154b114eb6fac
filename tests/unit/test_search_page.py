"""Table and page of a search: the front with its marks, every candidate where it belongs, and what is proven."""

from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from tests.unit.profiles import offer
from tests.unit.test_pages import Page
from zooid.core.plans.plan import Plan, Prediction, StagePlan
from zooid.core.plans.search_result import Candidate, Proof, Search, Verdict
from zooid.core.runs.step_parts import StepParts
from zooid.report import search_page, search_table
from zooid.report.plots import COUNT, DURATION, MONEY, axis

GB = 10**9
OFFERS = {
    "small": offer(1.0, name="small", memory_bytes=2 * GB),
    "large": offer(3.0, name="large", memory_bytes=8 * GB),
    "local": offer(0.0, name="local", site="local", memory_bytes=16 * GB),
}


def a_plan(run_s: float, run_usd: float, stages: tuple[str, ...] = ("small",), **changed: Any) -> Plan:
    """Two layers and a GB a stage; p95 is a quarter more."""
    fields: dict[str, Any] = {
        "job": "made",
        "model_fingerprint": "f",
        "batch_size": 32,
        "grain_size": 4,
        "num_replicas": 1,
        "stages": tuple(
            StagePlan(first_layer=2 * number, end_layer=2 * number + 2, offer=name, memory_bytes=GB)
            for number, name in enumerate(stages)
        ),
        "schedule": "1f1b",
        "transport": "store",
        "all_reduce": "auto",
        "offers": tuple(OFFERS.values()),
        "predicted": a_prediction(run_s, run_usd),
    }
    return Plan(**(fields | changed))


def a_prediction(run_s: float, run_usd: float, **changed: Any) -> Prediction:
    fields: dict[str, Any] = {"run_p95_s": 1.25 * run_s, "run_p95_usd": 1.25 * run_usd, "startup_s": 5.0}
    return Prediction(
        step_s=run_s / 100, num_steps=100, run_s=run_s, run_usd=run_usd, cost_terms=(), **(fields | changed)
    )


def a_candidate(run_s: float, run_usd: float, verdict: Verdict, **changed: Any) -> Candidate:
    fields: dict[str, Any] = {
        "layout": "1x1",
        "offers": ("small",),
        "num_members": 1,
        "grain_size": 4,
        "schedule": "gpipe",
        "ahead": 0,
        "transport": "store",
        "is_simulated": verdict in ("pick", "front", "dominated"),
    }
    return Candidate(run_s=run_s, run_usd=run_usd, verdict=verdict, **(fields | changed))


FAST = a_plan(60.0, 4.0, ("small", "large"), num_replicas=2, schedule="1f1b", ahead=1, transport="tcp")
PICK = a_plan(120.0, 2.0, ("small", "small"))
CHEAP = a_plan(300.0, 1.0, ("small",), schedule="gpipe", grain_size=8)
CANDIDATES = (
    a_candidate(120.0, 2.0, "pick", layout="1x2", offers=("small", "small"), num_members=2),
    a_candidate(60.0, 4.0, "front", layout="2x2", offers=("small", "large"), num_members=4, ahead=1, schedule="1f1b"),
    a_candidate(300.0, 1.0, "front"),
    a_candidate(200.0, 3.0, "dominated"),
    a_candidate(40.0, 6.0, "beyond a limit", is_simulated=True, reason="the budget: it may cost $6.00 of $5.00"),
    a_candidate(350.0, 3.5, "bounded out"),
    a_candidate(100.0, 1.5, "too large", reason="it lacks 1 GB of memory"),
    a_candidate(90.0, 1.9, "open"),
)


def a_search(**changed: Any) -> Search:
    fields: dict[str, Any] = {
        "goal": "balanced",
        "pick": PICK,
        "runner_up": CHEAP,
        "front": (FAST, PICK, CHEAP),
        "candidates": CANDIDATES,
        "num_simulated": 5,
        "proof": Proof(status="bounded", gap=0.125, wall_s=1.5),
        "reasons": ("It is the one.", "Nothing binds."),
    }
    return Search(**(fields | changed))


def a_free_search() -> Search:
    pick = a_plan(60.0, 0.0, ("local", "local"), num_replicas=2)
    candidates = (
        a_candidate(60.0, 0.0, "pick", num_members=4, layout="2x2", offers=("local", "local")),
        a_candidate(90.0, 0.0, "dominated", num_members=2),
        a_candidate(95.0, 0.0, "bounded out"),
    )
    return a_search(pick=pick, runner_up=None, front=(pick,), candidates=candidates, num_simulated=2)


def printed(found: Search, width: int = 140) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(search_table(found))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def table_rows(found: Search) -> list[list[str]]:
    """Cells of each plan, lines of a cell joined by a space; a plan's first line is the one with a layout."""
    rows: list[list[str]] = []
    for line in printed(found).splitlines():
        if line.startswith("│"):
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            if "x" in cells[3]:
                rows.append(cells)
            else:
                rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells, strict=True)]
    return rows


def traces(found: Search) -> dict[str, dict[str, Any]]:
    """Of the page's picture: dots by the name of their kind, `line`, and `ring`."""
    named = {}
    for trace in Page(search_page(found)).picture["traces"]:
        is_ring = trace.get("text") == ["<b>runner-up</b>"]
        named["line" if trace["mode"] == "lines" else "ring" if is_ring else trace["meta"]] = trace
    return named


class TestTable:
    def test_every_plan_of_the_front_has_a_row_with_its_mark(self) -> None:
        assert table_rows(a_search()) == [
            ["", "1m 1m15s", "$4.00 $5.00", "2x2 4", "2 small 2 large", "4", "1f1b, 1 ahead tcp"],
            ["pick", "2m 2m30s", "$2.00 $2.50", "1x2 2", "small", "4", "1f1b store"],
            ["runner-up", "5m 6m15s", "$1.00 $1.25", "1x1 1", "small", "8", "gpipe store"],
        ]

    def test_a_runner_up_that_another_beats_stands_below_the_front(self) -> None:
        found = a_search(runner_up=a_plan(130.0, 2.5, ("large",)))
        assert [row[0] for row in table_rows(found)] == ["", "pick", "", "runner-up"]
        assert printed(found).count("├") == 1
        assert printed(a_search()).count("├") == 0

    def test_members_of_unequal_replicas_are_counted(self) -> None:
        mixed = a_plan(50.0, 5.0, ("small", "small"), num_replicas=3, replica_offers=("small", "large", "small"))
        assert table_rows(a_search(front=(mixed, PICK)))[0][4] == "4 small 2 large"

    def test_the_caption_says_what_was_done_and_what_is_proven(self) -> None:
        text = " ".join(printed(a_search()).split())
        assert "8 candidates, 5 simulated, in 1.5s" in text
        assert "proven within 12.5 % of the best among the candidates, for the simulator; 1 was left open" in text
        certain = printed(a_search(proof=Proof(status="optimal", gap=0.0, wall_s=0.25)))
        assert "proven optimal among the candidates, for the simulator" in certain
        assert "in 250ms" in certain
        assert "%" not in certain

    def test_what_was_not_predicted_is_left_out_and_an_hour_has_its_worth(self) -> None:
        plan = a_plan(1.0, 1.0, predicted=a_prediction(120.0, 2.0, run_p95_s=None, run_p95_usd=None))
        found = a_search(pick=plan, front=(plan,), runner_up=None, goal="weighted", hour_usd=7.5)
        assert table_rows(found)[0][1:3] == ["2m –", "$2.00 –"]
        assert "goal weighted, an hour is worth $7.50" in printed(found)

    def test_an_estimate_is_never_shown_as_if_it_were_measured(self) -> None:
        plan = a_plan(1.0, 1.0, predicted=a_prediction(60.0, 4.0, estimated_from="some cpu"))
        found = a_search(front=(plan, PICK, CHEAP))
        assert "ESTIMATE, from times measured on some cpu: made" in printed(found)
        page = Page(search_page(found))
        assert all("ESTIMATE" in title for title in page.texts("title") + page.texts("h1"))
        assert "ESTIMATE" not in printed(a_search())

    def test_names_are_text_whatever_they_contain(self) -> None:
        odd = offer(name="[red]odd", memory_bytes=GB)
        plan = a_plan(1.0, 1.0, ("[red]odd",), offers=(odd,), job="[bold]job")
        text = printed(a_search(pick=plan, front=(plan,), runner_up=None))
        assert "[red]odd" in text
        assert "[bold]job" in text


class TestPicture:
    def test_every_candidate_is_a_dot_of_its_kind(self) -> None:
        drawn = traces(a_search())
        expected = {
            "pick": [(120.0, 2.0)],
            "front": [(60.0, 4.0), (300.0, 1.0)],
            "dominated": [(200.0, 3.0)],
            "beyond": [(40.0, 6.0)],
            "bounded": [(350.0, 3.5)],
            "impossible": [(100.0, 1.5)],
            "open": [(90.0, 1.9)],
        }
        for kind, points in expected.items():
            assert list(zip(drawn[kind]["x"], drawn[kind]["y"], strict=True)) == points
        assert drawn.keys() - expected.keys() == {"line", "ring"}
        sizes = {kind: drawn[kind]["marker"]["size"] for kind in expected}
        assert max(sizes, key=lambda kind: sizes[kind]) == "pick"
        symbols = {kind: drawn[kind]["marker"]["symbol"] for kind in expected}
        assert symbols["beyond"] == "circle-open"
        assert {symbols[kind] for kind in ("bounded", "impossible", "open")} == {"x-thin-open"}
        assert (drawn["ring"]["x"], drawn["ring"]["y"]) == ([300.0], [1.0])

    def test_the_front_is_a_line_of_steps(self) -> None:
        line = traces(a_search())["line"]
        assert (line["x"], line["y"], line["line"]["shape"]) == ([60.0, 120.0, 300.0], [4.0, 2.0, 1.0], "hv")

    def test_hovering_says_which_plan_it_is_and_what_became_of_it(self) -> None:
        drawn = traces(a_search())
        assert drawn["front"]["hovertext"][0].split("<br>") == [
            "<b>2x2 on 2 small, 2 large</b>",
            "4 members, grains of 4, 1f1b, 1 ahead, store",
            "takes 1m, costs $4.00",
            "on the Pareto front: no other is both faster and cheaper",
        ]
        assert "takes at least 1m30s, costs at least $1.90<br>left open" in drawn["open"]["hovertext"][0]
        assert drawn["impossible"]["hovertext"][0].endswith("<br>infeasible: it lacks 1 GB of memory")
        assert "beyond a limit: the budget: it may cost $6.00 of $5.00" in drawn["beyond"]["hovertext"][0]
        assert "at least" not in drawn["beyond"]["hovertext"][0]

    def test_the_legend_counts_what_there_is_and_says_at_least(self) -> None:
        legend = Page(search_page(a_search())).texts("span")
        assert "front: none is both faster and cheaper 3" in legend
        assert "simulated, beyond a limit 1" in legend
        assert len([words for words in legend if words.startswith("lower bound, not simulated")]) == 3
        one = a_search(candidates=CANDIDATES[:1], front=(PICK,), runner_up=None)
        assert Page(search_page(one)).texts("span") == ["pick"]

    def test_where_nothing_is_charged_members_stand_over_time(self) -> None:
        page = Page(search_page(a_free_search()))
        drawn = traces(a_free_search())
        assert "line" not in drawn
        assert [drawn[kind]["y"] for kind in ("pick", "dominated", "bounded")] == [[4], [2], [1]]
        [view] = page.picture["views"]
        assert view["yaxis"]["ticktext"] == ["1", "2", "3", "4"]
        assert "Nothing is charged, so the candidates differ in time only." in page.texts("p")
        assert page.picture["layout"]["yaxis"]["title"]["text"] == "members"

    def test_what_is_far_from_the_front_can_be_left_out(self) -> None:
        assert [view["name"] for view in Page(search_page(a_search())).picture["views"]] == ["all"]
        far = a_candidate(1e6, 500.0, "bounded out")
        page = Page(search_page(a_search(candidates=(*CANDIDATES, far))))
        every, near = page.picture["views"]
        assert (every["xaxis"]["type"], every["yaxis"]["type"]) == ("log", "log")
        assert (near["xaxis"]["type"], near["yaxis"]["type"]) == ("linear", "linear")
        assert near["xaxis"]["range"][1] < 1000.0
        assert page.texts("label") == ["all", "near the front"]

    def test_of_thousands_only_those_that_were_not_simulated_are_thinned_out(self) -> None:
        simulated = [a_candidate(100.0 + number, 5.0, "dominated") for number in range(1000)]
        bounded = [a_candidate(1000.0 + number, 9.0, "bounded out") for number in range(9000)]
        found = a_search(candidates=(*CANDIDATES, *simulated, *bounded))
        page = Page(search_page(found))
        assert "3,000 of 10,008 are drawn; candidates that were not simulated are left out first." in page.texts("p")
        drawn = traces(found)
        assert len(drawn["dominated"]["x"]) == 1001
        assert sum(len(trace["x"]) for name, trace in drawn.items() if name not in ("line", "ring")) == 3000
        gaps = [after - before for before, after in pairwise(drawn["bounded"]["x"][1:])]
        assert max(gaps) <= 6
        assert drawn["bounded"]["x"][-1] > 9990.0
        assert "are drawn" not in " ".join(Page(search_page(a_search())).texts("p"))


class TestAxes:
    @pytest.mark.parametrize(
        ("values", "kind"),
        [([1.0, 10.0], "linear"), ([1.0, 11.0], "log"), ([0.0, 100.0], "linear"), ([3.0], "linear"), ([0.0], "linear")],
    )
    def test_they_are_logarithmic_where_values_span_more_than_ten_times(self, values: list[float], kind: str) -> None:
        assert axis(values, MONEY)["type"] == kind

    @pytest.mark.parametrize(
        "values", [[3600.0, 3620.0], [0.01, 5e5], [59.0, 61.0], [7200.0], [1e-3, 2e-3], [9e4, 3e6]]
    )
    @pytest.mark.parametrize("scale", [DURATION, MONEY])
    def test_ticks_lie_on_them_and_no_two_read_alike(self, values: list[float], scale: Any) -> None:
        made = axis(values, scale)
        low, high = made["range"] if made["type"] == "linear" else [10**end for end in made["range"]]
        assert low < min(values) <= max(values) < high
        assert all(low <= tick <= high for tick in made["tickvals"])
        assert len(set(made["ticktext"])) == len(made["ticktext"]) <= 12
        assert len(made["ticktext"]) >= 1

    def test_members_are_whole(self) -> None:
        assert axis([1.0, 2.0], COUNT)["ticktext"] == ["1", "2"]


class TestPage:
    def test_the_header_is_the_pick_and_its_facts(self) -> None:
        page = Page(search_page(a_search(), origin="job.py"))
        assert page.texts("h1") == ["made: 1x2 on small"]
        assert "job.py" in page.texts("header")[0]
        facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
        assert facts["run time"] == "2mp95 2m30s"
        assert facts["cost"] == "$2.00p95 $2.50"
        assert facts["members"] == "21 replica × 2 stages"
        assert facts["memory asked for"] == "2 GBat most 1 GB each"
        assert facts["goal"] == "balancedproven within 12.5 %"

    def test_stages_have_their_memory_layers_offers_and_computing(self) -> None:
        parts = StepParts(member="r1s1", compute_s=0.3, transfer_s=0.1, reduce_s=0.05, bubble_s=0.05, moving_s=0.2)
        prediction = a_prediction(120.0, 2.0, parts=parts)
        plan = a_plan(120.0, 2.0, ("large", "small"), num_replicas=2, predicted=prediction)
        assert self.rows(plan) == [
            "0 0 to 1 large 1 GB of 8 GB 12.5 % –",
            "1 2 to 3 small 1 GB of 2 GB 50.0 % 300ms, 60.0 %",
        ]

    def test_of_unequal_replicas_the_tightest_counts(self) -> None:
        plan = a_plan(120.0, 2.0, ("large",), num_replicas=3, replica_offers=("large", "small", "large"))
        assert self.rows(plan) == ["0 0 to 1 2 large, 1 small 1 GB of 2 GB 50.0 %"]

    def test_members_of_one_machine_share_its_memory(self) -> None:
        page = Page(search_page(a_free_search()))
        assert self.rows(a_free_search().pick)[0] == "0 0 to 1 local 2 GB of 16 GB 12.5 %"
        assert any(
            "Members share the memory of one machine: 4 GB of 16 GB in all" in words for words in page.texts("p")
        )

    @staticmethod
    def rows(pick: Plan) -> list[str]:
        """Of the table of stages."""
        text = search_page(a_search(pick=pick, front=(pick,), runner_up=None))
        table = text[text.index('<table class="stages">') : text.index("</table>")] + "</table>"
        cells = Page(table.replace("</td>", " </td>"))
        return cells.texts("tr")[1:]

    def test_reasons_are_sentences_and_plans_a_table(self) -> None:
        page = Page(search_page(a_search(runner_up=a_plan(130.0, 2.5, ("large",)))))
        assert page.texts("li") == ["It is the one.", "Nothing binds."]
        text = search_page(a_search(runner_up=a_plan(130.0, 2.5, ("large",))))
        plans = Page(text[text.index('<table class="plans">') : text.rindex("</table>")] + "</table>")
        assert len(plans.texts("tr")) == 5
        cells = plans.texts("td")
        assert cells[11:22] == ["pick", "2m", "2m30s", "$2.00", "$2.50", "1x2", "small", "4", "1f1b", "store", "2"]
        assert cells[33] == "runner-up, not on the front"

    def test_names_are_text_whatever_they_contain(self) -> None:
        odd = "</script><script>alert('$job')</script> & <b>"
        plan = a_plan(120.0, 2.0, (odd,), offers=(offer(name=odd, memory_bytes=GB),), job=odd)
        spoilt = structs.replace(CANDIDATES[5], offers=(odd,), reason=odd)
        fields: dict[str, Any] = {"runner_up": None, "reasons": (odd,), "candidates": (CANDIDATES[0], spoilt)}
        text = search_page(a_search(pick=plan, front=(plan,), **fields), origin=odd)
        assert odd not in text
        page = Page(text)
        assert page.texts("h1") == [f"{odd}: 1x1 on {odd}"]
        assert page.texts("li") == [odd]
        plain_plan = a_plan(120.0, 2.0)
        plain = Page(search_page(a_search(pick=plain_plan, front=(plain_plan,), **fields)))
        assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
        [hover] = [trace["hovertext"][0] for trace in page.picture["traces"] if trace["meta"] == "bounded"]
        assert "<script" not in hover
        assert "&lt;script&gt;" in hover

    def test_nothing_is_loaded_from_elsewhere(self) -> None:
        page = Page(search_page(a_search()))
        loading = {"src", "srcset", "href", "data", "action", "poster"}
        assert not [element for element in page.elements if loading & element[1].keys()]
        assert not [tag for tag, _ in page.elements if tag in ("link", "iframe", "img", "object", "embed")]
        assert all(word not in style for style in page.texts("style") for word in ("url(", "@import"))
        [policy] = [attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes]
        assert policy is not None
        assert policy.startswith("default-src 'none';")

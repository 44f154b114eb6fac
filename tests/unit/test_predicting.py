"""A forecast adds up, names what holds a plan back, and says what changes bring; what does not fit is refused."""

import math
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

import zooid
from tests.unit.predicted import MB, a_plan, a_profile, owned, pinned, rented, write_run
from tests.unit.profiles import SITE, layer, link, store_links
from tests.unit.test_timelines import TimelinePage as Page
from zooid.core.errors import CatalogError, InputError, PlanError, RecordError
from zooid.core.plans.all_reduce_samples import AllReduceSample, AllReduceSamples
from zooid.core.plans.forecast import Forecast
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile, Spread
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.link import Links
from zooid.core.runs.step_parts import parts_by_member
from zooid.predictor import World, directed_links, predict
from zooid.report import facts_in_words, prediction_page, prediction_tables

AWS = "aws.us-east-1"


def forecast(made: Profile, replicas: int = 1, stages: int = 1, **more: Any) -> Forecast:
    return zooid.predict(a_plan(made, replicas=replicas, stages=stages), made, **more)


def gains_of(found: Forecast) -> dict[str, Any]:
    return {gain.change: gain for gain in found.gains}


class TestSums:
    @pytest.mark.parametrize(("replicas", "stages"), [(1, 1), (2, 1), (1, 3), (2, 2)])
    def test_parts_of_a_step_sum_to_it_and_terms_of_the_bill_to_the_total(self, replicas: int, stages: int) -> None:
        made = a_profile(links=store_links(20 * MB, 0.003), spread=Spread(of_steps=0.1, of_runs=0.05))
        plan = a_plan(made, rented(), replicas, stages)
        found = zooid.predict(plan, made, store_at=AWS)
        assert found.parts.step_s == pytest.approx(found.step_p50_s)
        for parts in parts_by_member(found.timeline).values():
            assert parts.step_s == pytest.approx(found.step_p50_s)
        prediction = found.prediction
        assert math.fsum(term.usd for term in prediction.cost_terms) == pytest.approx(prediction.run_usd, rel=1e-12)
        assert prediction.step_p95_s is not None
        assert prediction.run_p95_s is not None
        assert prediction.run_p95_usd is not None
        assert found.step_p50_s < prediction.step_p95_s
        assert prediction.run_s < prediction.run_p95_s
        assert prediction.run_usd < prediction.run_p95_usd

    def test_where_nothing_differs_all_steps_are_alike(self) -> None:
        found = forecast(a_profile(links=store_links(20 * MB, 0.003)), 2, 2)
        assert found.prediction.step_p95_s == pytest.approx(found.prediction.step_s)
        assert found.step_p50_s == pytest.approx(found.prediction.step_s)

    def test_rates_follow_from_step_and_bill(self) -> None:
        made = a_profile()
        found = zooid.predict(a_plan(made, owned()), made)
        assert found.prediction.step_s == pytest.approx(0.64)  # 16 samples, four layers, 10 ms each
        assert found.rate.samples_per_s == pytest.approx(25.0)
        assert found.prediction.run_usd == pytest.approx(640 / 3600, rel=0.01)
        assert found.rate.usd_per_million_samples == pytest.approx(found.prediction.run_usd / 16_000 * 1e6)
        assert found.rate.samples_per_usd == pytest.approx(16_000 / found.prediction.run_usd)
        assert found.granularity is None

    def test_what_costs_nothing_buys_no_number_of_samples(self) -> None:
        made = a_profile()
        found = zooid.predict(a_plan(made, owned(usd_per_hour=0.0)), made)
        assert found.rate.samples_per_usd is None
        assert found.prediction.run_usd == 0
        assert decode_record(encode_record(found), Forecast, "it") == found

    def test_the_store_charges_what_it_is_asked_for(self) -> None:
        """More messages are more requests; a store of one's own charges nothing."""
        made = a_profile()
        usd = {}
        for stages in (1, 2, 4):
            found = zooid.predict(a_plan(made, owned(), stages=stages), made, store_at=AWS)
            usd[stages] = {term.kind: term.usd for term in found.prediction.cost_terms}["requests"]
        assert 0 < usd[1] < usd[2] < usd[4]
        free = zooid.predict(a_plan(made, owned(), stages=4), made, store_at="file:///tmp/somewhere")
        assert {term.kind: term.usd for term in free.prediction.cost_terms}["requests"] == 0

    def test_checkpoints_are_in_the_bill(self) -> None:
        made = a_profile()
        plan = a_plan(made, owned())
        often = zooid.predict(plan, made, store_at=AWS, checkpoints=zooid.CheckpointRule(every_steps=1))
        seldom = zooid.predict(plan, made, store_at=AWS, checkpoints=zooid.CheckpointRule())
        assert often.prediction.run_usd > seldom.prediction.run_usd
        assert often.prediction.step_s == seldom.prediction.step_s


def one_grain() -> Profile:
    """Nothing to fill a pipeline with."""
    layers = [layer(0.01, out_bytes=1.0, sizes=(16,)) for _ in range(4)]
    return a_profile(layers=layers)


BOUND = {
    "compute": (a_profile(), 1, 2),
    "transfer": (a_profile(layers=[layer(1e-4, out_bytes=MB) for _ in range(4)], links=store_links(MB)), 1, 2),
    "reduce": (a_profile(links=store_links(MB)), 2, 1),
    "requests": (pinned(a_profile(links=store_links(rtt_s=0.5)), 4), 1, 2),
    "bubble": (one_grain(), 1, 4),
}


class TestBottleneck:
    @pytest.mark.parametrize("kind", BOUND)
    def test_what_takes_most_of_a_step_is_named(self, kind: str) -> None:
        made, replicas, stages = BOUND[kind]
        found = forecast(made, replicas, stages)
        assert found.bottleneck.kind == kind
        assert found.bottleneck.member == found.parts.member
        assert 0.2 < found.bottleneck.share <= 1.0
        assert found.parts.member in found.bottleneck.sentence
        assert f"{found.bottleneck.share * 100:.0f} % of a step" in found.bottleneck.sentence

    def test_requests_that_are_most_of_the_bill_are_mentioned(self) -> None:
        made = a_profile()
        plan = a_plan(made, owned(usd_per_hour=0.001), stages=4)
        assert "of the bill" in zooid.predict(plan, made, store_at=AWS).bottleneck.sentence
        assert "of the bill" not in zooid.predict(plan, made).bottleneck.sentence


class TestGains:
    def test_another_replica_halves_computing_that_is_all_there_is(self) -> None:
        """Almost: members exchange nothing but votes, over links that take no time."""
        gain = gains_of(forecast(a_profile(layers=[layer(0.01) for _ in range(4)])))["replica"]
        assert gain.num_members == 2
        assert gain.speedup == pytest.approx(1.0, abs=0.01)
        assert gain.usd_change == pytest.approx(0.0, abs=0.01)
        assert gain.by_granularity == pytest.approx(1.0)

    def test_another_replica_of_a_pipeline_is_a_whole_one(self) -> None:
        assert gains_of(forecast(a_profile(), 2, 2))["replica"].num_members == 6

    def test_a_larger_batch_has_an_all_reduce_less_often(self) -> None:
        made = a_profile(links=store_links(MB))
        found = forecast(made, 2, 1)
        gain = gains_of(found)["batch"]
        twice = structs.replace(made, batch_size=32)
        plan = a_plan(made, replicas=2)
        world = World({plan.stages[0].offer: twice}, directed_links(twice.links))
        after, _ = predict(plan, world)
        assert gain.batch_size == 32
        assert gain.speedup == pytest.approx((32 / after.step_s) / (16 / found.prediction.step_s) - 1)
        assert gain.speedup > 0.3
        assert gain.usd_change is not None
        assert gain.usd_change < 0
        assert gain.rate.samples_per_s == pytest.approx(found.rate.samples_per_s * (1 + gain.speedup))

    def test_a_change_that_cannot_be_made_says_why(self) -> None:
        made = pinned(a_profile(num_samples=16), 4)
        found = forecast(made, replicas=4)
        assert gains_of(found)["replica"].problem == "a batch of 16 has only 4 grain(s) of 4"
        assert gains_of(found)["batch"].problem == "the data set has only 16 samples"
        assert all(gain.rate is None and gain.speedup is None for gain in found.gains)

    def test_members_that_do_not_fit_into_a_machine_together_are_no_gain(self) -> None:
        made = a_profile(links=tuple(structs.replace(each, **local(each)) for each in store_links()))
        here = owned(site="local", platform="local", memory_bytes=30 * MB)
        found = zooid.predict(a_plan(made, here), made)
        assert "2 members need" in gains_of(found)["replica"].problem

    def test_shares_stay_in_proportion_when_the_batch_doubles(self) -> None:
        made = pinned(a_profile(), 4)
        plan = structs.replace(a_plan(made, replicas=2), shares=(3, 1))
        gain = gains_of(zooid.predict(plan, made))["batch"]
        assert gain.speedup == pytest.approx(0.0, abs=0.01)


def local(each: Any) -> dict[str, str]:
    ends = {"from_site": each.from_site, "to_site": each.to_site}
    return {name: "local" if site == SITE else site for name, site in ends.items()}


def changed(text: str, value: str, name: str) -> bytes:
    """JSON in which a field has another value."""
    return re.sub(rf'"{name}": [^,\n]+', f'"{name}": {value}', text).encode()


class TestRefusals:
    @pytest.mark.parametrize(
        ("profile_fields", "message"),
        [
            ({"model_fingerprint": "g"}, r"another model \(its fingerprint\) than the profile: f, not g"),
            ({"batch_size": 32}, "another batch size than the profile: 16, not 32"),
            ({"epochs": 2}, "another number of steps, by its samples and epochs, than the profile: 1000, not 2000"),
            ({"layers": [layer(0.01)]}, "another number of layers than the profile: 4, not 1"),
        ],
    )
    def test_a_profile_that_the_plan_was_not_made_from(self, profile_fields: dict[str, Any], message: str) -> None:
        with pytest.raises(PlanError, match=message):
            zooid.predict(a_plan(a_profile()), a_profile(**profile_fields))

    def test_one_profile_for_two_offers(self) -> None:
        made = a_profile()
        plan = a_plan(made, stages=2)
        second = structs.replace(plan.offers[0], name="other")
        stages = (plan.stages[0], structs.replace(plan.stages[1], offer="other"))
        mixed = structs.replace(plan, offers=(*plan.offers, second), stages=stages)
        with pytest.raises(PlanError, match=r"made from a profile of own and of other, which is not given;"):
            zooid.predict(mixed, made)
        with pytest.raises(PlanError, match=r"made from a profile of other, which is not given; .*--profile"):
            zooid.predict(mixed, {"own": made})
        slower = structs.replace(made, layers=tuple(layer(0.03) for _ in range(4)))
        both = zooid.predict(mixed, {"own": made, "other": slower})
        assert both.parts.member == "r0s1"

    def test_links_that_are_missing(self) -> None:
        made = a_profile()
        plan = structs.replace(a_plan(made, stages=2), transport="tcp")
        with pytest.raises(PlanError, match=r"no link from 'here' to 'here' .*`zooid probe`.* --links"):
            zooid.predict(plan, made)
        found = zooid.predict(plan, made, links=peers(10 * MB))
        assert found.prediction.step_s > 0

    def test_links_that_are_given_count_more_than_the_profiles(self) -> None:
        made = a_profile(links=store_links(20 * MB))
        plan = a_plan(made, replicas=2)
        slow = Links(zooid_version="0", date="2025-01", links=store_links(MB))
        assert zooid.predict(plan, made, links=slow).step_p50_s > 1.5 * zooid.predict(plan, made).step_p50_s

    def test_a_link_without_bandwidth(self) -> None:
        text = encode_record(peers(MB)).decode()
        with pytest.raises(RecordError, match=r"`bandwidth_bytes_per_s` of here to here is 0.0; it must be above 0"):
            decode_record(changed(text, "0", "bandwidth_bytes_per_s"), Links, "links.json")

    def test_a_price_in_another_unit(self) -> None:
        made = a_profile()
        in_cents = a_plan(made, rented(usd_per_hour=100.0))
        with pytest.raises(InputError, match=r"`usd_per_hour` of aws\.made\.up is 100\.0; .* dollars, not cents"):
            zooid.predict(in_cents, made, store_at=AWS)

    def test_a_store_is_where_the_plan_has_it_or_where_rented_members_are(self) -> None:
        made = a_profile()
        plan = a_plan(made, rented(), stages=2)
        nearby = zooid.predict(plan, made, store_at=AWS).prediction
        assert zooid.predict(plan, made).prediction == nearby
        assert zooid.predict(structs.replace(plan, store_at=AWS), made).prediction == nearby
        owned_store = zooid.predict(structs.replace(plan, store_at="owned"), made).prediction
        assert owned_store == zooid.predict(plan, made, store_at="owned").prediction != nearby

    def test_a_store_whose_prices_nobody_knows(self) -> None:
        made = a_profile()
        plan = a_plan(made, rented())
        elsewhere = structs.replace(plan.offers[0], name="gcp.other", region="us-west1")
        with pytest.raises(InputError, match=r"give it with --store-at .*, for example --store-at aws\.us-east-1"):
            zooid.predict(structs.replace(plan, offers=(*plan.offers, elsewhere)), made)
        with pytest.raises(InputError, match="give the location instead of the URL"):
            zooid.predict(plan, made, store_at="s3://bucket/run")
        with pytest.raises((PlanError, CatalogError), match="moon"):
            zooid.predict(plan, made, store_at="moon.far-side")

    def test_samples_of_what_the_plan_does_not_use(self) -> None:
        made = a_profile()
        with pytest.raises(InputError, match="transport is store"):
            zooid.predict(a_plan(made), made, samples=AllReduceSamples(zooid_version="0", samples=()))
        over_gloo = structs.replace(a_plan(made, replicas=2), transport="gloo")
        with pytest.raises(InputError, match="no all-reduce of gloo"):
            zooid.predict(over_gloo, made, links=peers(MB), samples=AllReduceSamples(zooid_version="0", samples=()))


def peers(bytes_per_s: float) -> Links:
    between = link(bytes_per_s, from_site=SITE, to_site=SITE)
    return Links(zooid_version="0", date="2025-01", links=(between,))


class TestLearned:
    def test_a_librarys_all_reduce_takes_what_was_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Measured as 0.1 s and as much again for each MB; links would have it take a hundredth of that."""
        sizes = [2**power for power in range(10, 24)]
        samples = tuple(
            AllReduceSample(
                library="gloo",
                offer="own",
                site=SITE,
                num_bytes=size,
                num_members=2,
                concurrency=1,
                took_s=0.1 + size / MB * 0.1,
                at_s=1000.0 + repeat,
            )
            for size in sizes
            for repeat in range(3)
        )
        monkeypatch.setattr("zooid.coordinator.plans.plan_forecast.time.time", lambda: 2000.0)
        made = a_profile()
        plan = structs.replace(a_plan(made, replicas=2), transport="gloo")
        simulated = zooid.predict(plan, made, links=peers(1000 * MB))
        learned = zooid.predict(
            plan, made, links=peers(1000 * MB), samples=AllReduceSamples(zooid_version="0", samples=samples)
        )
        assert simulated.parts.reduce_s < 0.02
        assert learned.parts.reduce_s == pytest.approx(0.5, rel=0.1)  # 4 MB
        assert any("among 3 members" in note for note in learned.notes)  # as one more replica would have it


class TestMeasured:
    def plan_and_forecast(self) -> tuple[Plan, Profile, Forecast]:
        made = a_profile(links=store_links(20 * MB, 0.003))
        plan = a_plan(made, replicas=2, stages=2)
        return plan, made, zooid.predict(plan, made)

    def test_what_a_run_took_lies_beside_what_was_predicted(self, tmp_path: Path) -> None:
        plan, made, found = self.plan_and_forecast()
        url = write_run(tmp_path / "run", plan, [9.0, *[0.2] * 19, 0.4], found.timeline, run_s=123.0, usd=0.5)
        measured = zooid.predict(plan, made, compare=url).measured
        assert measured is not None
        assert measured.num_steps == 20  # the first one warms up
        assert measured.step_p50_s == pytest.approx(0.2)
        assert measured.step_s == pytest.approx(0.21)
        assert measured.step_p95_s == pytest.approx(0.21)
        assert (measured.run_s, measured.members_usd) == (123.0, 0.5)
        assert measured.timeline is not None
        assert parts_by_member(measured.timeline)[found.parts.member].compute_s == pytest.approx(found.parts.compute_s)

    def test_a_run_that_was_cut_short_has_no_whole(self, tmp_path: Path) -> None:
        plan, made, _ = self.plan_and_forecast()
        compared = zooid.predict(plan, made, compare=write_run(tmp_path / "run", plan, [1.0, 0.2], None))
        assert compared.measured is not None
        assert (compared.measured.run_s, compared.measured.members_usd, compared.measured.timeline) == (None,) * 3
        [*_, table] = prediction_tables(compared)
        assert "–" in printed(table)

    def test_what_cannot_be_compared_is_refused(self, tmp_path: Path) -> None:
        plan, made, found = self.plan_and_forecast()
        with pytest.raises(InputError, match="holds no run"):
            zooid.predict(plan, made, compare=(tmp_path / "nothing").as_uri())
        url = write_run(tmp_path / "short", plan, [1.0], None)
        with pytest.raises(InputError, match="no full step besides its first"):
            zooid.predict(plan, made, compare=url)
        other = a_plan(made, replicas=2)
        url = write_run(tmp_path / "other", other, [1.0, 1.0], found.timeline)
        with pytest.raises(InputError, match="its layout is 2x1, not 2x2; give the plan of that run"):
            zooid.predict(plan, made, compare=url)


def printed(*tables: Any) -> str:
    console = Console(file=StringIO(), width=140)
    for table in tables:
        console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


class TestWhatUsersSee:
    def compared(self, tmp_path: Path, **more: Any) -> Forecast:
        made = a_profile(links=store_links(20 * MB, 0.003), **more)
        plan = a_plan(made, replicas=2, stages=2)
        found = zooid.predict(plan, made)
        measured = structs.replace(found.timeline, intervals=tuple(slower(each) for each in found.timeline.intervals))
        url = write_run(tmp_path / "run", plan, [1.0, 2 * found.prediction.step_s], measured)
        return zooid.predict(plan, made, store_at=AWS, compare=url)

    def test_tables_say_all_of_it(self, tmp_path: Path) -> None:
        found = self.compared(tmp_path)
        time, money, gains, compared = (printed(table) for table in prediction_tables(found))
        for words in ("computing", "messages, not hidden", "all-reduce, not hidden", "waiting for others", "step, p95"):
            assert words in time
        for words in ("members' time, training", "requests to the store", "total, p95"):
            assert words in money
        assert "one more replica, 6 members" in gains
        assert "twice the batch, 32 samples" in gains
        assert compared.count("-50.0 %") >= 5  # the run took twice as long, and so did every part of its step
        assert any(line == f"bottleneck: {found.bottleneck.sentence}" for line in facts_in_words(found))

    def test_bars_of_the_page_sum_to_the_step(self, tmp_path: Path) -> None:
        found = self.compared(tmp_path)
        page = Page(prediction_page(found))
        plots = page.picture["plots"]
        traces = plots["time"]["traces"]
        assert traces[0]["y"][:2] == ["r0s0", "r0s0, measured"]
        assert len(traces[0]["y"]) == 8
        totals_ms = [sum(lengths) for lengths in zip(*(trace["x"] for trace in traces), strict=True)]
        factor = 1e3 if plots["time"]["layout"]["xaxis"]["ticksuffix"] == " ms" else 1.0
        assert totals_ms[::2] == pytest.approx([found.step_p50_s * factor] * 4)
        assert totals_ms[1::2] == pytest.approx([2 * found.step_p50_s * factor] * 4)
        [money] = plots["money"]["traces"]
        assert sum(money["x"]) == pytest.approx(found.prediction.run_usd)
        assert [section["step_s"] for section in page.picture["timelines"]] == pytest.approx(
            [found.step_p50_s, 2 * found.step_p50_s]
        )
        assert "Predicted and measured" in page.texts("h2")

    def test_the_page_needs_no_network_and_escapes_names(self, tmp_path: Path) -> None:
        odd = "<script>alert(1)</script> & more"
        text = prediction_page(self.compared(tmp_path, job=odd), origin=odd)
        assert odd not in text
        assert Page(text).texts("h1")[0].startswith(odd)
        loading = {"src", "srcset", "href", "data", "action", "poster"}
        assert not [element for element in Page(text).elements if loading & element[1].keys()]

    def test_of_many_members_the_busiest_of_each_stage_is_drawn(self) -> None:
        made = pinned(a_profile(batch_size=64, num_samples=6400), 4)
        found = zooid.predict(a_plan(made, replicas=9, stages=2), made)
        [first, *_] = Page(prediction_page(found)).picture["plots"]["time"]["traces"]
        assert len(first["y"]) == 2
        assert [name[2:] for name in first["y"]] == ["s0", "s1"]

    def test_an_estimate_is_never_shown_as_if_it_were_measured(self) -> None:
        made = a_profile(estimated_from="some cpu")
        found = forecast(made)
        assert "ESTIMATE" in printed(prediction_tables(found)[0])
        assert "ESTIMATE" in Page(prediction_page(found)).texts("h1")[0]

    def test_what_costs_nothing_has_no_picture_of_money(self) -> None:
        made = a_profile()
        page = Page(prediction_page(zooid.predict(a_plan(made, owned(usd_per_hour=0.0)), made)))
        assert page.picture["plots"]["money"] is None
        assert "Nothing is charged." in page.texts("p")


def slower(interval: Any) -> Any:
    return structs.replace(interval, start_s=2 * interval.start_s, end_s=2 * interval.end_s)

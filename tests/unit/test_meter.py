"""The meter of a run: who is billed from when to when, what the store costs, and what the next claim carries over."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.profiles import offer
from zooid.catalog import offer as catalog_offer
from zooid.catalog import prices_for
from zooid.coordinator.runs.live_bill import carry_over
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.plans.plan import CostTerm
from zooid.core.resources.prices import FREE
from zooid.core.resources.tariff import Tariff
from zooid.core.runs.allowance import PriceList
from zooid.core.runs.events import Metered, StepCommitted, StoreUsed
from zooid.predictor.costs.bill import METERED_KINDS, bill_usd
from zooid.store import EventWriter, open_store
from zooid.store.request_counts import RequestCounts, counts_of

HOURLY = offer(3.6, billing_grain_s=1.0, billing_minimum_s=60.0)
"""A tenth of a cent a second."""
FUNCTION = catalog_offer("aws.lambda.1769")


def usd_of(metered: Metered) -> dict[str, float]:
    return {term.kind: term.usd for term in metered.terms}


def used(member: str, **counts: int) -> StoreUsed:
    fields = dict.fromkeys(("num_puts", "num_gets", "num_lists", "sent_bytes", "received_bytes"), 0)
    return StoreUsed(at_s=0.0, member=member, **fields | counts)


def first_step(at_s: float, step_s: float = 1.0) -> StepCommitted:
    return StepCommitted(at_s=at_s, step=0, epoch=0, loss=0.0, num_samples=1, step_s=step_s)


class TestMembers:
    def test_a_member_costs_from_its_start_to_its_end_and_no_longer(self) -> None:
        meter = RunMeter()
        meter.start("r0s0", HOURLY, 1000.0, prepares=False)
        meter.start("r1s0", HOURLY, 1000.0, prepares=False)
        meter.end("r1s0", 1100.5)
        assert meter.read(1200.0).usd == pytest.approx(0.2 + 0.101), "200 s, and 100.5 s in whole seconds"
        meter.end("r1s0", 1300.0)  # it has ended already
        assert meter.read(1400.0).usd == pytest.approx(0.4 + 0.101)

    def test_a_short_member_costs_the_minimum(self) -> None:
        meter = RunMeter()
        meter.start("r0s0", HOURLY, 0.0, prepares=False)
        meter.end("r0s0", 1.0)
        assert meter.read(500.0).usd == pytest.approx(0.06)

    def test_a_member_is_billed_for_its_own_time_and_not_for_that_of_the_platform(self) -> None:
        meter = RunMeter()
        meter.start("r0s0", HOURLY, 1000.0, prepares=False)
        meter.take(first_step(1051.0))
        assert meter.read(1100.0).usd == pytest.approx(0.1), "nobody knows yet that it was started late"
        meter.end("r0s0", 1120.0, ran_s=80.0)
        terms = usd_of(meter.read(1200.0))
        assert [terms["start-up"], terms["compute"]] == pytest.approx([0.01, 0.07]), "it began at 1040"

    def test_profilers_and_preparers_are_billed_as_preparation(self) -> None:
        meter = RunMeter()
        meter.start("profiler", HOURLY, 0.0, prepares=True)
        meter.end("profiler", 100.0)
        meter.start("r0s0", HOURLY, 100.0, prepares=False)
        meter.take(first_step(131.0))
        terms = usd_of(meter.read(200.0))
        assert terms["preparation"] == pytest.approx(0.1)
        assert [terms["start-up"], terms["compute"]] == pytest.approx([0.03, 0.07])
        assert tuple(terms) == METERED_KINDS

    @given(
        started_s=st.lists(st.floats(0, 1e3), min_size=1, max_size=5),
        running_s=st.floats(0, 1e4),
        usd=st.floats(0, 50),
        grain_s=st.sampled_from([0.001, 1.0, 60.0, 3600.0]),
    )
    def test_every_member_is_billed_like_in_a_prediction_and_terms_sum_exactly(
        self, started_s: list[float], running_s: float, usd: float, grain_s: float
    ) -> None:
        priced = offer(usd, usd_per_start=0.25, billing_grain_s=grain_s, billing_minimum_s=7.0)
        meter = RunMeter()
        for number, at_s in enumerate(started_s):
            meter.start(f"m{number}", priced, at_s, prepares=False)
            meter.end(f"m{number}", at_s + running_s)
        metered = meter.read(2e4)
        assert metered.usd == math.fsum(term.usd for term in metered.terms)
        wanted = math.fsum(bill_usd(priced, at_s + running_s - at_s) for at_s in started_s)
        assert metered.usd == pytest.approx(wanted, rel=1e-9)


class TestPrices:
    def test_a_new_price_counts_from_its_time_on(self) -> None:
        meter = RunMeter()
        meter.start("r0s0", HOURLY, 0.0, prepares=False)
        [change] = meter.change_prices(PriceList(usd_per_hour={HOURLY.name: 10.8}), 100.0)
        assert (change.usd_per_hour, change.before_usd_per_hour) == (10.8, 3.6)
        assert meter.change_prices(PriceList(usd_per_hour={HOURLY.name: 10.8}), 150.0) == []
        metered = meter.read(200.0)
        assert metered.usd == pytest.approx(0.1 + 0.3)
        assert metered.usd_per_s == pytest.approx(0.003)
        meter.start("r1s0", HOURLY, 200.0, prepares=False)
        assert meter.read(300.0).usd == pytest.approx(0.1 + 0.6 + 0.3), "members that start later pay it, too"

    @given(st.lists(st.tuples(st.floats(1, 100), st.floats(0, 10)), max_size=6), st.floats(0, 100))
    def test_changing_prices_cost_the_sum_over_their_times(
        self, steps: list[tuple[float, float]], last_s: float
    ) -> None:
        tariff = Tariff(started_at_s=0.0, usd_per_hour=1.0, billing_grain_s=1e-3, billing_minimum_s=0.0)
        now_s, usd, price = 0.0, 0.0, 1.0
        for length_s, next_price in steps:
            now_s, usd = now_s + length_s, usd + price * length_s / 3600
            price = next_price
            tariff = tariff.at_price(price, now_s)
        usd += price * last_s / 3600
        assert tariff.usd_at(now_s + last_s) == pytest.approx(usd, abs=1e-5)

    def test_an_offer_is_found_by_its_full_name_and_by_that_of_the_catalog(self) -> None:
        listed = PriceList(usd_per_hour={"aws.lambda.1769": 1.0})
        assert listed.price_of("local:aws.lambda.1769") == 1.0
        assert listed.price_of("local") is None


class TestUse:
    def test_requests_bytes_and_data_of_members_and_requests_of_the_coordinator_are_charged(self) -> None:
        meter = RunMeter(lambda: RequestCounts(num_puts=1000, num_gets=10_000, num_lists=100))
        meter.prices = prices_for([FUNCTION], "aws.us-east-1", "aws.us-west-2")
        meter.start("r0s0", FUNCTION, 0.0, prepares=False)
        meter.take(used("r0s0", num_puts=9, num_gets=9))
        counts = {"num_puts": 4000, "num_gets": 90_000, "num_lists": 900, "data_gets": 1000, "data_bytes": 10**9}
        meter.take(used("r0s0", **counts))
        terms = usd_of(meter.read(0.0))
        assert terms["requests"] == pytest.approx(5000 * 5e-6 + 100_000 * 4e-7 + 1000 * 5e-6)
        assert terms["data"] == pytest.approx(1000 * 4e-7 + 0.01), "gets, and a GB from another region of the continent"
        assert terms["egress"] == 0.0, "between members and a store in one region"

    def test_what_lies_in_the_store_costs_by_the_time_that_it_lies_there(self) -> None:
        meter = RunMeter()
        meter.prices = prices_for([FUNCTION], "aws.us-east-1")
        month_s = 730 * 3600.0
        meter.note_stored(10**9, 0.0)
        meter.note_stored(3 * 10**9, month_s)
        assert usd_of(meter.read(2 * month_s))["storage"] == pytest.approx(0.023 * 4)

    def test_the_rate_of_requests_is_measured(self) -> None:
        meter = RunMeter()
        meter.prices = prices_for([FUNCTION], "aws.us-east-1")
        meter.start("r0s0", FUNCTION, 0.0, prepares=False)
        for second in range(30):
            meter.take(used("r0s0", num_puts=1000 * second))
            metered = meter.read(float(second))
        rate = 1000 * 5e-6
        assert metered.usd_per_s == pytest.approx(rate + FUNCTION.usd_per_hour / 3600)
        allowance = meter.allowance(metered, None, 5.0)
        assert allowance.usd_at(29.0) == pytest.approx(metered.usd)
        assert allowance.usd_at(129.0) == pytest.approx(metered.usd + 100 * metered.usd_per_s, rel=1e-3)

    def test_requests_of_a_store_are_counted(self, tmp_path: Path) -> None:
        store = open_store(tmp_path.as_uri())
        store.put("a/1", b"12345")
        store.create("a/2", b"123")
        assert bytes(store.get("a/1")) == b"12345"
        with pytest.raises(Exception, match="no object"):
            store.get("a/3")
        store.list("a")
        store.delete(["a/1"])
        assert store.stored_bytes("") == 3
        counts = RequestCounts(num_puts=2, num_gets=2, num_lists=2, sent_bytes=8, received_bytes=5)
        assert counts_of(store) == counts


class TestEarlierClaims:
    def test_what_earlier_claims_have_cost_is_carried_over_once(self, tmp_path: Path) -> None:
        """The coordinator is killed after 100 s. One member is adopted, and another has ended after 150 s."""
        store = open_store(tmp_path.as_uri())
        dead = RunMeter(carried=[CostTerm(kind="compute", usd=1.0)])
        dead.start("profiler", HOURLY, 0.0, prepares=True)
        dead.end("profiler", 60.0)
        for member in ("r0s0", "r1s0"):
            dead.start(member, HOURLY, 60.0, prepares=False)
        dead.take(first_step(61.0))
        with EventWriter(store, "coordinator", 1) as events:
            events.write(dead.read(80.0))
            events.write(dead.read(100.0))
        with EventWriter(store, "r1s0", 1) as events:
            events.write(StoreUsed(at_s=150.0, member="r1s0", num_puts=0, num_gets=0, num_lists=0, sent_bytes=0,
                                   received_bytes=0))  # fmt: skip
        meter = RunMeter()
        carry_over(meter, store, 2, FREE, ["r0s0"])
        assert meter.read(200.0).usd == pytest.approx(1.0 + 0.06 + 0.14 + 0.09)
        assert [member.member for member in meter.running] == ["r0s0"]
        resumed = RunMeter()
        carry_over(resumed, store, 2, FREE)
        assert resumed.read(200.0).usd == pytest.approx(1.0 + 0.06 + 0.06 + 0.09), "both until they were last heard"
        assert resumed.running == ()

    def test_a_run_without_an_earlier_bill_begins_at_zero(self, tmp_path: Path) -> None:
        meter = RunMeter()
        carry_over(meter, open_store(tmp_path.as_uri()), 3, FREE)
        assert meter.read(0.0).usd == 0.0

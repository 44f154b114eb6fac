"""The bill of a run: every term of it, the papers' own sums as special cases, and prices that are wrong or missing."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.profiles import offer
from zooid.catalog import offer as catalog_offer
from zooid.catalog import offers, prices_for, storage_prices, store_location
from zooid.catalog.csv_rows import read_rows
from zooid.catalog.price_lookup import Location, egress_usd_per_gb, location_of
from zooid.catalog.shipped_tables import check_offer
from zooid.core.errors import CatalogError, PlanError
from zooid.core.plans.plan import CostTerm
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.offer import EgressPrice, Offer, StoragePrice
from zooid.core.resources.prices import DATA_SITE, FREE, FREE_STORAGE, Prices
from zooid.core.runs import store_rules as rules
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.step_measurements import num_writes
from zooid.predictor.costs.bill import (
    COST_KINDS,
    bill_usd,
    run_cost,
    samples_per_usd,
    total_usd,
    usd_per_million_samples,
)
from zooid.predictor.costs.traffic import SeatTraffic, Traffic
from zooid.predictor.costs.usage import NO_USAGE, Checkpoints, DataSet, Move, RunUsage, num_checkpoints, run_usage
from zooid.schedule.heartbeats import requests_per_s

GB = 1e9
HOUR_S = 3600.0
FUNCTION = catalog_offer("aws.lambda.1769")
T4_US, T4_EU = catalog_offer("gcp.t4.spot.us-central1"), catalog_offer("gcp.t4.spot.europe-west1")
S3 = "aws.us-east-1"

TRAFFIC = Traffic(
    {(0, 0): SeatTraffic(10**6, 2 * 10**6, 3, 4, 1.0), (1, 0): SeatTraffic(10**6, 2 * 10**6, 3, 4, 1.0)}, {}
)
"""Of two members, through a store."""


def usd_of(terms: tuple[CostTerm, ...]) -> dict[str, float]:
    return {term.kind: term.usd for term in terms}


def usage_of(num_steps: float, step_s: float = 1.0, site: str = FUNCTION.site, **given: Any) -> RunUsage:
    sites = dict.fromkeys(TRAFFIC.seats, site)
    return run_usage(TRAFFIC, sites, num_steps=num_steps, step_s=step_s, running_s=num_steps * step_s, **given)


# Every term, and their sum

amounts = st.floats(0, 1e6)
some_prices = st.builds(
    lambda put, get, month, gb: Prices(
        StoragePrice(
            provider="p", service="s", region="r", usd_per_put=put, usd_per_get=get, usd_per_gb_month=month,
            source="s", date="2024-05",
        ),
        FREE_STORAGE,
        {("here", STORE_SITE): gb, (STORE_SITE, "here"): gb / 2, (DATA_SITE, "here"): gb / 3},
        {},
    ),
    st.floats(0, 1e-4), st.floats(0, 1e-5), st.floats(0, 1), st.floats(0, 0.5),
)  # fmt: skip
some_members = st.lists(
    st.builds(
        lambda usd, start, grain, least: offer(
            usd, usd_per_start=start, billing_grain_s=grain, billing_minimum_s=least
        ),
        st.floats(0, 50), st.floats(0, 1), st.sampled_from([0.001, 1.0, 60.0]), st.sampled_from([0.0, 60.0]),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(some_members, amounts, st.floats(0, 1), some_prices, st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_term_is_negative_and_they_are_the_total(
    members: list[Offer], running_s: float, share: float, prices: Prices, num_steps: int, more_steps: int
) -> None:
    def terms(steps: int) -> tuple[CostTerm, ...]:
        data = DataSet(num_bytes=1e9, num_objects=10, epochs=2, is_cached=False)
        whole_s = running_s + 0.5 * steps
        usage = run_usage(
            TRAFFIC,
            dict.fromkeys(TRAFFIC.seats, "here"),
            num_steps=steps,
            step_s=0.5,
            running_s=whole_s,
            checkpoints=Checkpoints(num_written=3, stage_bytes=(1e9,), weight_bytes=(1e8,)),
            data=data,
        )
        return run_cost(members, whole_s, share * running_s, usage, prices)

    few = terms(num_steps)
    assert tuple(term.kind for term in few) == COST_KINDS
    assert all(term.usd >= 0 and math.isfinite(term.usd) for term in few)
    assert total_usd(few) == math.fsum(term.usd for term in few) == total_usd(reversed(few))
    many = terms(num_steps + more_steps)
    assert total_usd(many) >= total_usd(few) * (1 - 1e-12), "more steps are never cheaper"
    for kind in ("requests", "storage", "egress"):
        assert usd_of(many)[kind] >= usd_of(few)[kind] * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(some_members, amounts, st.floats(0, 1))
def test_members_pay_the_same_however_their_time_is_divided(
    members: list[Offer], running_s: float, share: float
) -> None:
    usd = usd_of(run_cost(members, running_s, share * running_s))
    bills = math.fsum(bill_usd(each, running_s) for each in members)
    assert usd["compute"] + usd["start-up"] + usd["starts"] == pytest.approx(bills, rel=1e-12, abs=1e-12)


def test_the_time_of_starting_is_a_term_of_its_own_and_billing_grains_hold_for_the_whole() -> None:
    member = offer(36.0, billing_grain_s=60.0, billing_minimum_s=300.0, usd_per_start=0.5)
    assert usd_of(run_cost([member] * 2, 100.0, 10.0)) == pytest.approx(
        {"compute": 2 * 2.9, "start-up": 2 * 0.1, "starts": 1.0, "requests": 0, "storage": 0, "egress": 0, "data": 0}
    )
    assert usd_of(run_cost([member], 301.0, 10.0))["compute"] == pytest.approx(3.6 - 0.1)


def test_one_s_own_machines_with_a_folder_are_free_and_every_term_is_there() -> None:
    own = offer(kind="owned", market="owned", platform="local", site="local")
    prices = prices_for([own], store_location("file:///home/me/run-7", ""))
    data = DataSet(num_bytes=1e12, num_objects=100)
    terms = run_cost([own] * 2, 1e5, 10.0, usage_of(1e5, site="local", data=data), prices)
    assert usd_of(terms) == dict.fromkeys(COST_KINDS, 0.0)


def test_more_is_started_than_runs_is_refused() -> None:
    with pytest.raises(PlanError, match=r"`startup_s` is 11.0; it must be between 0 and `running_s`, which is 10.0"):
        run_cost([FUNCTION], 10.0, 11.0)


# The papers' own sums


def test_funcpipe_6_an_iteration_costs_price_times_time_times_all_memory() -> None:
    """c_iter = P · t_iter · c_mem, with P the price of a GB for a second and c_mem the memory of d replicas."""
    usd_per_gb_s, num_replicas, iteration_s = 0.0000166667, 4, 12.345
    sizes_mb = [10240, 3072, 1024]
    members = [catalog_offer(f"aws.lambda.{size}") for size in sizes_mb] * num_replicas
    memory_gb = num_replicas * sum(sizes_mb) / 1024
    compute = usd_of(run_cost(members, iteration_s))["compute"]
    assert compute == pytest.approx(usd_per_gb_s * iteration_s * memory_gb, rel=1e-6)


def test_hydrozoa_a_worker_costs_51_cents_an_hour_and_sixteen_less_than_half_of_sagemaker_s() -> None:
    workers = [catalog_offer("azure.aci.k80")] * 16
    usd = total_usd(run_cost(workers, HOUR_S))
    assert usd / 16 == pytest.approx(0.512, abs=0.0005)
    assert usd < 0.5 * total_usd(run_cost([catalog_offer("aws.sagemaker.p2.xlarge")] * 16, HOUR_S))


def test_clouds_data_from_backblaze_costs_a_cent_per_gb_anywhere_and_only_once_with_a_cache() -> None:
    """The vision runs load 14.4 GB an hour and member: 0.144 dollars."""
    prices = prices_for([T4_US, T4_EU], "gcp.us-central1", data="backblaze")
    for site in (T4_US.site, T4_EU.site):
        loaded = RunUsage(data_moves=(Move(DATA_SITE, site, 14.4 * GB),))
        assert usd_of(run_cost([], 0.0, 0.0, loaded, prices))["data"] == pytest.approx(0.144)
    once = usage_of(10, site=T4_US.site, data=DataSet(num_bytes=14.4 * GB, epochs=5))
    every_epoch = usage_of(10, site=T4_US.site, data=DataSet(num_bytes=14.4 * GB, epochs=5, is_cached=False))
    assert [move.num_bytes for move in once.data_moves] == [2 * 14.4 * GB]
    assert [move.num_bytes for move in every_epoch.data_moves] == [5 * 2 * 14.4 * GB]


@pytest.mark.parametrize(("provider", "usd"), [("gcp", 4.329), ("azure", 1.882)])
def test_clouds_egress_of_four_continents_costs_what_section_5_says(provider: str, usd: float) -> None:
    """Of what a member sends, 6/20 goes to other continents and 6/20 to or from Oceania, 62.7 GB an hour in all."""
    home, far, oceania = {
        "gcp": ("us-central1", "europe-west1", "australia-southeast1"),
        "azure": ("eastus", "westeurope", "australiaeast"),
    }[provider]
    sent_gb = 62.73
    to_far = egress_usd_per_gb(Location(provider, home), Location(provider, far))
    to_oceania = egress_usd_per_gb(Location(provider, home), Location(provider, oceania))
    assert to_oceania == egress_usd_per_gb(Location(provider, oceania), Location(provider, home))
    assert sent_gb * 6 / 20 * (to_far + to_oceania) == pytest.approx(usd, abs=0.003)


def test_clouds_eight_t4_cost_177_a_million_samples_with_the_traffic_between_them() -> None:
    samples_per_s, num_samples = 261.9, 1e6
    running_s = num_samples / samples_per_s
    prices = prices_for([T4_US], "gcp.us-central1")
    traffic = RunUsage(moves=(Move(T4_US.site, T4_US.site, 24 * GB),))
    usd = total_usd(run_cost([T4_US] * 8, running_s, 0.0, traffic, prices))
    assert usd_per_million_samples(num_samples, usd) == pytest.approx(1.77, abs=0.01)
    assert samples_per_usd(num_samples, usd) == pytest.approx(1e6 / 1.77, rel=0.01)


def test_what_costs_nothing_trains_without_end_and_no_samples_have_no_price() -> None:
    assert samples_per_usd(1000, 0.0) == math.inf
    assert usd_per_million_samples(1000, 0.0) == 0.0
    with pytest.raises(PlanError, match="from 0 samples"):
        usd_per_million_samples(0, 1.0)


# What a run uses


def test_requests_of_steps_and_of_those_who_watch_are_all_charged() -> None:
    idle, busy = usage_of(0, step_s=1.0), usage_of(1000, step_s=1.0)
    sign_puts, sign_gets = (2 * 1000 * rate for rate in requests_per_s(2))
    measurement_puts = 2 * (num_writes(1000) - num_writes(0))
    expected_puts = 1000 * 6 + 1000 / rules.LEASE_HEARTBEAT_S + 1000 + sign_puts + measurement_puts
    assert busy.num_puts - idle.num_puts == pytest.approx(expected_puts)
    fence_looks = 1000 * (1 / rules.FENCE_FRESH_S + 1 / rules.FENCE_LOOK_S + 1 / rules.LEASE_HEARTBEAT_S)
    stop_looks = 1000 / rules.FENCE_LOOK_S
    looks = fence_looks + stop_looks + 1000 / rules.CHANGE_LOOK_S
    expected_gets = 1000 * 10 + 1000 * 3 / rules.EVENT_LOOK_S + 1000 + looks + sign_gets
    assert busy.num_gets - idle.num_gets == pytest.approx(expected_gets)
    lists = 1000 / rules.EVENT_LOOK_S + 1000 / rules.REQUEST_LOOK_S
    assert busy.num_lists - idle.num_lists == pytest.approx(lists)
    prices = prices_for([FUNCTION], S3)
    expected = busy.num_puts * 5e-6 + busy.num_gets * 4e-7 + busy.num_lists * 5e-6
    assert usd_of(run_cost([FUNCTION] * 2, 1000.0, 0.0, busy, prices))["requests"] == pytest.approx(expected)


def test_lists_are_charged_as_puts_unless_they_have_a_price_of_their_own() -> None:
    listed = RunUsage(num_lists=1000.0)
    assert usd_of(run_cost([], 0.0, 0.0, listed, prices_for([], S3)))["requests"] == pytest.approx(0.005)
    assert usd_of(run_cost([], 0.0, 0.0, listed, prices_for([], "backblaze")))["requests"] == pytest.approx(0.004)


def test_a_gb_that_lies_in_the_store_for_a_month_costs_its_price() -> None:
    month = RunUsage(stored_byte_s=GB * 730 * HOUR_S)
    assert usd_of(run_cost([], 0.0, 0.0, month, prices_for([], S3)))["storage"] == pytest.approx(0.023)


def test_messages_lie_in_the_store_for_two_steps_and_a_moment() -> None:
    assert usage_of(100, step_s=3.0).stored_byte_s == 100 * 2e6 * (2 * 3.0 + 2.0)


def test_checkpoints_are_written_by_all_replicas_together_and_old_ones_go() -> None:
    saved = Checkpoints(num_written=4, stage_bytes=(3 * GB,), weight_bytes=(GB,), keep=2)
    plain, usage = usage_of(100, step_s=10.0), usage_of(100, step_s=10.0, checkpoints=saved)
    moved = {(move.from_site, move.to_site): move.num_bytes for move in usage.moves}
    before = {(move.from_site, move.to_site): move.num_bytes for move in plain.moves}
    site = FUNCTION.site
    assert moved[site, STORE_SITE] - before[site, STORE_SITE] == pytest.approx(GB + 4 * 3 * GB)
    assert moved[STORE_SITE, site] - before[STORE_SITE, site] == pytest.approx(2 * GB)
    # every 250 s one; the first lies there for two of these, then 2, 2, 1 and 0
    stored = usage.stored_byte_s - plain.stored_byte_s
    assert stored == pytest.approx(GB * 2 * 250 + 3 * GB * 250 * (2 + 2 + 1 + 0))
    assert usage.num_puts > plain.num_puts
    assert usage.num_lists > plain.num_lists


@pytest.mark.parametrize(
    ("rule", "number"),
    [
        (CheckpointRule(), 1),
        (CheckpointRule(every_steps=30), 4),
        (CheckpointRule(every_steps=50), 2),
        (CheckpointRule(every_steps=1000), 1),
        (CheckpointRule(every_s=60.0), 4),
        (CheckpointRule(every_s=0.001), 100),
    ],
)
def test_a_rule_says_how_many_checkpoints_a_run_of_200_seconds_writes(rule: CheckpointRule, number: int) -> None:
    assert num_checkpoints(rule, 100, 200.0) == number


def test_only_first_and_last_stages_load_data() -> None:
    seats = {(replica, stage): SeatTraffic() for replica in range(2) for stage in range(3)}
    sites = {seat: f"site-{seat[1]}" for seat in seats}
    usage = run_usage(
        Traffic(seats, {}), sites, num_steps=1, step_s=1.0, running_s=1.0, data=DataSet(num_bytes=5.0, num_objects=7)
    )
    assert usage.data_moves == (Move(DATA_SITE, "site-0", 10.0), Move(DATA_SITE, "site-2", 10.0))
    assert usage.data_gets == 4 * 7


def test_connected_members_pay_for_what_passes_between_their_sites_only() -> None:
    seats = {(0, 0): SeatTraffic(1000, 10), (1, 0): SeatTraffic(10, 1000)}
    traffic = Traffic(seats, {((0, 0), (1, 0)): 1000, ((1, 0), (0, 0)): 10})
    sites = {(0, 0): T4_US.site, (1, 0): T4_EU.site}
    usage = run_usage(traffic, sites, num_steps=10**6, step_s=0.1, running_s=0.0)
    assert usage.moves == (Move(T4_EU.site, T4_US.site, 10e6), Move(T4_US.site, T4_EU.site, 1e9))
    assert usage.stored_byte_s == 0
    prices = prices_for([T4_US, T4_EU], "gcp.us-central1")
    assert usd_of(run_cost([], 0.0, 0.0, usage, prices))["egress"] == pytest.approx(1.01 * 0.08)


def test_a_usage_below_zero_is_refused() -> None:
    with pytest.raises(PlanError, match="`num_gets` of a run's usage is -1"):
        RunUsage(num_gets=-1.0)
    with pytest.raises(PlanError, match="`num_bytes` of a run's usage is nan"):
        RunUsage(moves=(Move("a", "b", math.nan),))
    with pytest.raises(PlanError, match="`num_written` is -1"):
        Checkpoints(num_written=-1, stage_bytes=(), weight_bytes=())
    with pytest.raises(PlanError, match="same stages"):
        Checkpoints(num_written=1, stage_bytes=(1.0,), weight_bytes=())
    with pytest.raises(PlanError, match="`epochs` 0"):
        DataSet(num_bytes=1.0, epochs=0)


# Prices that hold, and prices that are missing


def test_between_a_store_and_members_of_its_own_region_traffic_is_free_for_every_offer() -> None:
    with_store = {(row.provider, row.region) for row in storage_prices()}
    found = [each for each in offers() if location_of(each) in with_store]
    assert {location_of(each).provider for each in found} == {"aws", "azure", "gcp"}
    for each in found:
        prices = prices_for([each], str(location_of(each)))
        assert prices.usd_per_gb(each.site, STORE_SITE) == prices.usd_per_gb(STORE_SITE, each.site) == 0


def test_every_offer_has_prices_with_a_store_of_another_provider() -> None:
    for each in offers():
        other = "gcp.us-central1" if location_of(each).provider != "gcp" else S3
        prices = prices_for([each], other, data="backblaze")
        known = {"aws": 0.09, "azure": 0.087, "gcp": 0.12, "lambdalabs": 0.0, "alibaba": 0.123}
        expected = known[location_of(each).provider]
        assert prices.usd_per_gb(each.site, STORE_SITE) == expected
        assert prices.usd_per_gb(DATA_SITE, each.site) == 0.01


@pytest.mark.parametrize(
    ("source", "target", "usd_per_gb"),
    [
        ("gcp.us-central1", "gcp.us-central1", 0.01),
        ("gcp.us-central1", "gcp.us-west1", 0.01),
        ("gcp.us-central1", "gcp.europe-west1", 0.08),
        ("gcp.europe-west1", "gcp.australia-southeast1", 0.15),
        ("gcp.australia-southeast1", "gcp.asia-east1", 0.15),
        ("azure.eastus", "azure.us-south-2", 0.02),
        ("azure.eastus", "azure.eastus", 0.0),
        ("aws.us-east-1", "azure.eastus", 0.09),
        ("lambdalabs.us-west", "aws.us-east-1", 0.0),
        ("gcp.us-west1", "owned", 0.12),
        ("owned", "gcp.us-west1", 0.0),
        ("owned", "owned", 0.0),
    ],
)
def test_the_narrowest_price_of_traffic_holds(source: str, target: str, usd_per_gb: float) -> None:
    assert egress_usd_per_gb(Location.parse(source), Location.parse(target)) == usd_per_gb


def test_a_store_without_a_price_is_refused_with_the_row_that_is_missing() -> None:
    with pytest.raises(
        PlanError,
        match=r"no price is known for an object store at aws.eu-west-1; storage.csv of the catalog has aws.us-east-1, "
        r".*add a row with `provider` aws and `region` eu-west-1",
    ):
        prices_for([FUNCTION], "aws.eu-west-1")
    with pytest.raises(PlanError, match=r"at lambdalabs.us-west; storage.csv .* azure.eastus"):
        prices_for([FUNCTION], "lambdalabs.us-west")


def test_traffic_without_a_price_is_refused_once_bytes_move_there() -> None:
    made = offer(name="made.offer", region="mars-1", site="made.mars")
    prices = prices_for([made, FUNCTION], S3)
    assert run_cost([made], 1.0, 0.0, NO_USAGE, prices)
    assert run_cost([made], 1.0, 0.0, RunUsage(moves=(Move("made.mars", STORE_SITE, 0.0),)), prices)
    with pytest.raises(
        PlanError,
        match=r"traffic from made.mars-1 to aws.us-east-1; add a row with `provider` made, `source_zone` mars-1 and "
        "`target_zone` aws to egress.csv",
    ):
        run_cost([made], 1.0, 0.0, RunUsage(moves=(Move("made.mars", STORE_SITE, 1.0),)), prices)
    with pytest.raises(PlanError, match="no price was looked up for traffic from store to elsewhere; give the offers"):
        run_cost([made], 1.0, 0.0, RunUsage(moves=(Move(STORE_SITE, "elsewhere", 1.0),)), prices)


def test_a_region_of_which_nobody_knows_the_continent_is_refused() -> None:
    with pytest.raises(PlanError, match=r"does not know that of gcp.mars-1; add a row .* to regions.csv"):
        egress_usd_per_gb(Location("gcp", "us-west1"), Location("gcp", "mars-1"))


def test_a_store_s_url_tells_its_provider() -> None:
    assert store_location("gs://bucket/run", "us-west1") == "gcp.us-west1"
    assert store_location("az://container/run", "eastus") == "azure.eastus"
    with pytest.raises(PlanError, match="depend on the region"):
        store_location("s3://bucket/run", "")
    with pytest.raises(PlanError, match="does not name a provider"):
        store_location("ftp://host/run", "us-east-1")
    with pytest.raises(PlanError, match=r"is not a location; write PROVIDER.REGION"):
        prices_for([], "aws.")


def test_nothing_is_charged_where_all_is_free() -> None:
    assert FREE.usd_per_gb("anywhere", "else") == 0


# Wrong units


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"usd_per_put": 0.005}, "`usd_per_put` is 0.005; it must be at most 0.0001: give dollars for one request"),
        ({"usd_per_put": 5.0}, "`usd_per_put` is 5.0"),
        ({"usd_per_get": 0.0004}, "`usd_per_get` is 0.0004; it must be at most 1e-05: give dollars for one request"),
        ({"usd_per_list": 0.005}, "`usd_per_list` is 0.005"),
        ({"usd_per_gb_month": 2.3}, "`usd_per_gb_month` is 2.3; it must be at most 1: give dollars, not cents"),
        ({"usd_per_gb_month": 23.0}, "not for a year or a TB"),
        ({"usd_per_gb_month": math.nan}, "must be a finite number"),
        ({"usd_per_get": -1e-7}, "must be at least 0"),
    ],
)
def test_a_price_of_storage_in_another_unit_is_refused(changed: dict[str, float], message: str) -> None:
    right: dict[str, Any] = {"usd_per_put": 5e-6, "usd_per_get": 4e-7, "usd_per_gb_month": 0.023}
    StoragePrice(provider="p", service="s", region="r", source="s", date="2024-05", **right)
    with pytest.raises(ValueError, match=message):
        StoragePrice(provider="p", service="s", region="r", source="s", date="2024-05", **(right | changed))


@pytest.mark.parametrize("usd_per_gb", [1.0, 9.0, 90.0])
def test_a_price_of_traffic_in_cents_or_for_a_tb_is_refused(usd_per_gb: float) -> None:
    with pytest.raises(ValueError, match=r"it must be at most 0.5: give dollars, not cents, for one GB, not for a TB"):
        EgressPrice(provider="p", source_zone="us", target_zone="eu", usd_per_gb=usd_per_gb, source="s", date="2024-05")


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("aws.lambda.1769", {"usd_per_hour": 10.365}, "usd_per_hour"),
        ("azure.aci.k80", {"usd_per_hour": 51.21}, "usd_per_hour"),
        ("aws.ec2.p3.2xlarge", {"usd_per_hour": 306.0}, "usd_per_hour"),
        ("aws.ec2.c5.4xlarge", {"usd_per_hour": 496.4}, "usd_per_hour"),
        ("aws.lambda.1769", {"usd_per_start": 0.2}, "usd_per_start"),
    ],
)
def test_a_row_of_the_catalog_with_cents_or_the_price_of_a_month_is_refused_by_its_line(
    name: str, changed: dict[str, float], message: str
) -> None:
    given = catalog_offer(name)
    columns = Offer.__struct_fields__
    values = {column: getattr(given, column) for column in columns} | changed

    def row(cells: dict[str, Any]) -> str:
        texts = ["" if cells[column] is None else str(cells[column]).replace(",", ";") for column in columns]
        return ",".join(text.lower() if text in ("True", "False") else text for text in texts)

    with pytest.raises(
        CatalogError, match=rf"offers.csv, line 2: `{message}` of {name} is .* at most .*: give dollars"
    ):
        read_rows(f"{','.join(columns)}\n{row(values)}\n", "offers.csv", Offer, ("name",), check_offer)

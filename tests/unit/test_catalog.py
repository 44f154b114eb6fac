"""The price lists load completely, agree with the papers' own arithmetic, and refuse what they do not understand."""

import re

import pytest

from zooid.catalog import egress_prices, links, local_offer, offer, offers, storage_prices
from zooid.catalog.csv_rows import read_rows
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.core.errors import CatalogError, InputError
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import EgressPrice, Offer, StoragePrice

PLATFORMS = {
    "aws_lambda",
    "aws_microvm",
    "azure_container",
    "azure_job",
    "cloud_run",
    "skypilot",
    "alibaba_fc",
    "local",
}
FUNCTION_SIZES_MB = [512, 1024, 1769, 2048, 3072, 4096, 6144, 8192, 10240]
GBIT_PER_S = 1e9 / 8


def link(from_site: str, to_site: str) -> Link:
    return next(row for row in links() if (row.from_site, row.to_site) == (from_site, to_site))


def egress_usd_per_gb(provider: str, source_zone: str, target_zone: str) -> float:
    wanted = (provider, source_zone, target_zone)
    return next(row.usd_per_gb for row in egress_prices() if (row.provider, row.source_zone, row.target_zone) == wanted)


def usd_per_million_samples(name: str, count: int, samples_per_s: float) -> float:
    return count * offer(name).usd_per_hour / 3600 / samples_per_s * 1e6


# The files


def test_every_row_loads_with_its_source_and_date() -> None:
    rows: list[Offer | EgressPrice | StoragePrice | Link] = [*offers(), *egress_prices(), *storage_prices(), *links()]
    assert min(map(len, (offers(), egress_prices(), storage_prices(), links()))) > 0
    for row in rows:
        assert row.source.strip() == row.source != ""
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-[0-3]\d)?", row.date), row


def test_an_empty_cell_means_the_default() -> None:
    container = offer("azure.aci.k80")
    assert (container.lifetime_s, container.startup_s, container.bandwidth_bytes_per_s) == (None, None, None)
    assert (container.usd_per_start, container.billing_minimum_s, container.accepts_connections) == (0, 0, True)


def test_tables_are_read_once() -> None:
    assert offers() is offers()
    assert links() is links()


def test_offers_have_unique_dotted_names_and_a_platform_that_can_start_them() -> None:
    names = [each.name for each in offers()]
    assert len(set(names)) == len(names)
    for each in offers():
        assert re.fullmatch(r"[a-z0-9]+(\.[a-z0-9_-]+)+", each.name)
        assert each.platform in PLATFORMS
        assert (each.market == "spot") == (".spot" in each.name)
        assert each.usd_per_hour > 0
        assert (each.gpu_memory_bytes > 0) == (each.num_gpus > 0)


def test_every_provider_of_an_offer_has_an_egress_price_for_anywhere() -> None:
    providers = {each.name.split(".")[0] for each in offers()}
    assert providers <= {row.provider for row in egress_prices() if row.target_zone == "anywhere"}


def test_links_join_sites_where_something_can_be_rented() -> None:
    sites = {each.site for each in offers()} | {STORE_SITE}
    for row in links():
        assert row.to_site in sites
        assert row.from_site in sites or row.from_site.startswith("onprem.")
        assert row.stream_bytes_per_s is None or row.stream_bytes_per_s <= row.bandwidth_bytes_per_s


# The papers' arithmetic


def test_functions_are_priced_by_memory_and_a_10_gb_function_costs_60_cents_an_hour() -> None:
    assert offer("aws.lambda.10240").usd_per_hour == pytest.approx(0.60, rel=0.01)
    for size_mb in FUNCTION_SIZES_MB:
        function = offer(f"aws.lambda.{size_mb}")
        assert function.memory_bytes == size_mb * 2**20
        assert function.usd_per_hour == pytest.approx(size_mb / 1024 * 0.06, rel=1e-4)
        assert function.vcpus == pytest.approx(size_mb / 1769, rel=1e-3)


def test_functions_keep_their_limits() -> None:
    for function in (each for each in offers() if each.platform == "aws_lambda"):
        assert function.lifetime_s == 15 * 60
        assert function.billing_grain_s == 0.001
        assert function.usd_per_start == pytest.approx(0.20 / 1e6)
        assert not function.accepts_connections


def test_functions_of_alibaba_are_planned_and_priced_by_vcpus_and_memory_and_train_nowhere() -> None:
    largest = offer("alibaba.fc.16x32")
    assert largest.usd_per_hour == pytest.approx(3600 * 0.00002 * (16 * 1 + 32 * 0.15))
    assert largest.lifetime_s == 24 * 3600
    assert not largest.accepts_connections
    with pytest.raises(
        InputError, match=r"zooid starts no members on Alibaba Function Compute; alibaba.fc.16x32 can be "
    ):
        rented_offer("alibaba.fc.16x32")


def test_a_hydrozoa_worker_costs_what_its_parts_cost() -> None:
    worker = offer("azure.aci.k80")
    assert (worker.vcpus, worker.memory_bytes, worker.num_gpus) == (4, 6_000_000_000, 1)
    assert worker.usd_per_hour == pytest.approx(0.36 + 4 * 0.03165 + 6 * 0.00425)
    assert worker.usd_per_hour == pytest.approx(0.512, abs=0.0005)
    assert worker.accepts_connections


@pytest.mark.parametrize(
    ("name", "count", "usd_per_hour"),
    [
        ("azure.vm.nc6", 16, 14.40),
        ("aws.sagemaker.p2.xlarge", 16, 18.00),
        ("azure.vm.nc6s_v3", 4, 12.24),
        ("aws.sagemaker.p3.8xlarge", 1, 14.69),
    ],
)
def test_the_clusters_of_hydrozoa_cost_what_its_table_6_says(name: str, count: int, usd_per_hour: float) -> None:
    assert count * offer(name).usd_per_hour == pytest.approx(usd_per_hour)


@pytest.mark.parametrize(
    ("fleet", "seconds", "usd"),
    [
        ({"p3.8xlarge": 4, "g4dn.8xlarge": 4}, 259, 1.26),
        ({"p3.8xlarge": 4, "g4dn.8xlarge": 8}, 260, 1.47),
        ({"p3.8xlarge": 1, "g3.8xlarge": 8, "g4dn.8xlarge": 8}, 787, 3.26),
        ({"p3.8xlarge": 4, "g3.8xlarge": 8, "g4dn.8xlarge": 8}, 381, 2.74),
    ],
)
def test_the_fleets_of_srifty_cost_what_its_cases_6_and_7_say(
    fleet: dict[str, int], seconds: float, usd: float
) -> None:
    usd_per_hour = sum(count * offer(f"aws.ec2.{kind}.spot").usd_per_hour for kind, count in fleet.items())
    assert usd_per_hour * seconds / 3600 == pytest.approx(usd, abs=0.015)


@pytest.mark.parametrize(
    ("name", "count", "samples_per_s", "usd"),
    [
        ("gcp.dgx-2.spot", 1, 413, 4.24),
        ("lambdalabs.a10", 8, 620.6, 2.15),
        ("lambdalabs.a10", 1, 185, 0.90),
        ("gcp.t4.spot.us-central1", 1, 80, 0.625),
    ],
)
def test_a_million_samples_cost_what_the_clouds_paper_says(
    name: str, count: int, samples_per_s: float, usd: float
) -> None:
    assert usd_per_million_samples(name, count, samples_per_s) == pytest.approx(usd, abs=0.005)


def test_eight_t4_leave_room_for_the_egress_in_the_papers_price() -> None:
    machines_usd = usd_per_million_samples("gcp.t4.spot.us-central1", 8, 261.9)
    assert machines_usd == pytest.approx(1.53, abs=0.005)
    assert machines_usd < 1.77, "the paper's price of a million samples holds 0.24 of traffic between the machines"


@pytest.mark.parametrize(
    ("spot", "on_demand", "saving"),
    [
        ("gcp.t4.spot.us-west1", "gcp.t4.us-west1", 0.69),
        ("aws.ec2.g4dn.2xlarge.spot", "aws.ec2.g4dn.2xlarge", 0.51),
        ("azure.vm.nc4as_t4_v3.spot", "azure.vm.nc4as_t4_v3", 0.73),
    ],
)
def test_spot_saves_what_the_clouds_paper_says(spot: str, on_demand: str, saving: float) -> None:
    assert 1 - offer(spot).usd_per_hour / offer(on_demand).usd_per_hour == pytest.approx(saving, abs=0.006)


def test_one_stream_across_the_atlantic_is_slow_and_many_are_not() -> None:
    atlantic = link("gcp.europe-west1", "gcp.us-central1")
    assert atlantic.stream_bytes_per_s == pytest.approx(0.21 * GBIT_PER_S)
    assert atlantic.bandwidth_bytes_per_s == pytest.approx(6 * GBIT_PER_S)
    assert atlantic.rtt_s == pytest.approx(0.103, abs=0.001)


def test_a_function_reaches_the_store_at_70_mb_per_second() -> None:
    for row in (link("aws.us-east-1.lambda", STORE_SITE), link(STORE_SITE, "aws.us-east-1.lambda")):
        assert (row.bandwidth_bytes_per_s, row.rtt_s) == (70e6, 0.04)
    assert offer("aws.lambda.10240").site == "aws.us-east-1.lambda"


def test_traffic_to_oceania_is_the_dearest() -> None:
    assert egress_usd_per_gb("gcp", "anywhere", "oce") == max(row.usd_per_gb for row in egress_prices()) == 0.15
    assert egress_usd_per_gb("aws", "anywhere", "anywhere") == 0.02
    assert egress_usd_per_gb("azure", "anywhere", "same_region") == 0
    assert egress_usd_per_gb("lambdalabs", "anywhere", "anywhere") == 0


# Refusals


def test_an_unknown_offer_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(CatalogError, match=r"no offer 'aws.lamda.1769' in the catalog; did you mean aws.lambda.1769"):
        offer("aws.lamda.1769")
    with pytest.raises(CatalogError, match=r"no offer 'zzz' in the catalog; the catalog holds aws.lambda.512, "):
        offer("zzz")


HEADER = "provider,source_zone,target_zone,usd_per_gb,source,date\n"
GOOD = 'p,us,eu,0.02,"a paper, Table 1",2024-05\n'


def read(text: str) -> tuple[EgressPrice, ...]:
    return read_rows(text, "egress.csv", EgressPrice, ("provider", "source_zone", "target_zone"))


def test_columns_may_stand_in_any_order() -> None:
    shuffled = 'date,usd_per_gb,provider,source,source_zone,target_zone\n2024-05,0.02,p,"a paper, Table 1",us,eu\n'
    assert read(HEADER + GOOD) == read(shuffled)
    assert read(HEADER) == ()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "missing `provider`, `source_zone`"),
        (HEADER.replace("usd_per_gb", "eur_per_gb"), "unknown `eur_per_gb`; missing `usd_per_gb`"),
        (HEADER.replace(",date", ""), "missing `date`"),
        (HEADER.replace(",date", ",date,date"), "repeated `date`"),
    ],
)
def test_columns_that_do_not_fit_are_refused(header: str, message: str) -> None:
    with pytest.raises(CatalogError, match=f"egress.csv, line 1: columns are {message}.* the fields of EgressPrice"):
        read(header)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("p,us,asia,0.02,a paper\n", "has 5 cells; the header has 6"),
        ("p,us,asia,0.02,a paper,2024-05,x\n", "has 7 cells; the header has 6"),
        ("\n", "has 0 cells"),
        ("p,us,asia,cheap,a paper,2024-05\n", r"is not a valid EgressPrice: Expected `float`.* `\$.usd_per_gb`"),
        ("p,us,asia, 0.02,a paper,2024-05\n", "is not a valid EgressPrice: Expected `float`"),
        ("p,us,asia,-1,a paper,2024-05\n", "is not a valid EgressPrice: `usd_per_gb` is -1"),
        ("p,us,asia,inf,a paper,2024-05\n", "`usd_per_gb` is inf; it must be a finite number"),
        ("p,us,asia,,a paper,2024-05\n", "missing required field `usd_per_gb`"),
        ("p,us,asia,0.02,,2024-05\n", "missing required field `source`"),
        ("p,us,asia,0.02,a paper,\n", "missing required field `date`"),
        (GOOD, "`provider` 'p' and `source_zone` 'us' and `target_zone` 'eu' is already on line 2"),
        ('p,us,asia,0.02,"a paper"!,2024-05\n', "is not CSV"),
    ],
)
def test_a_malformed_row_is_refused_by_its_line(row: str, message: str) -> None:
    with pytest.raises(CatalogError, match=rf"egress.csv, line 3\b.* {message}"):
        read(HEADER + GOOD + row)


# This machine


def test_this_machine_is_an_offer_that_costs_nothing() -> None:
    local = local_offer(memory_bytes=8 * 2**30, date="2024-05-01")
    assert (local.name, local.platform, local.kind, local.market) == ("local", "local", "owned", "owned")
    assert (local.site, local.vcpus, local.memory_bytes, local.usd_per_hour) == ("local", 1, 8 * 2**30, 0)
    assert (local.source, local.date) == ("this machine", "2024-05-01")


def test_a_machine_of_nothing_is_refused() -> None:
    with pytest.raises(CatalogError, match="`memory_bytes` of this machine is 0"):
        local_offer(memory_bytes=0, date="2024-05-01")

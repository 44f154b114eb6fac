"""Google's SKUs: every SKU is kept or named, and the prices of machines are the sums of those of their parts."""

import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zooid.catalog.importers import ImportedPrices
from zooid.catalog.importers.google_hosts import google_hosts
from zooid.catalog.importers.google_machines import google_machines
from zooid.catalog.importers.google_skus import read_google_skus
from zooid.catalog.machine_prices import MachinePrice
from zooid.core.errors import CatalogError

DATE = "2026-08-22"
IOWA = ("us-central1",)


def sku(
    description: str,
    usd: float,
    *regions: str,
    usage: str = "",
    family: str = "Compute",
    unit: str = "",
    currency: str = "USD",
    **fields: object,
) -> dict[str, object]:
    """Return a SKU in the layout of the API, with its usage and unit as they go with its description."""
    usage = usage or ("Preemptible" if "Preemptible" in description else "OnDemand")
    unit = unit or ("GiBy.h" if " Ram " in description else "h")
    units, nanos = divmod(round(usd * 10**9), 10**9)
    money = {"currencyCode": currency, "units": str(units), "nanos": nanos}
    expression = {
        "usageUnit": unit,
        "displayQuantity": 1,
        "tieredRates": [{"startUsageAmount": 0, "unitPrice": money}],
        "usageUnitDescription": "hour",
        "baseUnit": "s",
    }
    content: dict[str, object] = {
        "name": "services/6F81-5844-456A/skus/0001-0002-0003",
        "skuId": "0001-0002-0003",
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": family,
            "resourceGroup": "CPU",
            "usageType": usage,
        },
        "serviceRegions": list(regions or IOWA),
        "pricingInfo": [{"summary": "", "pricingExpression": expression, "currencyConversionRate": 1}],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "MULTI_REGIONAL", "regions": list(regions or IOWA)},
    }
    return content | fields


def e2(usd: float = 0.02181159, *regions: str) -> dict[str, object]:
    return sku("E2 Instance Core running in Americas", usd, *regions)


def e2_ram(usd: float = 0.00292353, *regions: str) -> dict[str, object]:
    return sku("E2 Instance Ram running in Americas", usd, *regions)


def page(skus: Sequence[object]) -> dict[str, object]:
    return {"skus": skus, "nextPageToken": ""}


def read_text(folder: Path, text: str) -> ImportedPrices:
    file = folder / "google.json"
    file.write_text(text)
    return read_google_skus(file, DATE)


def read(folder: Path, *skus: object) -> ImportedPrices:
    return read_text(folder, json.dumps(page(skus)))


def named(imported: ImportedPrices) -> dict[str, float]:
    return {offer.name.removeprefix("gcp."): round(offer.usd_per_hour, 9) for offer in imported.prices.offers()}


def machine(imported: ImportedPrices, instance_type: str) -> MachinePrice:
    [found] = [machine for machine in imported.prices.machines if machine.instance_type == instance_type]
    return found


def test_a_machine_costs_its_cores_and_its_memory(tmp_path: Path) -> None:
    """The prices are Google's for Iowa in 2025."""
    imported = read(
        tmp_path,
        e2(),
        e2_ram(),
        sku("Spot Preemptible C3 Instance Core running in Americas", 0.00513),
        sku("Spot Preemptible C3 Instance Ram running in Americas", 0.000687),
    )
    prices = named(imported)
    assert prices["us-central1.e2-standard-2"] == 0.06701142  # 2 × 0.02181159 + 8 × 0.00292353
    assert prices["us-central1.e2-standard-32"] == 1.07218272  # 32 × 0.02181159 + 128 × 0.00292353
    assert prices["us-central1.c3-standard-176.spot"] == 1.386528  # 176 × 0.00513 + 704 × 0.000687
    assert len(prices) == 5 + 6
    assert (imported.num_kept, imported.rows_left_out) == (4, ())
    assert (imported.prices.provider, imported.prices.date) == ("gcp", DATE)


def test_the_sum_is_what_google_lists_for_the_machine(tmp_path: Path) -> None:
    """Google lists a2-highgpu-1g in Iowa with 3.673385 dollars."""
    imported = read(
        tmp_path,
        sku("Nvidia Tesla A100 GPU running in Americas", 2.933908),
        sku("A2 Instance Ram running in Americas", 0.004237),
        sku("A2 Instance Core running in Americas", 0.031611),
    )
    assert named(imported)["us-central1.a2-highgpu-1g"] == 3.673385  # 12 × 0.031611 + 85 × 0.004237 + 2.933908


def test_memory_may_be_a_part_of_a_gib(tmp_path: Path) -> None:
    imported = read(
        tmp_path,
        sku("N1 Predefined Instance Core running in Americas", 0.03),
        sku("N1 Predefined Instance Ram running in Americas", 0.004),
    )
    assert named(imported)["us-central1.n1-standard-1"] == 0.045  # 0.03 + 3.75 × 0.004
    assert machine(imported, "n1-standard-1").memory_bytes == 3.75 * 2**30


def test_accelerators_join_machines_on_demand_and_spot(tmp_path: Path) -> None:
    """Machines that always have accelerators are not listed without them."""
    imported = read(
        tmp_path,
        sku("N1 Predefined Instance Core running in Americas", 0.03),
        sku("N1 Predefined Instance Ram running in Americas", 0.004),
        sku("Nvidia Tesla T4 GPU running in Americas", 0.35),
        sku("Spot Preemptible N1 Predefined Instance Core running in Americas", 0.01),
        sku("Spot Preemptible N1 Predefined Instance Ram running in Americas", 0.001),
        sku("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", 0.14),
        sku("A2 Instance Core running in Americas", 0.03),
        sku("A2 Instance Ram running in Americas", 0.004),
        sku("Nvidia Tesla A100 80GB GPU running in Americas", 4),
    )
    prices = named(imported)
    assert prices["us-central1.n1-standard-8"] == 0.36  # 8 × 0.03 + 30 × 0.004
    assert prices["us-central1.n1-standard-8.1xt4"] == 0.71
    assert prices["us-central1.n1-standard-8.spot"] == 0.11  # 8 × 0.01 + 30 × 0.001
    assert prices["us-central1.n1-standard-8.1xt4.spot"] == 0.25
    assert prices["us-central1.n1-standard-32.4xt4"] == 2.84  # 32 × 0.03 + 120 × 0.004 + 4 × 0.35
    assert prices["us-central1.a2-ultragpu-2g"] == 10.08  # 24 × 0.03 + 340 × 0.004 + 2 × 4
    assert "us-central1.a2-highgpu-1g" not in prices
    assert imported.rows_left_out == ()
    a100 = machine(imported, "a2-ultragpu-2g")
    assert (a100.vcpus, a100.memory_bytes, a100.gpu, a100.num_gpus) == (24, 340 * 2**30, "A100-80GB", 2)
    assert a100.gpu_memory_bytes == 80 * 10**9
    assert a100.usd_per_hour == pytest.approx(10.08)
    assert a100.spot_usd_per_hour is None


def test_the_three_kinds_of_a3_machines_have_prices_of_their_own(tmp_path: Path) -> None:
    imported = read(
        tmp_path,
        sku("A3 Instance Core running in Americas", 0.03),
        sku("A3 Instance Ram running in Americas", 0.003),
        sku("Nvidia H100 80GB GPU running in Americas", 10),
        sku("A3Plus Instance Core running in Americas", 0.026924),
        sku("A3Plus Instance Ram running in Americas", 0.002344),
        sku("Nvidia H100 80GB Plus GPU running in Americas", 10.344276),
        sku("A3Ultra Instance Core running in Americas", 0.025),
        sku("A3Ultra Instance Ram running in Americas", 0.002),
        sku("H200 141GB GPU running in Americas", 9),
    )
    assert named(imported) == {
        "us-central1.a3-highgpu-1g": 11.482,  # 26 × 0.03 + 234 × 0.003 + 10
        "us-central1.a3-highgpu-2g": 22.964,
        "us-central1.a3-highgpu-4g": 45.928,
        "us-central1.a3-highgpu-8g": 91.856,
        "us-central1.a3-megagpu-8g": 92.742368,  # 208 × 0.026924 + 1872 × 0.002344 + 8 × 10.344276
        "us-central1.a3-ultragpu-8g": 83.504,  # 224 × 0.025 + 2952 × 0.002 + 8 × 9
    }
    assert machine(imported, "a3-megagpu-8g").gpu == "H100-MEGA"
    assert imported.num_kept == 9


def test_an_accelerator_of_a4_costs_what_the_whole_machine_does(tmp_path: Path) -> None:
    """Google calls its spot price a price on demand."""
    imported = read(
        tmp_path,
        sku("A4 Nvidia B200 (1 gpu slice) running in Americas", 16.11),
        sku("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", 4.9542, usage="OnDemand"),
    )
    assert named(imported) == {"us-central1.a4-highgpu-8g": 128.88, "us-central1.a4-highgpu-8g.spot": 39.6336}
    assert (machine(imported, "a4-highgpu-8g").gpu, machine(imported, "a4-highgpu-8g").num_gpus) == ("B200", 8)


@pytest.mark.parametrize(
    ("series", "gpu", "instance_type", "usd"),
    [
        ("N1 Predefined Instance", "Nvidia Tesla V100 GPU", "n1-standard-64", 14.4),  # 64 × 0.01 + 240 × 0.024 + 8
        ("N1 Predefined Instance", "Nvidia Tesla P100 GPU", "n1-standard-32", 7.2),
        ("N1 Predefined Instance", "Nvidia Tesla P4 GPU", "n1-standard-32", 7.2),
        ("A2 Instance", "Nvidia Tesla A100 GPU", "a2-megagpu-16g", 49.6),  # 96 × 0.01 + 1360 × 0.024 + 16
        ("G2 Instance", "Nvidia L4 GPU", "g2-standard-96", 18.176),  # 96 × 0.01 + 384 × 0.024 + 8
        ("G4 Instance", "RTX 6000 96GB", "g4-standard-384", 46.4),  # 384 × 0.01 + 1440 × 0.024 + 8
        ("A3Plus Instance", "Nvidia H100 80GB Mega GPU", "a3-megagpu-8g", 55.008),
        ("A3Plus Instance", "Nvidia H100 Mega 80GB GPU", "a3-megagpu-8g", 55.008),
    ],
)
def test_every_accelerator_has_its_machine(
    tmp_path: Path, series: str, gpu: str, instance_type: str, usd: float
) -> None:
    imported = read(
        tmp_path,
        sku(f"{series} Core running in Tokyo", 0.01),
        sku(f"{series} Ram running in Tokyo", 0.024),
        sku(f"{gpu} running in Tokyo", 1),
    )
    with_most = [machine for machine in imported.prices.machines if machine.instance_type == instance_type][-1]
    assert with_most.gpu
    assert with_most.usd_per_hour == pytest.approx(usd)
    assert imported.num_kept == 3


def test_every_host_of_accelerators_has_a_size() -> None:
    sizes = {machine.instance_type: machine for machine in google_machines()}
    assert {host.instance_type for host in google_hosts()} <= set(sizes)
    # What the names say: n2-standard-8 has 8 vCPUs.
    assert all(
        size.vcpus == int(size.instance_type.rpartition("-")[2])
        for size in sizes.values()
        if "-standard-" in size.instance_type
    )


def test_a_machine_is_listed_where_all_its_parts_have_a_price(tmp_path: Path) -> None:
    imported = read(
        tmp_path,
        e2(0.02, "us-central1", "us-east1", "us-west1"),
        e2_ram(0.003, "us-east1"),
        e2_ram(0.004, "us-west1", "asia-east1"),
        sku("N2 Instance Core running in Americas", 0.03),
        sku("N2 Instance Ram running in Finland", 0.004, "europe-north1", "europe-north1"),
    )
    prices = {name: usd for name, usd in named(imported).items() if name.endswith("-2")}
    assert prices == {"us-east1.e2-standard-2": 0.064, "us-west1.e2-standard-2": 0.072}
    reason = "no machine can be priced with it, because another of its parts has no price"
    assert [str(row) for row in imported.rows_left_out] == [
        f"line 4: {reason} (n2 core)",
        f"line 5: {reason} (n2 memory)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(page([e2(), e2_ram()])),
        json.dumps([page([e2()]), page([e2_ram()])]),
        "\n".join(json.dumps(page([each])) for each in (e2(), e2_ram())),
        "".join(json.dumps(page([each]), indent=2) for each in (e2(), e2_ram())),
    ],
    ids=["one page", "a list of pages", "JSON lines", "pages one after another"],
)
def test_pages_are_read_as_users_save_them(tmp_path: Path, text: str) -> None:
    imported = read_text(tmp_path, text)
    assert imported.num_kept == 2
    assert named(imported)["us-central1.e2-standard-2"] == 0.06701142


def test_the_latest_price_counts(tmp_path: Path) -> None:
    """The API gives prices in the order of time."""
    core = e2() | {"pricingInfo": [*_infos(e2(7)), *_infos(e2(0.02))]}
    assert named(read(tmp_path, core, e2_ram(0.01)))["us-central1.e2-standard-2"] == 0.12  # 2 × 0.02 + 8 × 0.01


def test_a_part_of_an_amount_may_be_left_out(tmp_path: Path) -> None:
    core, ram = e2(1), e2_ram(0.01)
    del _rates(core)[0]["unitPrice"]["nanos"], _rates(ram)[0]["unitPrice"]["units"]
    assert named(read(tmp_path, core, ram))["us-central1.e2-standard-2"] == 2.08  # 2 × 1 + 8 × 0.01


def _infos(content: dict[str, Any]) -> list[dict[str, Any]]:
    infos: list[dict[str, Any]] = content["pricingInfo"]
    return infos


def _rates(content: dict[str, Any]) -> list[dict[str, Any]]:
    rates: list[dict[str, Any]] = _infos(content)[-1]["pricingExpression"]["tieredRates"]
    return rates


@pytest.mark.parametrize(
    ("content", "reason", "detail"),
    [
        (sku("Storage PD Capacity", 1, family="Storage"), "it is of another product", "Storage"),
        (sku("Licensing Fee for Windows", 1, family="License"), "it is of another product", "License"),
        (
            sku("Commitment v1: E2 Cpu in Iowa for 1 Year", 1, usage="Commit1Yr"),
            "it is the price of a commit",
            "Commit1Y",
        ),
        (sku("Commitment v1: E2 Cpu in Iowa for 3 Years", 1), "it is the price of a commitment", "Commitment v1: E2"),
        (sku("E2 Custom Instance Core running in Iowa", 1, usage="CmtCudPremium"), "it is neither a price", "CmtCud"),
        (sku("Custom Instance Core running in Americas", 0.03), "it is a part of custom machines", "Custom Instance"),
        (sku("N2 Custom Extended Instance Ram running in Iowa", 0.03), "it is a part of custom machines", "N2 Custom"),
        (
            sku("Nvidia Tesla T4 GPU attached to Sole Tenancy VMs running in Iowa", 1),
            "it is a part of machines of sole",
            "",
        ),
        (
            sku("Nvidia L4 GPU attached to DWS Defined Duration VMs running in Iowa", 1),
            "it is a part of machines of the",
            "",
        ),
        (sku("Reserved Nvidia Tesla A100 GPU in Iowa", 0), "it is a part of reserved machines", "Reserved Nvidia"),
        (sku("H200 141GB GPU running in Iowa in Calendar Mode", 5), "it is a part of reserved machines", "H200"),
        (
            sku("Memory Optimized Upgrade Premium for Memory-optimized Instance Core running in Iowa", 1),
            "it is a surch",
            "",
        ),
        (sku("Nvidia Tesla T4 Virtual Workstation GPU running in Iowa", 1), "it is a part of virtual workstations", ""),
        (sku("TpuV5e running in Iowa", 1), "members compute on NVIDIA's GPUs and on processors only", "TpuV5e"),
        (sku("N2D AMD Instance Core running in Iowa", 0.03), "its machine series or accelerator is not known", "N2D"),
        (sku("1/8 vGPU no lssd running in Iowa", 0.6), "its machine series or accelerator is not known", "1/8 vGPU"),
        (sku("Nvidia Tesla K80 GPU running in Iowa", 0.4), "its machine series or accelerator is not known", ""),
        (sku("Spot Preemptible Spot Preemptible E2 Instance Core running in Iowa", 0.1), "its machine series", ""),
        (sku("E2 Instance Core", 0.03), "its machine series or accelerator is not known", "E2 Instance Core"),
        (sku("E2 Instance Core running in \x1b[2J", 0.03, serviceRegions=[]), "it has no usable region", ""),
        (
            sku("E2 Instance Core running in Iowa", 0.03, "us-central1", "US\ud800"),
            "it has no usable region",
            "US\\ud800",
        ),
        (sku("E2 Instance Core running in Iowa", 0.03, unit="mo"), "its price is for another unit", "mo, not h"),
        (
            sku("E2 Instance Ram running in Iowa", 0.03, unit="GBy.h"),
            "its price is for another unit",
            "GBy.h, not GiBy.h",
        ),
        (sku("E2 Instance Core running in Iowa", 0.03, currency="EUR"), "its price is not in US dollars", "EUR"),
        (sku("E2 Instance Core running in Iowa", 0), "its price is not above 0", "0"),
        (sku("E2 Instance Core running in Iowa", 0.03, pricingInfo=[]), "it has no price", ""),
        (sku("E2 Instance Core running in Iowa", 0.03, pricingInfo=None), "it is malformed", "Expected `array`"),
        (
            sku("E2 Instance Core running in Iowa", 0.03, category={}),
            "it is malformed",
            "Object missing required field",
        ),
        (sku("E2 Instance Core running in Iowa", 0.03, serviceRegions="us-central1"), "it is malformed", "Expected"),
        (e2() | {"description": 7}, "it is malformed", "Expected `str`, got `int`"),
        (None, "it is malformed", "Expected `object`, got `null`"),
        ([1], "it is malformed", "Expected `object`, got `array`"),
        ({}, "it is malformed", "Object missing required field `description`"),
    ],
)
def test_a_sku_that_cannot_be_used_is_named_by_its_number(
    tmp_path: Path, content: object, reason: str, detail: str
) -> None:
    imported = read(tmp_path, e2(), content, e2_ram())
    [left_out] = imported.rows_left_out
    assert left_out.line == 2
    assert left_out.reason.startswith(reason)
    assert left_out.detail.startswith(detail)
    assert "\x1b" not in left_out.detail
    assert (imported.num_rows, imported.num_kept, len(imported.prices.machines)) == (3, 2, 5)


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        ([], "it has no price"),
        (
            [{"unitPrice": {"currencyCode": "USD", "units": "1", "nanos": 0}}] * 2,
            "its price depends on how much is used",
        ),
        ([{"startUsageAmount": 3, "unitPrice": {"currencyCode": "USD"}}], "its price depends on how much is used"),
        ([{"unitPrice": {"currencyCode": "USD", "units": "1e3"}}], "it is malformed"),
        ([{"unitPrice": {"currencyCode": "USD", "units": "9" * 5000}}], "it is malformed"),
        ([{"unitPrice": {"currencyCode": "USD", "nanos": 10**400}}], "it is malformed"),
        ([{"unitPrice": {"currencyCode": "USD", "units": "-1", "nanos": 0}}], "its price is not above 0"),
        ([{"startUsageAmount": 10**400, "unitPrice": {"currencyCode": "USD"}}], "it is malformed"),
        ([{"unitPrice": {"units": "1", "nanos": 0}}], "it is malformed"),
    ],
)
def test_a_price_that_is_not_one_amount_is_named(tmp_path: Path, rates: list[object], reason: str) -> None:
    core = e2()
    _infos(core)[-1]["pricingExpression"]["tieredRates"] = rates
    [left_out, ram] = read(tmp_path, core, e2_ram()).rows_left_out
    assert (left_out.line, left_out.reason) == (1, reason)
    assert (ram.line, ram.detail) == (2, "e2 memory")


def test_only_one_of_equal_prices_is_kept(tmp_path: Path) -> None:
    """A SKU that adds a region is kept for that region."""
    imported = read(
        tmp_path, e2(0.02), e2(0.02), e2_ram(0.003), e2_ram(0.003, "us-central1", "us-east1"), e2(0.02, "us-east1")
    )
    assert [str(row) for row in imported.rows_left_out] == [
        "line 2: an earlier SKU gives the same price for its regions (item 1)"
    ]
    assert {machine.region for machine in imported.prices.machines} == {"us-central1", "us-east1"}


def test_none_of_differing_prices_is_guessed_to_be_right(tmp_path: Path) -> None:
    regions = ("us-central1", "us-east1")
    imported = read(tmp_path, e2(0.02, *regions), e2(0.03), e2_ram(0.003, *regions))
    assert [str(row) for row in imported.rows_left_out] == [
        "line 2: another SKU gives another price for the same part and region (us-central1)"
    ]
    assert {machine.region for machine in imported.prices.machines} == {"us-east1"}


def test_prices_that_nobody_pays_are_named(tmp_path: Path) -> None:
    spot = [
        sku("Spot Preemptible E2 Instance Core running in Americas", 0.02181159),
        sku("Spot Preemptible E2 Instance Ram running in Americas", 0.00292353),
    ]
    imported = read(tmp_path, e2(), e2_ram(), *spot)
    assert [(row.line, row.reason, row.detail) for row in imported.rows_left_out] == [
        (line, "the spot price of its machines is not below that on demand", "us-central1") for line in (3, 4)
    ]
    assert {machine.spot_usd_per_hour for machine in imported.prices.machines} == {None}
    imported = read(tmp_path, e2(30), e2_ram(), *spot)
    assert [(row.line, row.reason) for row in imported.rows_left_out] == [
        (line, "the price of its machines is not plausible") for line in (1, 2)
    ]
    assert {machine.usd_per_hour for machine in imported.prices.machines} == {None}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "it holds no page"),
        ("name,price\n", "it is not JSON"),
        ('{"Items": [], "NextPageLink": null}', "its page 1 is an object with Items, NextPageLink, not an object with"),
        ('{"error": {"code": 403}}', "its page 1 is an object with error, not an object with a list `skus`"),
        (json.dumps([e2(), e2_ram()]), "its page 1 is an object with name, skuId, .*, not an object with"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(CatalogError, match=rf"google\.json is no list of Google's SKUs: {found}") as raised:
        read_text(tmp_path, text)
    assert "give pages of https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus" in str(raised.value)


def test_the_date_is_when_the_file_was_last_changed(tmp_path: Path) -> None:
    read(tmp_path, e2())
    file = tmp_path / "google.json"
    day_s = datetime.datetime(2026, 5, 4, 12).timestamp()
    os.utime(file, (day_s, day_s))
    assert read_google_skus(file).prices.date == "2026-05-04"


DESCRIPTIONS = (
    "N1 Predefined Instance Core running in Americas",
    "N1 Predefined Instance Ram running in Americas",
    "Nvidia Tesla T4 GPU running in Americas",
    "Spot Preemptible N1 Predefined Instance Core running in Americas",
    "Spot Preemptible N1 Predefined Instance Ram running in Americas",
    "Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas",
    "Custom Instance Core running in Americas",
)
SKUS = st.builds(
    sku,
    st.sampled_from(DESCRIPTIONS),
    st.sampled_from([0.01, 0.01, 0.02, 0, 90]),
    st.sampled_from(["r1", "r2"]),
    st.sampled_from(["r1", "r3", ""]),
    unit=st.sampled_from(["", "", "", "mo"]),
)


@given(skus=st.lists(st.one_of(SKUS, SKUS, st.sampled_from([None, 1, {}])), max_size=14))
def test_every_sku_is_kept_or_named_once(skus: list[object], tmp_path_factory: pytest.TempPathFactory) -> None:
    imported = read(tmp_path_factory.mktemp("prices"), *skus)
    lines = [row.line for row in imported.rows_left_out]
    assert lines == sorted(set(lines))
    assert set(lines) <= set(range(1, len(skus) + 1))
    assert imported.num_rows == len(skus) == imported.num_kept + len(lines)
    offers = list(imported.prices.offers())
    assert len({offer.name for offer in offers}) == len(offers)
    assert bool(offers) == bool(imported.num_kept)
    assert all(offer.usd_per_hour > 0 for offer in offers)

"""Azure's price list: every item is kept or named, and prices are those of machines with Linux, on demand and spot."""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zooid.catalog.importers import ImportedPrices
from zooid.catalog.importers.azure_retail_prices import read_azure_prices
from zooid.catalog.importers.azure_sizes import azure_sizes
from zooid.catalog.machine_prices import MachinePrice
from zooid.catalog.shipped_tables import device_scores
from zooid.core.errors import CatalogError

DATE = "2026-08-22"
D2S = {
    "currencyCode": "USD",
    "tierMinimumUnits": 0.0,
    "retailPrice": 0.096,
    "unitPrice": 0.096,
    "armRegionName": "eastus",
    "location": "US East",
    "effectiveStartDate": "2021-06-01T00:00:00Z",
    "meterId": "13c698e9-e26c-4d9c-94b4-f668f8bc6deb",
    "meterName": "D2s v5",
    "productName": "Virtual Machines Dsv5 Series",
    "skuName": "D2s v5",
    "serviceName": "Virtual Machines",
    "serviceFamily": "Compute",
    "unitOfMeasure": "1 Hour",
    "type": "Consumption",
    "isPrimaryMeterRegion": True,
    "armSkuName": "Standard_D2s_v5",
}
SPOT = {"skuName": "D2s v5 Spot", "meterName": "D2s v5 Spot", "retailPrice": 0.0192, "unitPrice": 0.0192}
H100 = {
    "armSkuName": "Standard_NC80adis_H100_v5",
    "skuName": "NC80adis_H100_v5",
    "meterName": "NC80adisH100v5",
    "productName": "Virtual Machines NCadsH100v5 Series",
    "retailPrice": 13.96,
}


def item(*changes: Mapping[str, object], **fields: object) -> dict[str, object]:
    changed: dict[str, object] = dict(D2S)
    for change in (*changes, fields):
        changed |= change
    return changed


def page(items: Sequence[object]) -> dict[str, object]:
    return {"BillingCurrency": "USD", "Items": items, "NextPageLink": None, "Count": len(items)}


def read_text(folder: Path, text: str) -> ImportedPrices:
    file = folder / "azure.json"
    file.write_text(text)
    return read_azure_prices(file, DATE)


def read(folder: Path, *items: object) -> ImportedPrices:
    return read_text(folder, json.dumps(page(items)))


def only(imported: ImportedPrices) -> MachinePrice:
    [machine] = imported.prices.machines
    return machine


def test_the_spot_price_joins_the_price_on_demand_of_its_machine_and_region(tmp_path: Path) -> None:
    imported = read(tmp_path, item(SPOT), item(H100), item(), item(SPOT, armRegionName="westus3", retailPrice=0.01))
    assert {offer.name: (offer.usd_per_hour, offer.market) for offer in imported.prices.offers()} == {
        "azure.eastus.standard_d2s_v5": (0.096, "on_demand"),
        "azure.eastus.standard_d2s_v5.spot": (0.0192, "spot"),
        "azure.westus3.standard_d2s_v5.spot": (0.01, "spot"),
        "azure.eastus.standard_nc80adis_h100_v5": (13.96, "on_demand"),
    }
    assert (imported.num_rows, imported.num_kept, imported.rows_left_out) == (4, 4, ())
    assert imported.prices.date == DATE


def test_sizes_are_those_of_the_machine(tmp_path: Path) -> None:
    machine = only(read(tmp_path, item(H100)))
    assert (machine.vcpus, machine.memory_bytes) == (80, 640 * 2**30)
    assert (machine.gpu, machine.num_gpus, machine.gpu_memory_bytes) == ("H100-NVL", 2, 94 * 10**9)
    assert only(read(tmp_path, item())).gpu_memory_bytes == 0


def test_known_sizes_have_accelerators_that_the_catalog_knows() -> None:
    known = {score.device for score in device_scores() if score.memory_bytes}
    sizes = azure_sizes()
    assert {size.gpu for size in sizes} - {""} <= known
    assert all((size.num_gpus > 0) == bool(size.gpu) for size in sizes)
    # What the names say: Standard_NC24ads_A100_v4 has 24 vCPUs.
    assert all(size.instance_type.startswith("Standard_") for size in sizes)
    for size in sizes:
        digits = "".join(c if c.isdigit() else " " for c in size.instance_type.removeprefix("Standard_")).split()
        assert size.vcpus == int(digits[0]), size.instance_type


FIRST, SECOND = item(), item(armRegionName="westeurope", retailPrice=0.115)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(page([FIRST, SECOND])),
        json.dumps([page([FIRST]), page([SECOND])]),
        "\n".join(json.dumps(page([each])) for each in (FIRST, SECOND)) + "\n",
        "".join(json.dumps(page([each]), indent=2) for each in (FIRST, SECOND)),
        "\ufeff" + json.dumps(page([FIRST, SECOND])),
    ],
    ids=["one page", "a list of pages", "JSON lines", "pages one after another", "byte order mark"],
)
def test_pages_are_read_as_users_save_them(tmp_path: Path, text: str) -> None:
    imported = read_text(tmp_path, text)
    assert [(machine.region, machine.usd_per_hour) for machine in imported.prices.machines] == [
        ("eastus", 0.096),
        ("westeurope", 0.115),
    ]


def test_items_are_numbered_over_all_pages(tmp_path: Path) -> None:
    windows = item(productName="Virtual Machines Dsv5 Series Windows")
    pages = [page([windows, item()]), page([]), page([windows])]
    assert [row.line for row in read_text(tmp_path, json.dumps(pages)).rows_left_out] == [1, 3]


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"serviceName": "Storage", "armSkuName": ""}, "it is of another service", "Storage"),
        ({"type": "Reservation", "retailPrice": 500}, "it is not a pay-as-you-go price", "Reservation"),
        ({"type": "DevTestConsumption"}, "it is not a pay-as-you-go price", "DevTestConsumption"),
        ({"currencyCode": "EUR"}, "its price is not in US dollars", "EUR"),
        ({"unitOfMeasure": "1/Month"}, "its price is not for one hour", "1/Month"),
        ({"tierMinimumUnits": 100}, "its price holds only above a minimum use", "100"),
        ({"productName": "Virtual Machines Dsv5 Series Windows"}, "it is a machine with Windows", ""),
        ({"productName": "Virtual Machines NCCadsv5 Srs Win"}, "it is a machine with Windows", ""),
        ({"productName": "Dsv5 Series Cloud Services"}, "it is a machine of Cloud Services", ""),
        ({"productName": "Dsv5 Series CloudServices"}, "it is a machine of Cloud Services", ""),
        ({"skuName": "D2s v5 Low Priority"}, "it is a Low Priority price", ""),
        ({"armRegionName": ""}, "it has no usable region", ""),
        ({"armRegionName": None}, "it has no usable region", ""),
        ({"armRegionName": "east us\ud800"}, "it has no usable region", "east us\\ud800"),
        ({"armSkuName": "Standard_X1"}, "the size of its machine is not known", "Standard_X1"),
        ({"armSkuName": None}, "the size of its machine is not known", "D2s v5"),
        ({"armSkuName": "Standard_NV6ads_A10_v5"}, "the size of its machine is not known", "Standard_NV6ads_A10_v5"),
        ({"retailPrice": 0}, "its price is not a finite number above 0", "0"),
        ({"retailPrice": -0.1}, "its price is not a finite number above 0", "-0.1"),
        ({"retailPrice": float("nan")}, "its price is not a finite number above 0", "nan"),
        ({"retailPrice": float("inf")}, "its price is not a finite number above 0", "inf"),
        ({"retailPrice": 96}, "its price is not plausible", "`usd_per_hour` of Standard_D2s_v5 is 96"),
        ({"retailPrice": "0.096"}, "it is malformed", "Expected `float`, got `str` - at `$.retailPrice`"),
        ({"retailPrice": True}, "it is malformed", "Expected `float`, got `bool` - at `$.retailPrice`"),
        ({"retailPrice": 10**400}, "it is malformed", ""),
        ({"skuName": None}, "it is malformed", "Expected `str`, got `null` - at `$.skuName`"),
        ({"skuName": ["D2s v5"]}, "it is malformed", "Expected `str`, got `array` - at `$.skuName`"),
    ],
)
def test_an_item_that_cannot_be_kept_is_named_by_its_number(
    tmp_path: Path, changes: dict[str, object], reason: str, detail: str
) -> None:
    imported = read(tmp_path, item(armRegionName="westus"), item(changes), item(armRegionName="westus2"))
    [left_out] = imported.rows_left_out
    assert left_out.line == 2
    assert left_out.reason.startswith(reason)
    assert left_out.detail.startswith(detail)
    assert (imported.num_rows, imported.num_kept, len(imported.prices.machines)) == (3, 2, 2)


@pytest.mark.parametrize("content", [None, 7, "item", [item()], {}, {"retailPrice": 1}])
def test_what_is_no_item_is_named(tmp_path: Path, content: object) -> None:
    imported = read(tmp_path, content, item())
    assert [(row.line, row.reason) for row in imported.rows_left_out] == [(1, "it is malformed")]
    assert imported.num_kept == 1


def test_only_one_of_equal_prices_is_kept(tmp_path: Path) -> None:
    imported = read(tmp_path, item(), item(SPOT), item(), item(SPOT, armRegionName="EastUS"))
    assert [str(row) for row in imported.rows_left_out] == [
        "line 3: an earlier item gives the same price (item 1)",
        "line 4: an earlier item gives the same price (item 2)",
    ]
    assert (only(imported).usd_per_hour, only(imported).spot_usd_per_hour) == (0.096, 0.0192)


def test_none_of_differing_prices_is_guessed_to_be_right(tmp_path: Path) -> None:
    imported = read(tmp_path, item(), item(SPOT), item(retailPrice=0.2), item())
    reason = "another item gives another price for the same machine and region"
    assert [str(row) for row in imported.rows_left_out] == [
        f"line 1: {reason} (0.096 dollars, in item 3 0.2)",
        f"line 3: {reason} (0.2 dollars, in item 1 0.096)",
        f"line 4: {reason} (0.096 dollars, in item 3 0.2)",
    ]
    assert (only(imported).usd_per_hour, only(imported).spot_usd_per_hour) == (None, 0.0192)


@pytest.mark.parametrize("spot_usd", [0.096, 0.2])
def test_a_spot_price_that_nobody_pays_is_named(tmp_path: Path, spot_usd: float) -> None:
    imported = read(tmp_path, item(SPOT, retailPrice=spot_usd), item())
    assert only(imported).spot_usd_per_hour is None
    assert only(imported).usd_per_hour == 0.096
    assert [(row.line, row.reason, row.detail) for row in imported.rows_left_out] == [
        (1, "its spot price is not below that on demand", f"{spot_usd:g} and 0.096 dollars")
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "it holds no page"),
        ("[]", "it holds no page"),
        ("InstanceType,Price\nStandard_D2s_v5,1\n", "it is not JSON"),
        ('{"Items": [', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("9" * 5000, "it is not JSON"),
        ('{"skus": [], "nextPageToken": ""}', "its page 1 is an object with skus, nextPageToken, not an object with"),
        ('{"Items": null}', "its page 1 is an object with Items, not an object with a list `Items`"),
        ("{}", "its page 1 is an empty object"),
        (json.dumps([item()]), "its page 1 is an object with currencyCode, .*, …, not an object with"),
        (json.dumps(page([])) + "\n17", "its page 2 is a number"),
        ('[{"Items": []}, [1]]', "its page 2 is a list"),
        ("true", "its page 1 is true or false"),
        ("null", "its page 1 is null"),
        ('"Items"', "its page 1 is a text"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(CatalogError, match=rf"azure\.json is no price list of Azure: {found}") as raised:
        read_text(tmp_path, text)
    assert "give pages of https://prices.azure.com/api/retail/prices" in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "missing.json", tmp_path, binary):
        with pytest.raises(CatalogError, match=r"cannot be read: .*; give pages of https"):
            read_azure_prices(file)


def test_the_date_is_when_the_file_was_last_changed(tmp_path: Path) -> None:
    read(tmp_path, item())
    file = tmp_path / "azure.json"
    day_s = datetime.datetime(2026, 5, 4, 12).timestamp()
    os.utime(file, (day_s, day_s))
    assert read_azure_prices(file).prices.date == "2026-05-04"


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "armSkuName": st.sampled_from(["Standard_D2s_v5", "Standard_NC6s_v3", "Standard_X1", None, 3]),
    "skuName": st.sampled_from(["D2s v5", "D2s v5", "D2s v5 Spot", "D2s v5 Spot", "D2s v5 Low Priority"]),
    "productName": st.sampled_from(["Virtual Machines Dsv5 Series", "Virtual Machines Dsv5 Series Windows"]),
    "retailPrice": st.sampled_from([0.1, 0.2, 0.05, 0, "0.1", 1e6, float("nan")]),
    "armRegionName": st.sampled_from(["eastus", "eastus", "westus", ""]),
    "type": st.sampled_from(["Consumption", "Consumption", "Reservation"]),
}
ITEMS: st.SearchStrategy[object] = st.one_of(
    st.fixed_dictionaries(FIELDS).map(item), st.sampled_from([None, 1, {}, []])
)


@given(pages=st.lists(st.lists(ITEMS, max_size=8), min_size=1, max_size=3))
def test_every_item_is_kept_or_named_once(pages: list[list[object]], tmp_path_factory: pytest.TempPathFactory) -> None:
    imported = read_text(tmp_path_factory.mktemp("prices"), json.dumps([page(items) for items in pages]))
    num_items = sum(map(len, pages))
    lines = [row.line for row in imported.rows_left_out]
    assert lines == sorted(set(lines))
    assert set(lines) <= set(range(1, num_items + 1))
    assert imported.num_rows == num_items == imported.num_kept + len(lines)
    offers = list(imported.prices.offers())
    assert len({offer.name for offer in offers}) == len(offers) == imported.num_kept
    assert all(offer.usd_per_hour > 0 for offer in offers)

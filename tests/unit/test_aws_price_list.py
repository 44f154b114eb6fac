"""The price list of Amazon EC2: both forms give the same machines, and every row is kept or named."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zooid.catalog.importers.aws_gpus import aws_gpus
from zooid.catalog.importers.aws_price_list import read_aws_price_list
from zooid.catalog.importers.imported_prices import ImportedPrices
from zooid.catalog.importers.skypilot_files import read_skypilot_file
from zooid.catalog.machine_prices import MachinePrice
from zooid.catalog.shipped_tables import device_scores
from zooid.core.errors import CatalogError

SKYPILOT_FILE = Path(__file__).parents[3] / "shared" / "data" / "prices" / "v7" / "aws" / "vms.csv"
Row = Mapping[str, str]
PUBLISHED = "2026-09-10T19:55:14Z"
METADATA = {
    "FormatVersion": "v1.0",
    "Disclaimer": "These prices, with a comma, are made up.",
    "Publication Date": PUBLISHED,
    "Version": "20260910195514",
    "OfferCode": "AmazonEC2",
}
ATTRIBUTES = {
    "Location": "location", "Location Type": "locationType", "Instance Type": "instanceType",
    "Instance Family": "instanceFamily", "vCPU": "vcpu", "Memory": "memory", "Tenancy": "tenancy",
    "Operating System": "operatingSystem", "License Model": "licenseModel", "operation": "operation",
    "CapacityStatus": "capacitystatus", "GPU": "gpu", "GPU Memory": "gpuMemory", "MarketOption": "marketoption",
    "Pre Installed S/W": "preInstalledSw", "Region Code": "regionCode",
}  # fmt: skip
"""What the forms call the same."""
COLUMNS = (
    "SKU", "OfferTermCode", "TermType", "PriceDescription", "Unit", "PricePerUnit", "Currency", "Product Family",
    "serviceCode", *ATTRIBUTES,
)  # fmt: skip
M5 = {
    "TermType": "OnDemand", "Unit": "Hrs", "PricePerUnit": "0.1920000000", "Currency": "USD",
    "Product Family": "Compute Instance", "Location": "US East (N. Virginia)", "Location Type": "AWS Region",
    "Instance Type": "m5.xlarge", "Instance Family": "General purpose", "vCPU": "4", "Memory": "16 GiB",
    "Tenancy": "Shared", "Operating System": "Linux", "License Model": "No License required",
    "operation": "RunInstances", "CapacityStatus": "Used", "MarketOption": "OnDemand", "Pre Installed S/W": "NA",
    "Region Code": "us-east-1",
}  # fmt: skip
P3DN = {
    **M5, "Instance Type": "p3dn.24xlarge", "Instance Family": "GPU instance", "vCPU": "96", "Memory": "768 GiB",
    "GPU": "8", "GPU Memory": "256 GB", "PricePerUnit": "31.2120000000",
}  # fmt: skip
FORMS = ("json", "csv")
FIRST_LINE = {"json": 1, "csv": 7}
"""The number of a file's first row."""


def csv_text(rows: Sequence[Row], columns: Sequence[str] = COLUMNS, metadata: Mapping[str, str] = METADATA) -> str:
    text = io.StringIO()
    cells = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    cells.writerows(metadata.items())
    cells.writerow(columns)
    cells.writerows([{"SKU": sku, **row}.get(name, "") for name in columns] for sku, row in numbered(rows))
    return text.getvalue()


def numbered(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    return [(f"SKU{number:013}", row) for number, row in enumerate(rows)]


def term(*dimensions: Mapping[str, Any]) -> dict[str, Any]:
    prices = {f"X.JRTCKXETXF.{number}": dimension for number, dimension in enumerate(dimensions)}
    return {"X.JRTCKXETXF": {"offerTermCode": "JRTCKXETXF", "priceDimensions": prices, "termAttributes": {}}}


def hourly(price: str, unit: str = "Hrs", currency: str = "USD") -> dict[str, Any]:
    return {"unit": unit, "beginRange": "0", "endRange": "Inf", "pricePerUnit": {currency: price}, "appliesTo": []}


def json_content(rows: Sequence[Row]) -> dict[str, Any]:
    terms: dict[str, Any] = {"OnDemand": {}, "Reserved": {}}
    products = {}
    for sku, row in numbered(rows):
        attributes = {ATTRIBUTES[name]: cell for name, cell in row.items() if name in ATTRIBUTES and cell}
        products[sku] = {"sku": sku, "productFamily": row["Product Family"], "attributes": attributes}
        terms[row["TermType"]][sku] = term(hourly(row["PricePerUnit"], row["Unit"], row["Currency"]))
    return {"formatVersion": "v1.0", "disclaimer": "Made up.", "offerCode": "AmazonEC2", "version": "20260910195514",
            "publicationDate": PUBLISHED, "products": products, "terms": terms, "attributesList": {}}  # fmt: skip


def read_text(folder: Path, text: str) -> ImportedPrices:
    file = folder / "index"
    file.write_text(text, encoding="utf-8")
    return read_aws_price_list(file)


def read(folder: Path, form: str, rows: Sequence[Row]) -> ImportedPrices:
    return read_text(folder, csv_text(rows) if form == "csv" else json.dumps(json_content(rows)))


@pytest.mark.parametrize("form", FORMS)
def test_plain_linux_machines_are_kept(tmp_path: Path, form: str) -> None:
    imported = read(tmp_path, form, [M5, P3DN])
    assert imported.prices.machines == (
        MachinePrice(
            instance_type="m5.xlarge", region="us-east-1", vcpus=4, memory_bytes=16 * 2**30, usd_per_hour=0.192
        ),
        MachinePrice(
            instance_type="p3dn.24xlarge", region="us-east-1", vcpus=96, memory_bytes=768 * 2**30,
            gpu="V100-32GB", num_gpus=8, gpu_memory_bytes=32_000_000_000, usd_per_hour=31.212,
        ),
    )  # fmt: skip
    prices = imported.prices
    assert (prices.provider, prices.source, prices.date) == ("aws", "Amazon EC2 price list", "2026-09-10")
    assert (imported.num_rows, imported.num_kept, imported.rows_left_out) == (2, 2, ())
    assert [offer.name for offer in prices.offers()] == ["aws.us-east-1.m5.xlarge", "aws.us-east-1.p3dn.24xlarge"]


@pytest.mark.parametrize("form", FORMS)
def test_bare_metal_and_sizes_with_commas_and_fractions_are_kept(tmp_path: Path, form: str) -> None:
    metal = {**M5, "Instance Type": "x1e.metal", "Product Family": "Compute Instance (bare metal)",
             "Memory": "3,904 GiB", "vCPU": "128", "PricePerUnit": "26.688"}  # fmt: skip
    small = {**M5, "Instance Type": "t1.micro", "Memory": "0.5 GiB", "vCPU": "1", "PricePerUnit": "0.02"}
    machines = read(tmp_path, form, [metal, small]).prices.machines
    assert [machine.memory_bytes for machine in machines] == [3904 * 2**30, 2**29]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("instance_type", "count", "gpu", "gigabytes"),
    [
        ("p2.16xlarge", 16, "K80", 12),
        ("p3.8xlarge", 4, "V100", 16),
        ("g3s.xlarge", 1, "M60", 8),
        ("g3.16xlarge", 4, "M60", 8),
        ("g4dn.metal", 8, "T4", 16),
        ("g5.12xlarge", 4, "A10G", 24),
        ("gr6.8xlarge", 1, "L4", 24),
        ("g6e.48xlarge", 8, "L40S", 48),
        ("p4d.24xlarge", 8, "A100", 40),
        ("p4de.24xlarge", 8, "A100-80GB", 80),
        ("p5.4xlarge", 1, "H100", 80),
        ("p5en.48xlarge", 8, "H200", 141),
        ("p6-b200.48xlarge", 8, "B200", 180),
    ],
)
def test_the_family_tells_the_model_of_the_gpus(
    tmp_path: Path, form: str, instance_type: str, count: int, gpu: str, gigabytes: int
) -> None:
    row = {**P3DN, "Instance Type": instance_type, "GPU": str(count), "PricePerUnit": "5"}
    [machine] = read(tmp_path, form, [row]).prices.machines
    assert (machine.gpu, machine.num_gpus, machine.gpu_memory_bytes) == (gpu, count, gigabytes * 10**9)


def test_the_catalog_knows_the_speed_and_memory_of_all_models() -> None:
    known = {score.device for score in device_scores() if score.memory_bytes}
    assert len(aws_gpus()) > 10
    assert {row.gpu for row in aws_gpus().values()} <= known


def test_models_are_those_that_skypilot_names() -> None:
    if not SKYPILOT_FILE.is_file():
        pytest.skip(f"there is no file {SKYPILOT_FILE}")
    machines = read_skypilot_file(SKYPILOT_FILE).prices.machines
    named = {machine.instance_type.partition(".")[0]: machine.gpu for machine in machines if machine.gpu}
    ours = {family: row.gpu for family, row in aws_gpus().items() if family in named}
    assert len(ours) > 10
    assert ours == {family: named[family] for family in ours}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"Product Family": "Storage"}, "it is not a machine", "Storage"),
        ({"Location Type": "AWS Local Zone"}, "it is in a zone apart from the region", "AWS Local Zone"),
        ({"Operating System": "Windows"}, "it is not for Linux without licences", "Windows"),
        ({"operation": "RunInstances:0g00"}, "it is not for Linux without licences", "RunInstances:0g00"),
        ({"Pre Installed S/W": "SQL Std"}, "it has software installed", "SQL Std"),
        ({"Tenancy": "Dedicated"}, "it is not of shared tenancy", "Dedicated"),
        ({"CapacityStatus": "UnusedCapacityReservation"}, "it is not the price of a machine in use",
         "UnusedCapacityReservation"),
        ({"MarketOption": "CapacityBlock", "PricePerUnit": "0.0000000000"}, "it is not on demand", "CapacityBlock"),
        ({"Unit": "Quantity"}, "its price is not that of an hour", "Quantity"),
        ({"Currency": "CNY"}, "its price is not in dollars", "CNY"),
        ({"PricePerUnit": ""}, "its price is no number", ""),
        ({"PricePerUnit": "-1"}, "its price is no number", "-1"),
        ({"PricePerUnit": "nan"}, "its price is no number", "nan"),
        ({"PricePerUnit": "1_0"}, "its price is no number", "1_0"),
        ({"PricePerUnit": "0.0000000000"}, "its figures are not plausible",
         "`usd_per_hour` is 0.0; it must be above 0"),
        ({"Instance Type": ""}, "it has no instance type", ""),
        ({"Region Code": ""}, "it has no region", ""),
        ({"vCPU": ""}, "its vCPUs are no whole number", ""),
        ({"vCPU": "2.5"}, "its vCPUs are no whole number", "2.5"),
        ({"Memory": "NA"}, "its memory is not a number of GiB", "NA"),
        ({"Memory": "16384 MiB"}, "its memory is not a number of GiB", "16384 MiB"),
        ({"Memory": "1,6 GiB"}, "its memory is not a number of GiB", "1,6 GiB"),
        ({"Instance Type": "p3.2xlarge", "GPU": "x"}, "its number of GPUs is no whole number", "x"),
        ({"Instance Type": "p3.2xlarge", "GPU": ""}, "its number of GPUs is not given", "p3.2xlarge"),
        ({"Instance Type": "g2.2xlarge", "GPU": "1"}, "the model of its GPUs is not known", "g2.2xlarge"),
        ({"Instance Type": "p9.2xlarge"}, "the model of its GPUs is not known", "p9.2xlarge"),
        ({"Instance Type": "y1.2xlarge", "Instance Family": "GPU instance"}, "the model of its GPUs is not known",
         "y1.2xlarge"),
        ({"Instance Type": "g6f.large", "GPU": "1"}, "it has a part of an accelerator", "g6f.large"),
        ({"Instance Type": "g6.large", "GPU": "0.125"}, "it has a part of an accelerator", "g6.large"),
        ({"Instance Type": "g4ad.xlarge", "GPU": "1", "Instance Family": "GPU instance"},
         "members compute on NVIDIA's GPUs and on processors only", "g4ad.xlarge"),
        ({"Instance Type": "inf2.xlarge", "GPU": "1"}, "members compute on NVIDIA's GPUs and on processors only",
         "inf2.xlarge"),
        ({"Instance Type": "trn1.2xlarge"}, "members compute on NVIDIA's GPUs and on processors only", "trn1.2xlarge"),
        ({"Instance Type": "dl1.24xlarge"}, "members compute on NVIDIA's GPUs and on processors only", "dl1.24xlarge"),
        ({"Instance Type": "vt1.3xlarge"}, "members compute on NVIDIA's GPUs and on processors only", "vt1.3xlarge"),
        ({"Instance Type": "f1.2xlarge"}, "members compute on NVIDIA's GPUs and on processors only", "f1.2xlarge"),
        ({"Instance Type": "y1.xlarge", "Instance Family": "Machine Learning ASIC Instances"},
         "members compute on NVIDIA's GPUs and on processors only", "y1.xlarge"),
    ],
)  # fmt: skip
def test_any_other_row_is_named_with_the_reason(
    tmp_path: Path, form: str, changes: Row, reason: str, detail: str
) -> None:
    other = {**M5, "Instance Type": "m5.large", **changes}
    imported = read(tmp_path, form, [M5, other, P3DN])
    [left_out] = imported.rows_left_out
    assert (left_out.line, left_out.reason, left_out.detail) == (FIRST_LINE[form] + 1, reason, detail)
    assert [machine.instance_type for machine in imported.prices.machines] == ["m5.xlarge", "p3dn.24xlarge"]
    assert (imported.num_rows, imported.num_kept) == (3, 2)


@pytest.mark.parametrize("form", FORMS)
def test_reserved_machines_are_not_on_demand(tmp_path: Path, form: str) -> None:
    imported = read(tmp_path, form, [{**M5, "TermType": "Reserved"}, P3DN])
    assert [(row.line, row.reason) for row in imported.rows_left_out] == [(FIRST_LINE[form], "it is not on demand")]
    assert [machine.usd_per_hour for machine in imported.prices.machines] == [31.212]


@pytest.mark.parametrize("form", FORMS)
def test_a_price_that_is_too_high_for_the_machine_is_named(tmp_path: Path, form: str) -> None:
    [left_out] = read(tmp_path, form, [{**M5, "PricePerUnit": "140.16"}]).rows_left_out
    assert left_out.reason == "its figures are not plausible"
    assert "not for a month" in left_out.detail


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_is_given_twice_is_kept_once(tmp_path: Path, form: str) -> None:
    imported = read(tmp_path, form, [M5, P3DN, M5, {**M5, "Region Code": "eu-west-1"}])
    first = FIRST_LINE[form]
    assert [str(row) for row in imported.rows_left_out] == [
        f"line {first + 2}: an earlier row has the same machine and region (line {first})"
    ]
    assert [machine.region for machine in imported.prices.machines] == ["us-east-1", "us-east-1", "eu-west-1"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("changes", [{"PricePerUnit": "0.2"}, {"vCPU": "8"}])
def test_none_of_several_prices_of_the_same_machine_is_chosen(tmp_path: Path, form: str, changes: Row) -> None:
    imported = read(tmp_path, form, [M5, P3DN, {**M5, **changes}])
    assert [machine.instance_type for machine in imported.prices.machines] == ["p3dn.24xlarge"]
    assert [row.line - FIRST_LINE[form] for row in imported.rows_left_out] == [0, 2]
    assert imported.reasons == {"rows contradict each other on this machine and region": 2}
    assert imported.rows_left_out[0].detail == "m5.xlarge, us-east-1"


@pytest.mark.parametrize(
    ("prices", "usd", "reason"),
    [
        ([hourly("0.2"), hourly("0.2")], 0.2, ""),
        ([hourly("99", unit="Quantity"), hourly("0.3")], 0.3, ""),
        ([{**hourly("7", currency="CNY")}, hourly("0.3")], 0.3, ""),
        ([hourly("0.2"), hourly("0.3")], None, "it has several prices an hour (0.2 0.3)"),
        ([hourly("99", unit="Quantity")], None, "its price is not that of an hour (Quantity)"),
        ([], None, "its price is not that of an hour"),
    ],
)
def test_a_product_may_have_several_prices(
    tmp_path: Path, prices: list[dict[str, Any]], usd: float | None, reason: str
) -> None:
    content = json_content([M5])
    [sku] = content["products"]
    content["terms"]["OnDemand"][sku] = term(*prices)
    imported = read_text(tmp_path, json.dumps(content))
    assert [machine.usd_per_hour for machine in imported.prices.machines] == ([] if usd is None else [usd])
    assert [str(row) for row in imported.rows_left_out] == ([f"line 1: {reason}"] if reason else [])


@pytest.mark.parametrize(
    ("product", "malformed_term"),
    [
        (5, None),
        ({"sku": "X"}, None),
        ({"productFamily": "Compute Instance", "attributes": {"vcpu": 4}}, None),
        (None, []),
        (None, {"X.Y": {"priceDimensions": {"X.Y.Z": {"unit": "Hrs"}}}}),
        (None, {"X.Y": {"priceDimensions": {"X.Y.Z": {"unit": "Hrs", "pricePerUnit": {"USD": 0.1}}}}}),
    ],
)
def test_a_malformed_product_spoils_no_other(tmp_path: Path, product: Any, malformed_term: Any) -> None:
    content = json_content([M5, {**M5, "Instance Type": "m5.large"}, P3DN])
    sku = list(content["products"])[1]
    if product is not None:
        content["products"][sku] = product
    else:
        content["terms"]["OnDemand"][sku] = malformed_term
    imported = read_text(tmp_path, json.dumps(content))
    [left_out] = imported.rows_left_out
    assert (left_out.line, left_out.reason) == (2, "it is malformed")
    assert left_out.detail.startswith(("Expected", "Object missing required field"))
    assert (imported.num_rows, imported.num_kept) == (3, 2)


@pytest.mark.parametrize(
    ("line", "reason"),
    [("a,b", "it has more or fewer cells than the header"), ('"X,OnDemand,Hrs', "it is not CSV")],
)
def test_a_broken_line_spoils_no_other(tmp_path: Path, line: str, reason: str) -> None:
    lines = csv_text([M5, P3DN]).splitlines()
    imported = read_text(tmp_path, "\n".join((*lines[:7], line, "", lines[7])))
    assert [(row.line, row.reason) for row in imported.rows_left_out] == [(8, reason)]
    assert (imported.num_rows, imported.num_kept) == (3, 2)


def test_columns_may_be_in_any_order_and_those_that_no_product_needs_may_be_absent(tmp_path: Path) -> None:
    needless = ("operation", "MarketOption", "Location Type", "Instance Family", "GPU")
    fewer = ["SKU", *reversed([name for name in COLUMNS if name not in ("SKU", *needless)])]
    imported = read_text(tmp_path, csv_text([M5, P3DN], fewer))
    assert imported.prices.machines == read(tmp_path, "csv", [M5]).prices.machines
    assert [str(row) for row in imported.rows_left_out] == ["line 8: its number of GPUs is not given (p3dn.24xlarge)"]


def test_the_way_in_which_text_is_saved_does_not_matter(tmp_path: Path) -> None:
    expected = read(tmp_path, "csv", [M5, P3DN]).prices
    file = tmp_path / "saved"
    for text in (csv_text([M5, P3DN]).replace("\n", "\r\n"), json.dumps(json_content([M5, P3DN]), indent=2)):
        file.write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert read_aws_price_list(file).prices == expected


def changed(**changes: object) -> str:
    content = {**json_content([M5]), **changes}
    return json.dumps({name: value for name, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it is not JSON, and has no line of column names that begins with SKU"),
        ("InstanceType,Price\nc5.large,1\n", "it is not JSON, and has no line of column names"),
        ('"open\n', "it is not JSON, and has no line of column names"),
        ("[]", "it is not JSON, and has no line of column names"),
        ("{}", "its JSON is not of that layout: Object missing required field `formatVersion`"),
        (changed()[:-9], "its JSON is not of that layout: Input data was truncated"),
        (changed(products=[]), r"its JSON is not of that layout: Expected `object`, got `array` - at `\$.products`"),
        (changed(terms=None), "its JSON is not of that layout: Object missing required field `terms`"),
        (changed(offerCode="AmazonRDS"), "its offer code is 'AmazonRDS', not 'AmazonEC2'"),
        (changed(formatVersion="v2.0"), r"its format version is 'v2\.0', not 'v1\.0'"),
        (changed(publicationDate="today"), "its publication date is 'today', not a time"),
        (csv_text([M5], metadata={}), "its offer code is '', not 'AmazonEC2'"),
        (csv_text([M5], metadata={**METADATA, "OfferCode": "AmazonRDS"}), "its offer code is 'AmazonRDS'"),
        (csv_text([M5], metadata={**METADATA, "FormatVersion": "v2.0"}), r"its format version is 'v2\.0'"),
        (csv_text([M5], metadata={**METADATA, "Publication Date": ""}), "its publication date is '', not a time"),
        (csv_text([M5], ("SKU", *COLUMNS[4:])), "it lacks the columns TermType;"),
        (csv_text([M5], (*COLUMNS, "GPU")), "it has several columns GPU;"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    advice = "give index.json or index.csv of AmazonEC2 as AWS publishes it, such as https://"
    with pytest.raises(
        CatalogError, match=rf"index is no price list of Amazon EC2 that can be read: {fault}.*{advice}"
    ):
        read_text(tmp_path, text)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00binary"])
def test_a_file_that_is_absent_or_no_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "index.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CatalogError, match=r"index\.csv cannot be read: "):
        read_aws_price_list(file)


CHANGES = {
    "Product Family": ["Compute Instance", "Storage"],
    "Instance Type": ["m5.large", "p3.2xlarge", "g6f.large", "inf1.xlarge", "p9.large", ""],
    "Region Code": ["us-east-1", "eu-west-1", ""],
    "GPU": ["", "1", "0.5", "x"],
    "Operating System": ["Linux", "Linux", "RHEL"],
    "Tenancy": ["Shared", "Shared", "Host"],
    "TermType": ["OnDemand", "OnDemand", "Reserved"],
    "Unit": ["Hrs", "Hrs", "Quantity"],
    "Currency": ["USD", "USD", "CNY"],
    "PricePerUnit": ["0.1", "0.2", "0", "free", "1000"],
    "Memory": ["8 GiB", "8", '"'],
}


@given(
    rows=st.lists(
        st.fixed_dictionaries({}, optional={name: st.sampled_from(cells) for name, cells in CHANGES.items()}),
        max_size=8,
    )
)
def test_every_row_is_kept_or_named_once_and_both_forms_are_equal(
    rows: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("prices")
    imported = {form: read(folder, form, [{**M5, **row} for row in rows]) for form in FORMS}
    for form in FORMS:
        lines = [row.line - FIRST_LINE[form] for row in imported[form].rows_left_out]
        assert lines == sorted(set(lines))
        assert set(lines) <= set(range(len(rows)))
        assert imported[form].num_rows == len(rows) == len(imported[form].prices.machines) + len(lines)
    offers = list(imported["csv"].prices.offers())
    assert len({offer.name for offer in offers}) == len(offers) == imported["csv"].num_kept
    assert imported["json"].prices == imported["csv"].prices
    reasons = {form: [row.reason for row in imported[form].rows_left_out] for form in FORMS}
    assert reasons["json"] == reasons["csv"]

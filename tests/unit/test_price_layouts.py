"""One command imports price lists of every layout, and tells them apart by how their files begin."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from zooid.catalog.importers import read_prices
from zooid.core.errors import CatalogError, InputError

SKY = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region\nm5,,,2,8,,1,0.5,r1\n"
)
AWS_PRODUCT = {
    "productFamily": "Compute Instance",
    "attributes": {
        "instanceType": "m5.large", "regionCode": "us-east-1", "vcpu": "2", "memory": "8 GiB", "tenancy": "Shared",
        "operatingSystem": "Linux", "preInstalledSw": "NA", "capacitystatus": "Used", "operation": "RunInstances",
    },
}  # fmt: skip
AWS_TERM = {"T": {"priceDimensions": {"D": {"unit": "Hrs", "pricePerUnit": {"USD": "0.096"}}}}}
AWS = {
    "formatVersion": "v1.0",
    "offerCode": "AmazonEC2",
    "publicationDate": "2026-10-30T18:00:00Z",
    "products": {"S": AWS_PRODUCT},
    "terms": {"OnDemand": {"S": AWS_TERM}},
}
AWS_CSV = """"FormatVersion","v1.0"
"Publication Date","2026-10-30T18:00:00Z"
"OfferCode","AmazonEC2"
"SKU","TermType","Unit","PricePerUnit","Currency","Product Family","Instance Type","Region Code","vCPU","Memory",\
"Operating System","Tenancy","Pre Installed S/W","CapacityStatus"
"S","OnDemand","Hrs","0.096","USD","Compute Instance","m5.large","us-east-1","2","8 GiB","Linux","Shared","NA","Used"
"""
AZURE_ITEM = {
    "currencyCode": "USD", "retailPrice": 0.096, "armRegionName": "eastus", "skuName": "D2s v5", "type": "Consumption",
    "productName": "Virtual Machines DSv5 Series", "serviceName": "Virtual Machines", "unitOfMeasure": "1 Hour",
    "armSkuName": "Standard_D2s_v5",
}  # fmt: skip
AZURE = {"BillingCurrency": "USD", "Items": [AZURE_ITEM], "NextPageLink": None, "Count": 1}


def google_sku(description: str, unit: str, nanos: int) -> dict[str, object]:
    price = {"usageUnit": unit, "tieredRates": [{"unitPrice": {"currencyCode": "USD", "units": "0", "nanos": nanos}}]}
    return {
        "description": description,
        "category": {"resourceFamily": "Compute", "usageType": "OnDemand"},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": price}],
    }


GOOGLE = {
    "skus": [
        google_sku("N1 Predefined Instance Core running in Americas", "h", 31_611_000),
        google_sku("N1 Predefined Instance Ram running in Americas", "GiBy.h", 4_237_000),
    ]
}


@pytest.mark.parametrize(
    ("name", "text", "provider", "usd"),
    [
        ("vms.csv", SKY, "{folder}", 1.0),
        ("index.json", json.dumps(AWS), "aws", 0.096),
        ("index.json", json.dumps(AWS, indent=2), "aws", 0.096),
        ("index.csv", AWS_CSV.replace("\\\n", ""), "aws", 0.096),
        ("azure.json", json.dumps(AZURE), "azure", 0.096),
        ("azure.json", json.dumps([AZURE, {**AZURE, "Items": []}]), "azure", 0.096),
        ("skus.json", json.dumps(GOOGLE), "gcp", 0.031611 + 3.75 * 0.004237),
        ("skus.json", "\ufeff" + json.dumps(GOOGLE, indent=1), "gcp", 0.031611 + 3.75 * 0.004237),
    ],
)
def test_a_file_is_read_by_how_it_begins(tmp_path: Path, name: str, text: str, provider: str, usd: float) -> None:
    file = tmp_path / name
    file.write_text(text)
    [imported] = read_prices(file)
    assert imported.prices.provider == provider.format(folder=tmp_path.name)
    assert imported.prices.machines[0].usd_per_hour == pytest.approx(usd, rel=1e-12)
    assert imported.num_kept == imported.num_rows


def test_all_of_skypilots_files_in_a_folder_are_read(tmp_path: Path) -> None:
    for cloud in ("azure", "nebius"):
        (tmp_path / cloud).mkdir()
        (tmp_path / cloud / "vms.csv").write_text(SKY)
    found = [imported.prices for imported in read_prices(tmp_path, "2026-11-02")]
    assert [(prices.provider, prices.date) for prices in found] == [("azure", "2026-11-02"), ("nebius", "2026-11-02")]


def test_no_date_is_given_for_a_list_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(json.dumps(AWS))
    assert [imported.prices.date for imported in read_prices(tmp_path / "index.json")] == ["2026-10-30"]
    with pytest.raises(InputError, match=r"index\.json says itself of which date it is; import it without --date"):
        list(read_prices(tmp_path / "index.json", "2026-11-02"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: None, "cannot be read: No such file or directory; give SkyPilot's vms"),
        (lambda file: file.write_text("{}"), "has none of the known layouts; give SkyPilot's vms"),
        (lambda file: file.write_text("price\n"), "is no price file of SkyPilot"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / "prices")
    with pytest.raises(CatalogError, match=message):
        list(read_prices(tmp_path / "prices"))

"""SkyPilot's price files: every row is kept or named, and prices and sizes are those that a user would pay and get."""

import csv
import datetime
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zooid.catalog.importers import ImportedPrices
from zooid.catalog.importers.skypilot_files import find_skypilot_files, read_skypilot_file
from zooid.catalog.machine_prices import MachinePrice
from zooid.core.errors import CatalogError

REAL = Path(__file__).parents[3] / "shared" / "data" / "prices"
COLUMNS = (
    "InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo", "Price", "SpotPrice",
    "Region", "AvailabilityZone",
)  # fmt: skip
CPU = {"InstanceType": "c5.xlarge", "vCPUs": "4", "MemoryGiB": "8", "Price": "0.17", "SpotPrice": "0.06",
       "Region": "us-east-1", "AvailabilityZone": "use1-az1"}  # fmt: skip
DATE = "2026-08-22"


def gpus(mib: int, count: int = 1, total: int | None = None) -> str:
    return str({"Gpus": [{"Count": count, "MemoryInfo": {"SizeInMiB": mib}}], "TotalGpuMemoryInMiB": total or mib})


def text_of(rows: Sequence[Mapping[str, str]], columns: Sequence[str] = COLUMNS) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read(folder: Path, cloud: str, text: str) -> ImportedPrices:
    (folder / cloud).mkdir(exist_ok=True)
    file = folder / cloud / "vms.csv"
    file.write_text(text)
    return read_skypilot_file(file, DATE)


def only(imported: ImportedPrices) -> MachinePrice:
    [machine] = imported.prices.machines
    return machine


def test_the_order_of_columns_does_not_matter(tmp_path: Path) -> None:
    """Columns of one cloud, which others do not have, are passed over."""
    with_more = ("SpotPrice", "Generation", *(name for name in COLUMNS if name != "SpotPrice"))
    rows = [CPU, {**CPU, "InstanceType": "c5.2xlarge"}]
    first, second = read(tmp_path, "aws", text_of(rows)), read(tmp_path, "aws", text_of(rows, with_more))
    assert first.prices == second.prices
    assert first.num_kept == 2


def test_a_machine_is_one_offer_on_demand_and_a_spot_offer_for_each_zone(tmp_path: Path) -> None:
    prices = read(tmp_path, "aws", text_of([CPU, {**CPU, "AvailabilityZone": "use1-az2", "SpotPrice": "0.05"}])).prices
    assert {offer.name: offer.usd_per_hour for offer in prices.offers()} == {
        "aws.us-east-1.c5.xlarge": 0.17,
        "aws.us-east-1.c5.xlarge.spot.use1-az1": 0.06,
        "aws.us-east-1.c5.xlarge.spot.use1-az2": 0.05,
    }
    assert {(offer.site, offer.date, offer.platform) for offer in prices.offers()} == {
        ("aws.us-east-1", DATE, "skypilot")
    }


def google(**cells: str) -> dict[str, str]:
    return {"Region": "us-central1", "AvailabilityZone": "us-central1-a", **cells}


def google_machine(name: str, usd: float, spot_usd: float) -> dict[str, str]:
    return google(InstanceType=name, vCPUs="12", MemoryGiB="85", Price=str(usd), SpotPrice=str(spot_usd))


def google_gpu(name: str, count: int, usd: float, spot_usd: float, mib: int = 40960) -> dict[str, str]:
    numbers = {"AcceleratorCount": str(count), "Price": str(usd), "SpotPrice": str(spot_usd)}
    return google(AcceleratorName=name, GpuInfo=gpus(mib), **numbers)


def test_googles_accelerators_join_the_machines_that_hold_them(tmp_path: Path) -> None:
    """A price of 0 of such a machine means that its accelerators' price is that of the whole."""
    rows = [
        google_machine("a2-highgpu-2g", 1.5, 0.9),
        google_machine("n1-standard-8", 0.4, 0.1),
        google_machine("a4-highgpu-8g", 0, 0),
        google_gpu("A100", 2, 5.9, 3.4),
        google_gpu("T4", 1, 0.35, 0.19, mib=16384),
        google_gpu("B200", 8, 90.2, 39.6, mib=184320),
        google_gpu("A100", 16, 46.9, 27.1),
        google_machine("g2-standard-4", 0.15, 0.09),
    ]
    imported = read(tmp_path, "gcp", text_of(rows))
    assert {offer.name: round(offer.usd_per_hour, 9) for offer in imported.prices.offers()} == {
        "gcp.us-central1.n1-standard-8": 0.4,
        "gcp.us-central1.n1-standard-8.spot.us-central1-a": 0.1,
        "gcp.us-central1.a2-highgpu-2g": 7.4,
        "gcp.us-central1.a2-highgpu-2g.spot.us-central1-a": 4.3,
        "gcp.us-central1.n1-standard-8.1xt4": 0.75,
        "gcp.us-central1.n1-standard-8.1xt4.spot.us-central1-a": 0.29,
        "gcp.us-central1.a4-highgpu-8g": 90.2,
        "gcp.us-central1.a4-highgpu-8g.spot.us-central1-a": 39.6,
    }
    assert {row.line: row.detail for row in imported.rows_left_out} == {8: "A100", 9: "g2-standard-4"}
    assert imported.num_kept == 6


@pytest.mark.parametrize(
    ("gpu", "count", "info", "gib"),
    [
        ("A100-80GB", 1, gpus(80), 80),  # RunPod: GiB where MiB are meant
        ("A100-80GB", 8, gpus(80, 8, 640), 80),
        ("A100-80GB", 8, gpus(655360, 8, 5242880), 80),  # PrimeIntellect: all eight where one is meant
        ("RTX3090", 8, gpus(196608, 8), 24),  # Vast: likewise, and no more than one of another model may have
        ("V100", 8, gpus(16384, 8), 16),
        ("H200", 8, '{"Gpus":[{"Name":"H200","MemoryInfo":{"SizeInMiB":1155072}}]}', 141),
    ],
)
def test_memory_is_that_of_one_accelerator(tmp_path: Path, gpu: str, count: int, info: str, gib: int) -> None:
    row = {**CPU, "AcceleratorName": gpu, "AcceleratorCount": f"{count}.0", "GpuInfo": info}
    machine = only(read(tmp_path, "some", text_of([row])))
    assert machine.gpu_memory_bytes == gib * 2**30
    assert (machine.gpu, machine.num_gpus) == (gpu, count)


def test_memory_that_no_row_tells_is_that_of_the_model(tmp_path: Path) -> None:
    """Azure's rows have only the name of the accelerator."""
    row = {**CPU, "AcceleratorName": "K80", "AcceleratorCount": "1", "GpuInfo": "K80"}
    assert only(read(tmp_path, "azure", text_of([row]))).gpu_memory_bytes == pytest.approx(12e9, rel=1e-4)


def test_memory_of_an_unknown_model_is_not_guessed(tmp_path: Path) -> None:
    row = {**CPU, "AcceleratorName": "X9000", "AcceleratorCount": "4", "GpuInfo": gpus(65536, 4)}
    [left_out] = read(tmp_path, "some", text_of([row])).rows_left_out
    assert str(left_out) == "line 2: its memory may be that of one or of all accelerators (4 × X9000, 65536 MiB)"


@pytest.mark.parametrize("spot_usd", ["0.00", "0.17", "0.2"])
def test_a_spot_price_that_nobody_pays_is_left_out_and_named(tmp_path: Path, spot_usd: str) -> None:
    imported = read(tmp_path, "aws", text_of([{**CPU, "SpotPrice": spot_usd}]))
    assert only(imported).spot_usd_per_hour is None
    assert only(imported).usd_per_hour == 0.17
    assert [row.line for row in imported.spot_left_out] == [2]
    assert imported.num_kept == 1


def test_a_machine_may_have_a_spot_price_alone(tmp_path: Path) -> None:
    imported = read(tmp_path, "aws", text_of([{**CPU, "Price": ""}]))
    assert [offer.market for offer in imported.prices.offers()] == ["spot"]


def test_names_of_regions_may_have_commas(tmp_path: Path) -> None:
    rows = [{**CPU, "Region": region, "AvailabilityZone": ""} for region in ("Denmark, DK, EU", ", CA, NA")]
    offers = read(tmp_path, "vast", text_of(rows)).prices.offers()
    assert [offer.name for offer in offers if offer.market == "on_demand"] == [
        "vast.denmark-dk-eu.c5.xlarge",
        "vast.ca-na.c5.xlarge",
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Price": "", "SpotPrice": ""}, "it has no price"),
        ({"Price": "free"}, "its Price is no number"),
        ({"Price": "-1"}, "its Price is not a finite number of at least 0"),
        ({"Price": "nan"}, "its Price is not a finite number of at least 0"),
        ({"Price": "0"}, "its figures are not plausible"),
        ({"Price": "1700"}, "its figures are not plausible"),
        ({"vCPUs": ""}, "its vCPUs or memory are not given"),
        ({"MemoryGiB": "0"}, "its figures are not plausible"),
        ({"Region": ""}, "it has no region"),
        ({"InstanceType": ""}, "it has neither a machine nor an accelerator"),
        ({"AcceleratorName": "T4", "AcceleratorCount": "0.5"}, "it has a part of an accelerator, or none"),
        ({"AcceleratorCount": "2"}, "its accelerators have no name"),
        ({"AcceleratorName": "T4", "AcceleratorCount": "1", "GpuInfo": "{'Gpus': [}"}, "its GpuInfo is neither JSON"),
        ({"AcceleratorName": "T4", "AcceleratorCount": "1", "GpuInfo": "{'Gpu': 1}"}, "its GpuInfo has no list"),
        ({"AcceleratorName": "tpu-v5p-8", "AcceleratorCount": "1"}, "members compute on NVIDIA's GPUs"),
        ({"InstanceType": "c5.large"}, "an earlier row has the same machine and zone"),
    ],
)
def test_a_row_that_cannot_be_kept_is_named_by_its_line(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    sound = {**CPU, "InstanceType": "c5.large"}
    imported = read(tmp_path, "aws", text_of([sound, {**CPU, **changes}, {**CPU, "InstanceType": "c5.9xlarge"}]))
    [left_out] = imported.rows_left_out
    assert left_out.line == 3
    assert left_out.reason.startswith(reason)
    assert (imported.num_rows, imported.num_kept, len(imported.prices.machines)) == (3, 2, 2)


@pytest.mark.parametrize(
    ("line", "reason"),
    [("a,b", "it has more or fewer cells than the header"), ('"c5.large,,,4,8,,0.17,0.06,us-east-1,', "it is not CSV")],
)
def test_a_broken_line_spoils_no_other(tmp_path: Path, line: str, reason: str) -> None:
    head, first, second = text_of([CPU, {**CPU, "InstanceType": "c5.9xlarge"}]).splitlines()
    imported = read(tmp_path, "aws", "\n".join((head, first, line, "", second)))
    assert [(row.line, row.reason) for row in imported.rows_left_out] == [(3, reason)]
    assert imported.num_kept == 2


@pytest.mark.parametrize("text", ["", "InstanceType,Price\nc5.large,1\n", '"open\n', "{}"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CatalogError, match=r"is no price file of SkyPilot: its first line lacks .*v8/azure/vms\.csv"):
        read(tmp_path, "aws", text)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"holds no file vms\.csv; give SkyPilot's folder"):
        find_skypilot_files(tmp_path)


def test_the_date_is_when_the_file_was_last_changed(tmp_path: Path) -> None:
    read(tmp_path, "aws", text_of([CPU]))
    file = tmp_path / "aws" / "vms.csv"
    day_s = datetime.datetime(2026, 5, 4, 12).timestamp()
    os.utime(file, (day_s, day_s))
    assert read_skypilot_file(file).prices.date == "2026-05-04"
    assert find_skypilot_files(tmp_path) == (file,) == find_skypilot_files(file)


CELLS = {
    "InstanceType": st.sampled_from(["", "m1", "m2", "a2-highgpu-1g"]),
    "AcceleratorName": st.sampled_from(["", "", "A100", "X9000", "tpu-v4"]),
    "AcceleratorCount": st.sampled_from(["", "1", "8", "0.5", "x"]),
    "vCPUs": st.sampled_from(["12", "", "-1"]),
    "MemoryGiB": st.sampled_from(["85", "0", "many"]),
    "GpuInfo": st.sampled_from(["", gpus(40960), gpus(65536, 8), "{", "A100"]),
    "Price": st.sampled_from(["1", "2.5", "0", "", "inf"]),
    "SpotPrice": st.sampled_from(["0.5", "3", "0", ""]),
    "Region": st.sampled_from(["r1", "r2", ""]),
    "AvailabilityZone": st.sampled_from(["z1", "z2", ""]),
}


@given(rows=st.lists(st.fixed_dictionaries(CELLS), max_size=12), cloud=st.sampled_from(["aws", "gcp"]))
def test_every_row_is_kept_or_named_once(
    rows: list[dict[str, str]], cloud: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    imported = read(tmp_path_factory.mktemp("prices"), cloud, text_of(rows))
    lines = [row.line for row in imported.rows_left_out]
    assert lines == sorted(set(lines))
    assert imported.num_rows == len(rows) == imported.num_kept + len(lines)
    offers = list(imported.prices.offers())
    assert len({offer.name for offer in offers}) == len(offers)
    assert all(offer.usd_per_hour > 0 for offer in offers)


@pytest.mark.parametrize("file", sorted(REAL.rglob("vms.csv")) or [None], ids=lambda file: file and file.parent.name)
def test_real_files_are_read_whole(file: Path | None) -> None:
    if file is None:
        pytest.skip(f"there are no files of prices under {REAL}")
    imported = read_skypilot_file(file)
    num_lines = sum(1 for line in file.read_text().splitlines() if line) - 1
    assert imported.num_rows == num_lines == imported.num_kept + len(imported.rows_left_out)
    assert imported.num_kept > 0.85 * num_lines
    offers = list(imported.prices.offers())
    assert len({offer.name for offer in offers}) == len(offers)
    assert all(
        2**32 <= offer.gpu_memory_bytes < 320 * 2**30 for offer in offers if offer.gpu and offer.gpu_memory_bytes
    )

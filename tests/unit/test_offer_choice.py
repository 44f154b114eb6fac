"""`zooid catalog`: which offers are shown, in which order, and the price lists that a user has imported."""

import datetime
from pathlib import Path

import msgspec
import pytest

from zooid.catalog import offers
from zooid.catalog.machine_prices import MachinePrice, MachinePriceList
from zooid.catalog.offer_choice import OfferChoice, chosen_offers
from zooid.catalog.price_cache import OLD_DAYS, age_days, imported_offers, keep_prices, kept_prices
from zooid.cli.catalog_command import catalog
from zooid.core.errors import CatalogError, InputError, UnitError
from zooid.core.resources.offer import Offer

GIB = 2**30


@pytest.fixture(autouse=True)
def prices_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "prices"
    monkeypatch.setenv("ZOOID_PRICES", str(folder))
    return folder


def prices(usd: float, provider: str = "aws", date: str = "2026-11-02") -> MachinePriceList:
    machine = MachinePrice(
        instance_type="g5.12xlarge", region="us-east-1", vcpus=48, memory_bytes=192 * GIB, gpu="A10G", num_gpus=4,
        gpu_memory_bytes=24 * GIB, usd_per_hour=usd,
    )  # fmt: skip
    return MachinePriceList(provider=provider, source="a test", date=date, machines=(machine,))


def names(choice: OfferChoice, order: str = "price") -> list[str]:
    return [offer.name for offer in chosen_offers(offers(), choice, order)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choice", "fits"),
    [
        (OfferChoice(gpus=("T4", "M60")), lambda offer: offer.gpu in ("T4", "M60")),
        (OfferChoice(min_gpus=2), lambda offer: offer.num_gpus >= 2),
        (OfferChoice(min_memory_bytes=10**11), lambda offer: offer.memory_bytes >= 10**11),
        (OfferChoice(market="spot"), lambda offer: offer.market == "spot"),
        (OfferChoice(kind="function"), lambda offer: offer.kind == "function"),
        (OfferChoice(region="us-west-2"), lambda offer: offer.region == "us-west-2"),
        (OfferChoice(max_usd_per_hour=0.5), lambda offer: offer.usd_per_hour <= 0.5),
        (OfferChoice(names=("gcp", "aws.ec2.p3.2xlarge")), lambda offer: offer.name.startswith("gcp.")
         or offer.name == "aws.ec2.p3.2xlarge"),
    ],
)  # fmt: skip
def test_each_condition_keeps_what_meets_it(choice: OfferChoice, fits: "object") -> None:
    assert callable(fits)
    expected = {offer.name for offer in offers() if fits(offer)}
    assert set(names(choice)) == expected
    assert 0 < len(expected) < len(offers())


def test_the_cheapest_come_first_by_machine_gpu_or_vcpu() -> None:
    found = {offer.name: offer for offer in offers()}

    def for_gpu(offer: Offer) -> float:
        return offer.usd_per_hour / offer.num_gpus

    by_price = [found[name].usd_per_hour for name in names(OfferChoice())]
    by_gpu = [for_gpu(found[name]) for name in names(OfferChoice(min_gpus=1), "gpu-price")]
    by_vcpu = [found[name].usd_per_hour / found[name].vcpus for name in names(OfferChoice(), "vcpu-price")]
    for ordered in (by_price, by_gpu, by_vcpu):
        assert ordered == sorted(ordered)
    assert names(OfferChoice(), "name") == sorted(found)
    assert names(OfferChoice(), "gpu-price")[-1] in {name for name, offer in found.items() if not offer.gpu}


def test_names_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match=r"no offer is named 'aws\.ec3', or begins with aws\.ec3\."):
        names(OfferChoice(names=("aws.ec3",)))
    with pytest.raises(InputError, match=r"no offer has a T5; the catalog has .*T4"):
        names(OfferChoice(gpus=("T5",)))


def test_a_list_is_kept_until_its_provider_has_a_newer_one() -> None:
    keep_prices(prices(5.0))
    keep_prices(prices(1.0, provider="azure"))
    keep_prices(prices(6.0))
    assert kept_prices() == (prices(6.0), prices(1.0, provider="azure"))
    assert {offer.name: offer.usd_per_hour for offer in imported_offers()} == {
        "aws.us-east-1.g5.12xlarge": 6.0,
        "azure.us-east-1.g5.12xlarge": 1.0,
    }


def test_a_damaged_list_is_named(prices_folder: Path) -> None:
    file = keep_prices(prices(5.0))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CatalogError, match=r"remove .*aws\.json, and import its prices again"):
        kept_prices()


@pytest.mark.parametrize(("days", "is_old"), [(OLD_DAYS, False), (OLD_DAYS + 1, True)])
def test_old_prices_are_warned_of(days: int, is_old: bool, capfd: pytest.CaptureFixture[str]) -> None:
    date = (datetime.date.today() - datetime.timedelta(days=days)).isoformat()
    assert age_days(date) == days
    keep_prices(prices(5.0, date=date))
    catalog(["aws.us-east-1"])
    printed = capfd.readouterr()
    assert "aws.us-east-1.g5.12xlarge" in printed.out
    assert ("this price is older than 90 days" in printed.err) is is_old


def test_a_price_of_several_gpus_is_shown_for_each(capfd: pytest.CaptureFixture[str]) -> None:
    keep_prices(prices(6.0))
    catalog(["aws.us-east-1"])
    heads, row, count = capfd.readouterr().out.splitlines()
    assert row.split() == ["$6.00", "$1.50", "4", "×", "A10G", "48", "206.2", "GB", "2026-11-02", row.split()[-1]]
    assert (heads.split()[-1], count) == ("offer", "1 offer")


def test_lists_and_json(capfd: pytest.CaptureFixture[str]) -> None:
    keep_prices(prices(6.0))
    catalog(lists=True)
    assert "2026-11-02" in capfd.readouterr().out
    catalog(["aws.us-east-1"], as_json=True)
    [offer] = msgspec.json.decode(capfd.readouterr().out, type=list[Offer])
    assert (offer.name, offer.usd_per_hour, offer.source) == ("aws.us-east-1.g5.12xlarge", 6.0, "a test")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sort": "colour"}, "--sort is 'colour'; give price, gpu-price, vcpu-price or name"),
        ({"market": "black"}, "--market is 'black'; give on_demand, spot or owned"),
        ({"date": "yesterday"}, "--date is 'yesterday'; give a day such as 2026-08-22"),
        ({"limit": 0}, "--limit is 0; give 1 or more"),
    ],
)
def test_bad_options_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        catalog(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"max_usd": "cheap"}, {"min_memory": "much"}])
def test_bad_amounts_are_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(UnitError):
        catalog(**arguments)  # type: ignore[arg-type]


def test_nothing_is_kept_if_one_of_several_files_is_no_price_file(tmp_path: Path, prices_folder: Path) -> None:
    for cloud, text in (("aws", "InstanceType\n"), ("azure", "")):
        (tmp_path / "files" / cloud).mkdir(parents=True)
        (tmp_path / "files" / cloud / "vms.csv").write_text(text)
    with pytest.raises(CatalogError, match="is no price file of SkyPilot"):
        catalog(import_from=[tmp_path / "files"])
    assert not prices_folder.exists()

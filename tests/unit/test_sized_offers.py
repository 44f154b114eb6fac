"""Offers that are sized by resource: every size has its name and price; what is no size is refused with the next."""

import re

import pytest

from zooid import catalog
from zooid.catalog.shipped_tables import check_offer, sized_offers
from zooid.coordinator.plans.markets import offers_named
from zooid.coordinator.plans.offer_names import largest_offers, offers_to_start, only_offer, resolve_offers
from zooid.coordinator.plans.plan_validation import fixed_layout
from zooid.core.errors import CatalogError, InputError
from zooid.core.plans.plan import Limits
from zooid.core.records import InvalidValue
from zooid.core.resources.sized_offer import SizedOffer, sizes_of

MIB, GB = 2**20, 10**9


def made(**changed: object) -> SizedOffer:
    fields: dict[str, object] = {
        "name": "made.sized",
        "platform": "made",
        "kind": "container",
        "market": "on_demand",
        "region": "anywhere",
        "site": "here",
        "sizes": "1 2: 1 to 3 by 0.5",
        "memory_unit": "GB",
        "unit_bytes": GB,
        "usd_per_vcpu_hour": 0.1,
        "usd_per_gb_hour": 0.01,
        "gb_bytes": GB,
        "source": "made up",
        "date": "2025-01",
    }
    return SizedOffer(**(fields | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "vcpus", "memory_bytes", "usd_per_hour"),
    [
        ("aws.lambda.128", 128 / 1769, 128 * MIB, 0.06000012 / 8),
        ("aws.lambda.3008", 3008 / 1769, 3008 * MIB, 0.06000012 * 3008 / 1024),
        ("aws.lambda.10240", 10240 / 1769, 10240 * MIB, 0.6000012),
        ("azure.aci.cpu.4x3.5", 4, 3.5 * GB, 4 * 0.0405 + 3.5 * 0.00445),
        ("azure.aci.cpu.1x16", 1, 16 * GB, 0.0405 + 16 * 0.00445),
        ("azure.jobs.cpu.0.75x1.5", 0.75, 1536 * MIB, 3600 * (0.75 * 0.000024 + 1.5 * 0.000003)),
        ("gcp.run.cpu.4x2.375", 4, 2432 * MIB, 3600 * (4 * 0.000018 + 2.375 * 0.000002)),
        ("aws.microvm.4096", 2, 4096 * MIB, 3600 * (2 * 0.0000276944 + 4 * 0.0000036667)),
    ],
)
def test_a_size_costs_its_unit_prices(name: str, vcpus: float, memory_bytes: float, usd_per_hour: float) -> None:
    sized = catalog.offer(name)
    assert (sized.name, sized.memory_bytes, sized.sized_by) == (name, memory_bytes, "")
    assert sized.vcpus == pytest.approx(vcpus, abs=1e-4)
    assert sized.usd_per_hour == pytest.approx(usd_per_hour, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "usd_per_hour"),
    [
        ("azure.aci.cpu.1x1", 0.04050 + 0.00445),
        ("azure.aci.cpu.4x4", 4 * 0.04050 + 4 * 0.00445),
        ("azure.aci.cpu.4x8", 4 * 0.04050 + 8 * 0.00445),
        ("azure.aci.cpu.4x16", 4 * 0.04050 + 16 * 0.00445),
    ],
)
def test_container_groups_cost_what_hydrozoas_table_3_says(name: str, usd_per_hour: float) -> None:
    assert catalog.offer(name).usd_per_hour == round(usd_per_hour, 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "aws.lambda.127",
            r"'127' is no size of aws.lambda, which has 128 to 10240 MB in steps of 1 MB; .*lambda.128$",
        ),
        ("aws.lambda.10241", r"nearest to it: aws.lambda.10240$"),
        ("aws.lambda.1024.5", r"nearest to it: aws.lambda.1024, aws.lambda.1025$"),
        ("aws.lambda.01024", r"write aws.lambda.1024$"),
        ("aws.lambda.large", r"'large' is no size .* give one, for example aws.lambda.512$"),
        ("aws.lambda.1x2", r"give one, for example aws.lambda.512$"),
        ("aws.lambda.nan", r"give one, for example aws.lambda.512$"),
        ("aws.lambda", r"aws.lambda has many sizes; give one, for example aws.lambda.512$"),
        ("aws.microvm.3000", r"has 2048, 4096, .*32768 MB; nearest to it: aws.microvm.2048, aws.microvm.4096$"),
        (
            "azure.aci.cpu.4x3.55",
            r"1, 2, 3, 4 vCPUs with 1 to 16 GB in steps of 0.1 GB; .*cpu.4x3.5, .*4x3.6$",
        ),
        ("azure.aci.cpu.6x20", r"nearest to it: azure.aci.cpu.4x16$"),
        ("gcp.run.cpu.4x1", r"4 vCPUs with 2 to 16 GiB in steps of 0.125 GiB, .* nearest to it: gcp.run.cpu.4x2$"),
        ("azure.aci.cpu.4", r"give one, for example azure.aci.cpu.1x1$"),
        (
            "azure.jobs.cpu.3x4",
            r"0.25 vCPUs with 0.5 GiB, .*, …, 4 vCPUs with 8 GiB; nearest to it: .*3x6$",
        ),
    ],
)
def test_what_is_no_size_is_refused_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message.replace("aws.", r"aws\.")):
        catalog.offer(name)
    if catalog.sized_offer(name) is not None and name != "aws.lambda":
        with pytest.raises(InputError, match=re.escape(name.rpartition(".")[2])):
            offers_named([name])


def test_every_size_has_a_plausible_price_and_can_be_found_by_its_name() -> None:
    for sized in sized_offers():
        sizes = sizes_of(sized)
        for size in (*sizes[:50], *sizes[-50:], *sizes[:: max(1, len(sizes) // 50)]):
            found = catalog.offer(f"{sized.name}.{size}")
            check_offer(found)
            assert found == sized.offer_of(size)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sizes": "1 2"}, "give memory by vCPUs, or else `memory_per_vcpu`"),
        ({"sizes": "1 2: 1 to 3 by 0.3"}, "are no amounts; give a list as `1 2 4`, or a range"),
        ({"sizes": "1 2: 3 2"}, "must be ascending and above 0"),
        ({"sizes": "1 2: some"}, "are no amounts"),
        ({"sizes": "1 2 3", "memory_per_vcpu": 2.0}, "`tried` of made.sized is ''; give some of `sizes`"),
        ({"sizes": "1 2 3", "memory_per_vcpu": 2.0, "tried": "4"}, "`tried` of made.sized is '4'; give some"),
        ({"tried": "1"}, "`tried` of made.sized is '1'; give .* or nothing"),
        ({"gb_bytes": 0}, "`gb_bytes` of made.sized is 0; it must be above 0"),
    ],
)
def test_a_malformed_row_is_refused(changed: dict[str, object], message: str) -> None:
    assert len(sizes_of(made())) == 10
    with pytest.raises(InvalidValue, match=message):
        made(**changed)


class TestNames:
    def test_the_name_of_a_sized_offer_lets_the_planner_choose_and_a_size_stays(self) -> None:
        assert {offer.sized_by for offer in offers_named(["aws.lambda"])} == {"aws.lambda"}
        [named] = offers_named(["aws.lambda.3008"])
        assert (named.name, named.sized_by) == ("aws.lambda.3008", "")
        assert {offer.sized_by for offer in offers_to_start(["azure.aci.cpu"])} == {"azure.aci.cpu"}
        assert only_offer("azure.aci.cpu.2x7.3").memory_bytes == 7.3 * GB

    def test_the_largest_size_is_the_one_to_measure(self) -> None:
        assert list(resolve_offers(["aws.lambda", "azure.aci.cpu"])) == ["aws.lambda.10240", "azure.aci.cpu.4x16"]
        [largest] = largest_offers(["azure.aci.cpu"])
        assert (largest.vcpus, largest.memory_bytes, largest.sized_by) == (4, 16 * GB, "")
        assert [offer.name for offer in largest_offers(["local"])] == ["local"]

    def test_a_job_that_is_not_profiled_needs_a_size(self) -> None:
        layout = Limits(num_replicas=1, num_stages=1)
        with pytest.raises(InputError, match=r"aws.lambda has many sizes, .* give a size, for example .*512, or"):
            fixed_layout(None, layout, None, None, offers_to_start(["aws.lambda"]))
        assert (
            fixed_layout(None, layout, None, None, offers_to_start(["aws.lambda.3008"])).offer.name == "aws.lambda.3008"
        )

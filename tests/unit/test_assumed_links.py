"""Links that nobody has measured are as fast as interfaces, only where these are known, and said to be assumed."""

from msgspec import structs

from tests.unit.profiles import link, offer
from zooid.coordinator.plans.assumed_links import with_assumed_links
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.predictor import directed_links

GBIT_PER_S = 125e6


def machine(name: str, gbit: float | None, region: str = "us-east-1") -> Offer:
    bandwidth = None if gbit is None else gbit * GBIT_PER_S
    return offer(
        1.0,
        name=f"aws.{name}",
        platform="skypilot",
        region=region,
        site=f"aws.{region}",
        bandwidth_bytes_per_s=bandwidth,
    )


def assumed(offers: list[Offer], known: list[Link]) -> tuple[list[Offer], dict[tuple[str, str], Link], list[str]]:
    placed, added, notes = with_assumed_links(offers, known, dict(directed_links(known)))
    by_ends = {(each.from_site, each.to_site): each for each in added}
    assert len(by_ends) == len(added)
    return placed, by_ends, notes


def test_interfaces_of_one_bandwidth_are_one_site() -> None:
    placed, links, notes = assumed([machine("a", 10), machine("b", 10), machine("c", 2.5)], [])
    fast, slow = "aws.us-east-1.10gbit", "aws.us-east-1.2.5gbit"
    assert [each.site for each in placed] == [fast, fast, slow]
    assert links[fast, fast].bandwidth_bytes_per_s == 10 * GBIT_PER_S
    assert links[fast, slow].bandwidth_bytes_per_s == links[slow, fast].bandwidth_bytes_per_s == 2.5 * GBIT_PER_S
    assert links[fast, STORE_SITE].bandwidth_bytes_per_s == 10 * GBIT_PER_S
    assert links[STORE_SITE, slow].bandwidth_bytes_per_s == 2.5 * GBIT_PER_S
    assert all(each.source.startswith("assumed") for each in links.values())
    [note] = notes
    assert "3 offers were never measured" in note
    assert "2.5 to 10 Gbit/s" in note


def test_an_unknown_interface_stays_without_links() -> None:
    unknown = machine("a", None)
    assert assumed([unknown], []) == ([unknown], {}, [])


def test_what_was_measured_stays() -> None:
    site = "aws.us-east-1"
    measured = [
        link(5e7, 0.01, from_site=site, to_site=STORE_SITE),
        link(6e7, 0.01, from_site=STORE_SITE, to_site=site),
    ]
    placed, links, _ = assumed([machine("a", 10)], measured)
    own = placed[0].site
    assert links[own, STORE_SITE].bandwidth_bytes_per_s == 5e7
    assert links[STORE_SITE, own].bandwidth_bytes_per_s == 6e7
    assert links[own, own].bandwidth_bytes_per_s == 10 * GBIT_PER_S
    complete = [*measured, link(7e7, 0.001, from_site=site, to_site=site)]
    assert assumed([machine("a", 10)], complete) == ([machine("a", 10)], {}, [])


def test_nothing_is_assumed_between_regions_but_measured_links_count_there_too() -> None:
    here, there = machine("a", 10), machine("b", 10, region="us-west-2")
    placed, links, _ = assumed([here, there], [])
    assert (placed[0].site, placed[1].site) not in links
    between = [link(1e7, 0.06, from_site=here.site, to_site=there.site)]
    placed, links, _ = assumed([here, there], between)
    assert links[placed[0].site, placed[1].site].bandwidth_bytes_per_s == 1e7
    assert (placed[1].site, placed[0].site) not in links


def test_members_that_accept_no_connections_have_links_to_the_store_only() -> None:
    closed = structs.replace(machine("a", 10), accepts_connections=False)
    _, links, _ = assumed([closed], [])
    assert {end for ends in links for end in ends} == {"aws.us-east-1.10gbit", STORE_SITE}
    assert ("aws.us-east-1.10gbit", "aws.us-east-1.10gbit") not in links


def test_ones_own_machines_are_measured_instead() -> None:
    own = offer(name="ssh.gpu", platform="ssh", kind="owned", site="ssh.gpu", bandwidth_bytes_per_s=1e9)
    assert assumed([own], []) == ([own], {}, [])

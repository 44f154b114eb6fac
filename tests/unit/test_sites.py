"""Members at sites: the search equals trying everything, and everything is timed by the published formulas."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.paper_formulas import granularity
from tests.unit.site_instances import Reference, choice_of, link, num_by_offer, problems, rates
from zooid.core.errors import InputError
from zooid.core.resources.prices import FREE
from zooid.planner.sites import Egress, SiteOffer, SiteProblem, egress_between, site_front
from zooid.predictor.equations import averaging_s, hierarchical_s, hub_s
from zooid.predictor.equations.site_rounds import SiteLinks, by_site_s, everyone_s

quick = settings(max_examples=100, deadline=None, derandomize=True)


@quick
@given(problems())
def test_the_front_equals_trying_everything(problem: SiteProblem) -> None:
    """Nothing that was tried beats any of it, or is not reached by some of it, in both; up to the last digits."""
    front = site_front(problem)
    assert (front.proof.status, front.proof.gap) == ("optimal", 0)
    own = np.array([(choice.time_s, choice.usd) for choice in front.choices])[:, None]
    other = np.array([row[1:] for row in Reference(problem).all()])
    less, more = 1 - 1e-9, 1 + 1e-9
    assert not (other < own * less).all(axis=2).any()
    assert (own <= other * more + 1e-15).all(axis=2).any(axis=0).all()
    assert (np.diff(own[:, 0, 0]) > 0).all()
    assert (np.diff(own[:, 0, 1]) < 0).all()
    assert own[0, 0, 0] == pytest.approx(other[:, 0].min(), rel=1e-9)
    assert own[-1, 0, 1] == pytest.approx(other[:, 1].min(), rel=1e-9, abs=1e-12)


# The formulas


@quick
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any), rates, rates, st.integers(1, 9))
def test_with_one_kind_of_link_sites_do_not_matter(sizes: list[int], stream: float, capacity: float, k: int) -> None:
    shape = (len(sizes), len(sizes))
    links = SiteLinks(
        np.full(shape, min(stream, capacity)),
        np.full(shape, capacity),
        np.full(shape, 0.05),
        np.full(len(sizes), np.inf),
    )
    own = everyone_s(1e9, sizes, links, np.full(shape, float(k)))
    assert own == pytest.approx(float(averaging_s(1e9, sum(sizes), min(stream, capacity), capacity, 0.05, k)))


@quick
@given(st.integers(1, 8), st.integers(2, 4), rates, rates, st.integers(1, 9))
def test_equal_sites_have_as_many_streams_between_them_as_members(
    size: int, num_sites: int, stream: float, capacity: float, k: int
) -> None:
    shape = (num_sites, num_sites)
    inside = np.eye(num_sites, dtype=bool)
    links = SiteLinks(
        np.where(inside, 1e9, min(stream, capacity)),
        np.where(inside, 1e9, capacity),
        np.zeros(shape),
        np.full(num_sites, np.inf),
    )
    between = size * min(capacity, k * (num_sites - 1) * min(stream, capacity))
    own = by_site_s(1e9, [size] * num_sites, links, np.full(shape, float(k)), 4)
    assert own == pytest.approx(float(hierarchical_s(1e9, [size] * num_sites, 1e9, between, num_chunks=4)))


def test_a_hub_takes_all_sums_and_gives_all_back() -> None:
    sizes, both = [2, 1, 1], [0.3e9, 0.1e9, 0.2e9]
    inside_s, to_far_s = 2 * 0.5, 1 / 0.1
    assert hub_s(1e9, sizes, 0, 1e9, both, both) == pytest.approx(inside_s + 2 * to_far_s)
    slow_hub = [0.15e9, 0.1e9, 0.2e9]
    assert hub_s(1e9, sizes, 0, 1e9, slow_hub, both) == pytest.approx(inside_s + 2 / 0.15 + to_far_s)
    assert hub_s(1e9, sizes, 0, 1e9, both, both, 0.01, 0.1) == pytest.approx(inside_s + 2 * to_far_s + 0.22)
    assert hub_s(1e9, sizes, 0, 1e9, both, both, num_chunks=1e9) == pytest.approx(to_far_s, rel=1e-6)
    assert hub_s(1e9, [4, 0, 0], 0, 1e9, both, both) == pytest.approx(float(hierarchical_s(1e9, [4], 1e9, 1.0)))
    with pytest.raises(InputError, match="size of the hub"):
        hub_s(1e9, [0, 1], 0, 1e9, 1e9, 1e9)


# Streams


@pytest.mark.parametrize(("slack", "num_streams"), [(0.0, 29), (0.02, 28), (0.5, 15)])
def test_streams_are_the_fewest_near_the_best(slack: float, num_streams: int) -> None:
    """Across the Atlantic one carries 26.25 MB/s and all together 750 (Table 5; the paper's artifacts)."""
    choice = choice_of(pair(stream_slack=slack), {"here": 1, "there": 1})
    assert {link.num_streams for link in choice.links} == {num_streams}


def test_no_more_streams_than_allowed() -> None:
    choice = choice_of(pair(max_streams=8), {"here": 1, "there": 1})
    assert {link.num_streams for link in choice.links} == {8}
    assert choice.averaging_s == pytest.approx(1e9 / (8 * 26.25e6) + 0.1)


def pair(**changes: object) -> SiteProblem:
    """Two sites across an ocean, one of them one's own."""
    plain = SiteProblem(
        offers=(
            SiteOffer(name="here", site="a", samples_per_s=100, usd_per_hour=0, max_members=4),
            SiteOffer(name="there", site="b", samples_per_s=100, usd_per_hour=1, max_members=4),
        ),
        links=(link("a", "a", 1e9), link("b", "b", 1e9), link("a", "b", 750e6, 26.25e6, 0.1)),
        egress=tuple(
            Egress(from_site=a, to_site=b, usd_per_gb=0.0 if a == "a" else 0.1 if a != b else 0.01)
            for a in "ab"
            for b in "ab"
        ),
        batch_size=1000,
        gradient_bytes=1e9,
        num_samples=100_000,
    )
    return msgspec.structs.replace(plain, **changes)


# Ties, bounds and batches


def test_of_what_is_free_the_fastest_is_taken() -> None:
    cheapest = site_front(pair()).choices[-1]
    assert (num_by_offer(cheapest), cheapest.usd) == ({"here": 4}, 0)


def test_a_search_that_is_cut_short_proves_nothing() -> None:
    cut, full = site_front(pair(), max_boxes=0), site_front(pair())
    assert (cut.proof.status, cut.proof.gap) == ("bounded", 1)
    assert cut.choices[0].time_s >= full.choices[0].time_s


def test_sites_without_a_link_meet_through_a_hub() -> None:
    apart = SiteProblem(
        offers=tuple(SiteOffer(name=s, site=s, samples_per_s=10, usd_per_hour=1, max_members=1) for s in "abc"),
        links=(link("a", "b", 1e9), link("b", "c", 1e9)),
        egress=tuple(Egress(from_site=a, to_site=b, usd_per_gb=0.01) for a in "abc" for b in "abc"),
        batch_size=1000,
        gradient_bytes=1e6,
        num_samples=100_000,
    )
    best = site_front(apart).choices[0]
    assert (len(best.counts), best.averaging, best.hub) == (3, "hub", "b")
    assert {(use.from_site, use.to_site) for use in best.links} == {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}
    assert len(site_front(msgspec.structs.replace(apart, averagings=("by_site",))).choices[0].counts) == 2
    assert np.isinf(choice_of(apart, {"a": 1, "c": 1}).averaging_s)


def test_doubling_the_batch_doubles_the_granularity() -> None:
    """Clouds and continents §3."""
    now, then = (choice_of(pair(batch_size=size), {"here": 4, "there": 4}) for size in (1000, 2000))
    assert granularity(then.compute_s, then.averaging_s) == pytest.approx(
        2 * granularity(now.compute_s, now.averaging_s)
    )
    assert then.usd < now.usd


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offers": ()}, "`offers` is empty"),
        ({"offers": pair().offers + pair().offers[:1]}, "`offers` has here twice"),
        ({"links": pair().links[1:]}, "none inside a, where several members can be rented"),
        ({"links": pair().links * 2}, "`links` has a to a twice"),
        ({"egress": pair().egress[1:]}, "no price from a to a; give one, 0 if it is free"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"gradient_bytes": 0.0}, "`gradient_bytes` is 0.0; it must be finite and above 0"),
        ({"max_members": 0}, "`max_members` is 0; it must be above 0, or None"),
        ({"stream_slack": 1.0}, "`stream_slack` is 1.0"),
        ({"averagings": ("ring",)}, "give some of everyone, by_site, hub"),
        ({"averagings": ("hub",)}, "give at least 3 sites"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pair(**changes)


def test_prices_of_the_catalog_become_egress() -> None:
    assert egress_between(FREE, ["a"]) == (Egress(from_site="a", to_site="a", usd_per_gb=0.0),)

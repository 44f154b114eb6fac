"""Offers that another one beats in every respect are left out, and the best plan is the same without them."""

import random
from typing import Any

import pytest

from tests.unit.profiles import SITE, layer, offer, profile, store_links
from zooid import catalog
from zooid.coordinator.plans.markets import markets_for, offers_named
from zooid.core.errors import PlanError
from zooid.core.plans.plan import Limits
from zooid.core.plans.profile import Profile
from zooid.core.resources.offer import Offer
from zooid.planner import Market, search, why_not
from zooid.planner import lots as planner_lots
from zooid.planner.dominance import without_dominated
from zooid.predictor import World, directed_links

LINKS = store_links(1e9, 0.001)
LAYERS = [layer(0.02, out_bytes=1e5, parameter_bytes=4_000_000) for _ in range(3)]
FAST, SLOW = profile(LAYERS, LINKS), profile([layer(0.04, out_bytes=1e5, parameter_bytes=4_000_000)] * 3, LINKS)


def made(name: str, usd_per_hour: float = 1.0, **changed: Any) -> Offer:
    return offer(usd_per_hour, name=name, **changed)


def kept(*offers: Offer, slow: tuple[str, ...] = (), **quotas: int) -> list[str]:
    known = {each.name: SLOW if each.name in slow else FAST for each in offers}
    market = Market(offers, World(known, directed_links(LINKS)), quotas)
    return [each.name for each in without_dominated(market).offers]


@pytest.mark.parametrize(
    "worse",
    [
        {"usd_per_hour": 2.0},
        {"usd_per_start": 0.1},
        {"billing_grain_s": 60.0},
        {"billing_minimum_s": 60.0},
        {"memory_bytes": 10**8},
        {"lifetime_s": 900.0},
        {"startup_s": 60.0},
        {"interruptions_per_hour": 0.1},
        {"accepts_connections": False},
        {"has_shared_memory": False},
    ],
)
def test_an_offer_that_is_worse_in_one_respect_is_left_out(worse: dict[str, Any]) -> None:
    assert kept(made("better"), made("worse", **worse)) == ["better"]
    assert kept(made("worse", **worse), made("better")) == ["better"]


def test_an_offer_that_is_better_in_one_respect_stays() -> None:
    assert kept(made("cheap"), made("dear", 2.0, memory_bytes=10**10)) == ["cheap", "dear"]
    assert kept(made("slow"), made("fast", 2.0), slow=("slow",)) == ["slow", "fast"]
    assert kept(made("fast"), made("slow"), slow=("slow",)) == ["fast"]


def test_grains_that_are_no_multiple_may_be_better_for_some_time() -> None:
    """3 s cost 4 s in grains of 2 s, and 3 s in grains of 3 s."""
    assert len(kept(made("two", billing_grain_s=2.0), made("three", billing_grain_s=3.0))) == 2
    assert kept(made("two", billing_grain_s=2.0), made("four", billing_grain_s=4.0)) == ["two"]


def test_of_two_that_are_alike_one_stays() -> None:
    assert kept(made("one"), made("two"), made("three")) == ["one"]


def test_other_sites_have_other_links() -> None:
    assert len(kept(made("here"), made("there", 2.0, site=f"not {SITE}"))) == 2


def test_what_is_limited_leaves_nothing_out() -> None:
    assert len(kept(made("few", max_members=2), made("many", 2.0))) == 2
    assert len(kept(made("few"), made("many", 2.0), few=2)) == 2


def test_why_an_offer_was_left_out_is_said() -> None:
    offers = (made("better"), made("worse", 2.0))
    market = Market(offers, World({each.name: FAST for each in offers}, directed_links(LINKS)))
    found = search(without_dominated(market), Limits(max_members=2))
    assert why_not(found, "worse") == (
        "worse is left out: an offer at the same site is as good or better in every respect."
    )


MEASURED = profile(
    [layer(seconds, out_bytes=2e5, parameter_bytes=8_000_000) for seconds in (0.3, 0.5, 0.2, 0.4)], (), num_samples=8000
)
NUM_CATALOGS = 10


def planned(offers: list[Offer], *, prunes: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, str]:
    """Return time, cost and layout of the pick, with everything that prunes, or with nothing that does."""
    with monkeypatch.context() as patch:
        if not prunes:
            patch.setattr("zooid.coordinator.plans.markets.without_dominated", lambda market: market)
            patch.setattr(planner_lots.Lot, "lower_bound", (0.0, 0.0))
        markets, _, _ = markets_for(offers, {"local": MEASURED})
        pick = search(markets, Limits(max_members=3), "cheapest").pick
    return pick.prediction.run_s, pick.prediction.run_usd, pick.layout


@pytest.mark.parametrize("seed", range(NUM_CATALOGS))
def test_the_pick_is_that_of_a_search_that_prunes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some offers of the catalog, drawn at random."""
    drawn = random.Random(seed).sample(offers_named(["all"]), 8)
    try:
        whole = planned(drawn, prunes=False, monkeypatch=monkeypatch)
    except PlanError as error:
        pytest.skip(f"nothing can be planned on these: {error}")
    pruned = planned(drawn, prunes=True, monkeypatch=monkeypatch)
    assert pruned[:2] == pytest.approx(whole[:2], rel=1e-9)


def test_a_lot_is_never_better_than_its_bounds() -> None:
    """Every plan of every lot, for offers of the catalog that can be mixed."""
    offers = [catalog.offer(name) for name in ("aws.lambda.1769", "aws.lambda.3072", "aws.ec2.g5.xlarge")]
    markets, _, _ = markets_for(offers, {"local": MEASURED})
    limits = Limits(max_members=3)
    num_plans = 0
    for lot in planner_lots.lots(markets, limits, lambda candidate: (candidate.lower_bound[0], 0, 0, 0)):
        for candidate in lot.candidates():
            assert candidate.lower_bound[0] >= lot.lower_bound[0] * (1 - 1e-12)
            assert candidate.lower_bound[1] >= lot.lower_bound[1] * (1 - 1e-12)
            num_plans += 1
    assert num_plans > 50


def test_profiles_that_differ_in_anything_are_compared_in_everything() -> None:
    slower_start: Profile = profile(LAYERS, LINKS, startup_cpu_s=5.0)
    offers = (made("one"), made("two"))
    market = Market(offers, World({"one": slower_start, "two": FAST}, directed_links(LINKS)))
    assert [each.name for each in without_dominated(market).offers] == ["two"]

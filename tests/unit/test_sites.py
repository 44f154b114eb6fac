"""Members at sites: the search equals trying everything, and everything is timed by the published formulas."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.site_instances import Reference, Tried, link, problems, rates
from zooid.core.errors import InputError, PlanError
from zooid.core.resources.prices import FREE
from zooid.planner.sites import (
    Egress,
    SiteChoice,
    SiteFront,
    SiteOffer,
    SiteProblem,
    batch_for,
    egress_between,
    loosenings,
    site_choice,
    site_front,
    site_reasons,
    solve_sites,
)
from zooid.predictor.equations import averaging_s, granularity, hierarchical_s, hub_s, speedup_of_batch
from zooid.predictor.equations.site_rounds import SiteLinks, by_site_s, everyone_s

quick = settings(max_examples=100, deadline=None, derandomize=True)


def value(problem: SiteProblem, time_s: float, usd: float) -> float:
    assert problem.hour_usd is not None
    return {"fastest": time_s, "cheapest": usd, "weighted": usd + problem.hour_usd * time_s / 3600}[problem.goal]


@quick
@given(problems(), st.floats(0, 1), st.sampled_from([None, "deadline_s", "budget_usd"]))
def test_every_goal_and_the_front_equal_trying_everything(
    problem: SiteProblem, tight: float, limit: str | None
) -> None:
    tried = list(Reference(problem).all())
    within: list[Tried] = tried
    limits: dict[str, float] = {}
    if limit is None:
        assert_front(site_front(problem), tried)
    else:
        ranked = sorted(row[1] if limit == "deadline_s" else row[2] for row in tried)
        most = limits[limit] = ranked[int(tight * (len(ranked) - 1))] * 1.0000001 + 1e-9
        within = [row for row in tried if (row[1] if limit == "deadline_s" else row[2]) <= most]
    for goal in ("fastest", "cheapest", "weighted"):
        asked = msgspec.structs.replace(problem, goal=goal, **limits)
        by_counts: dict[tuple[int, ...], float] = {}
        for counts, time_s, usd in within:
            by_counts[counts] = min(by_counts.get(counts, math.inf), value(asked, time_s, usd))
        plan = solve_sites(asked, num_choices=2)
        found = [value(asked, each.time_s, each.usd) for each in (plan.best, *plan.next_best)]
        assert found == pytest.approx(sorted(by_counts.values())[:2], rel=1e-9, abs=1e-12)
        assert (plan.proof.status, plan.proof.gap) == ("optimal", 0)


def assert_front(front: SiteFront, tried: list[Tried]) -> None:
    """Nothing that was tried beats any of it, or is not reached by some of it, in both; up to the last digits."""
    assert front.proof.status == "optimal"
    own = np.array([(choice.time_s, choice.usd) for choice in front.choices])[:, None]
    other = np.array([row[1:] for row in tried])
    less, more = 1 - 1e-9, 1 + 1e-9
    assert not (other < own * less).all(axis=2).any()
    assert (own <= other * more + 1e-15).all(axis=2).any(axis=0).all()
    assert (np.diff(own[:, 0, 0]) > 0).all()
    assert (np.diff(own[:, 0, 1]) < 0).all()


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
    choice = site_choice(pair(stream_slack=slack), {"here": 1, "there": 1})
    assert {way.num_streams for way in choice.ways} == {num_streams}


def test_no_more_streams_than_allowed() -> None:
    choice = site_choice(pair(most_streams=8), {"here": 1, "there": 1})
    assert {way.num_streams for way in choice.ways} == {8}
    assert choice.averaging_s == pytest.approx(1e9 / (8 * 26.25e6) + 0.1)


def pair(**changes: object) -> SiteProblem:
    """Two sites across an ocean, one of them one's own."""
    plain = SiteProblem(
        offers=(
            SiteOffer(name="here", site="a", samples_per_s=100, usd_per_hour=0, most=4),
            SiteOffer(name="there", site="b", samples_per_s=100, usd_per_hour=1, most=4),
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


# Ties, bounds and reasons


def test_of_what_is_free_the_fastest_is_taken() -> None:
    best = solve_sites(pair(goal="cheapest")).best
    assert (best.num_by_offer, best.usd) == ({"here": 4}, 0)


def test_a_search_that_is_cut_short_says_how_far_it_may_be_off() -> None:
    hard = pair(goal="weighted", hour_usd=5.0)
    cut, full = solve_sites(hard, most_boxes=1), solve_sites(hard)
    assert cut.proof.status == "bounded"
    assert 0 < cut.proof.gap < 1

    def total(choice: SiteChoice) -> float:
        return choice.usd + 5 * choice.time_s / 3600

    assert total(full.best) >= total(cut.best) * (1 - cut.proof.gap)
    with pytest.raises(PlanError, match="raise `most_boxes`"):
        solve_sites(pair(deadline_s=solve_sites(pair()).best.time_s * 0.99), most_boxes=0)


def test_sites_without_a_link_meet_through_a_hub() -> None:
    apart = SiteProblem(
        offers=tuple(SiteOffer(name=s, site=s, samples_per_s=10, usd_per_hour=1, most=1) for s in "abc"),
        links=(link("a", "b", 1e9), link("b", "c", 1e9)),
        egress=tuple(Egress(from_site=a, to_site=b, usd_per_gb=0.01) for a in "abc" for b in "abc"),
        batch_size=1000,
        gradient_bytes=1e6,
        num_samples=100_000,
    )
    best = solve_sites(apart).best
    assert (best.num_members, best.averaging, best.hub) == (3, "hub", "b")
    assert {(way.from_site, way.to_site) for way in best.ways} == {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}
    assert solve_sites(msgspec.structs.replace(apart, averagings=("by_site",))).best.num_members == 2
    with pytest.raises(PlanError, match="two of its sites have no link"):
        site_choice(apart, {"a": 1, "c": 1})


def test_reasons_say_what_one_more_brings_and_costs() -> None:
    problem = pair(most_members=4)
    now = solve_sites(problem).best
    assert now.num_by_offer == {"here": 4}
    here, there = site_reasons(problem, now).one_more
    for more, name in ((here, "here"), (there, "there")):
        counts = {**now.num_by_offer, name: now.num_by_offer.get(name, 0) + 1}
        then = site_choice(problem, counts, now.averaging)
        assert (more.time_s, more.usd) == pytest.approx((then.time_s - now.time_s, then.usd - now.usd))
        assert not more.can_be_had, "four are all that is allowed"
    assert here.time_s < 0 < there.time_s
    assert "faster" in here.sentence
    assert "$0.00 more" in here.sentence
    assert "slower" in there.sentence
    assert [more.can_be_had for more in site_reasons(pair(), now).one_more] == [False, True]


def test_a_larger_batch_is_advised_up_to_the_granularity_and_no_further() -> None:
    problem = pair()
    now = site_choice(problem, {"here": 4, "there": 4})
    assert now.granularity == pytest.approx(float(granularity(now.compute_s, now.averaging_s)))
    doubled = batch_for(problem, now, 2 * now.granularity)
    assert doubled.batch_size == 2000, "doubling the batch doubles the granularity (clouds and continents §3)"
    assert doubled.speedup == pytest.approx(float(speedup_of_batch(now.granularity, 2.0)))
    assert doubled.usd < now.usd
    advice = site_reasons(problem, now, wanted_granularity=5.0).larger_batch
    assert advice is not None
    for size, reached in ((advice.batch_size, True), (advice.batch_size - 1, False)):
        then = site_choice(msgspec.structs.replace(problem, batch_size=size), now.num_by_offer)
        assert (then.granularity >= 5.0) == reached
    assert f"A batch of {advice.batch_size} instead of 1000" in advice.sentence
    assert site_reasons(problem, now, wanted_granularity=now.granularity / 2).larger_batch is None


# Limits


def test_a_deadline_that_is_too_tight_names_what_would_do() -> None:
    fastest = solve_sites(pair())
    problem = pair(deadline_s=fastest.best.time_s * 0.9)
    with pytest.raises(PlanError, match=r"No choice ends within .* the fastest, .* takes .*; allow "):
        solve_sites(problem)
    by_limit = {change.limit: change for change in loosenings(problem, 10**6)}
    assert solve_sites(msgspec.structs.replace(problem, deadline_s=by_limit["deadline_s"].value)).best == fastest.best
    assert by_limit["deadline_s"].value < fastest.best.time_s * 1.01
    more = by_limit["most"]
    grown = [msgspec.structs.replace(o, most=int(more.value)) if o.name == more.offer else o for o in problem.offers]
    solve_sites(msgspec.structs.replace(problem, offers=tuple(grown)))
    batch = by_limit["batch_size"]
    solve_sites(msgspec.structs.replace(problem, batch_size=int(batch.value)))


def test_a_budget_that_is_too_small_names_what_would_do() -> None:
    rented = pair(offers=pair().offers[1:])
    cheapest = solve_sites(msgspec.structs.replace(rented, goal="cheapest")).best
    problem = msgspec.structs.replace(rented, budget_usd=cheapest.usd / 2)
    (change,) = loosenings(problem, 10**6)
    assert change.limit == "budget_usd"
    assert cheapest.usd <= change.value < cheapest.usd * 1.01
    assert solve_sites(msgspec.structs.replace(problem, budget_usd=change.value)).best.usd <= change.value
    assert loosenings(rented, 10**6) == ()


def test_two_limits_that_exclude_each_other_are_loosened_one_at_a_time() -> None:
    rented = pair(offers=pair().offers[1:])
    fastest = solve_sites(rented).best
    cheapest = solve_sites(msgspec.structs.replace(rented, goal="cheapest")).best
    assert fastest.usd > cheapest.usd
    problem = msgspec.structs.replace(rented, deadline_s=fastest.time_s * 1.01, budget_usd=cheapest.usd * 1.01)
    changes = {change.limit: change.value for change in loosenings(problem, 10**6)}
    for name in ("deadline_s", "budget_usd"):
        solve_sites(msgspec.structs.replace(problem, **{name: changes[name]}))
    hopeless = msgspec.structs.replace(rented, deadline_s=fastest.time_s / 2, budget_usd=cheapest.usd / 2)
    both = {change.limit: change.value for change in loosenings(hopeless, 10**6)}
    solve_sites(msgspec.structs.replace(hopeless, **both))


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offers": ()}, "`offers` is empty"),
        ({"offers": pair().offers + pair().offers[:1]}, "`offers` has here twice"),
        ({"links": pair().links[1:]}, "none inside a, where several members can be had"),
        ({"links": pair().links * 2}, "`links` has a to a twice"),
        ({"egress": pair().egress[1:]}, "no price from a to a; give one, 0 if it is free"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"gradient_bytes": 0.0}, "`gradient_bytes` is 0.0; it must be above 0"),
        ({"deadline_s": 0.0}, "`deadline_s` is 0.0; it must be above 0, or None"),
        ({"stream_slack": 1.0}, "`stream_slack` is 1.0"),
        ({"goal": "weighted"}, "say what an hour is worth"),
        ({"goal": "best"}, "give fastest, cheapest, weighted"),
        ({"averagings": ("ring",)}, "it may have everyone, by_site, hub"),
        ({"averagings": ("hub",)}, "no 3 sites"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pair(**changes)


def test_choices_that_are_none_are_refused() -> None:
    for counts, message in (({"nowhere": 1}, "no offer nowhere"), ({}, "no members"), ({"here": -1}, "no members")):
        with pytest.raises(InputError, match=message):
            site_choice(pair(), counts)
    with pytest.raises(InputError, match="a hub needs one of a, b"):
        site_choice(pair(), {"here": 1}, "hub")
    with pytest.raises(InputError, match="ask for at least 1"):
        solve_sites(pair(), num_choices=0)
    with pytest.raises(InputError, match="above 0, for example 4"):
        batch_for(pair(), solve_sites(pair()).best, math.inf)


def test_prices_of_the_catalog_become_egress() -> None:
    assert egress_between(FREE, ["a"]) == (Egress(from_site="a", to_site="a", usd_per_gb=0.0),)

"""The search over offers, layouts, cuts, grains and schedules finds what trying everything would, keeps every limit,
and says why."""

import contextlib
import importlib
import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.profiles import SITE, layer, link, offer, profile, store_links
from zooid.core.errors import HopelessPlan, InputError, PlanError
from zooid.core.plans.plan import Limits, Plan, TransportName
from zooid.core.plans.profile import LayerProfile, Profile, Spread
from zooid.core.plans.search_result import Goal, Search
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.link import Link
from zooid.core.resources.machine_sites import inside_of
from zooid.core.resources.offer import Offer
from zooid.planner import Market, search, single, why_not
from zooid.planner.drafts import draft, evaluate
from zooid.planner.families import families, grain_sizes, schedules
from zooid.planner.kept_members import plans_with
from zooid.planner.partition import smallest_need
from zooid.predictor import World, directed_links, stage_memory_bytes, stage_memory_table

SLOW, FAST = "made.slow", "made.fast"


def slower(made: Profile, factor: float) -> Profile:
    layers = [
        structs.replace(
            each,
            points=tuple(
                structs.replace(point, forward_s=factor * point.forward_s, backward_s=factor * point.backward_s)
                for point in each.points
            ),
        )
        for each in made.layers
    ]
    return structs.replace(made, layers=tuple(layers))


def two_offers(
    made: Profile, slow_usd: float = 1.0, fast_usd: float = 3.0, peers: tuple[Link, ...] = (), **quotas: int
) -> Market:
    """One takes twice as long as the other."""
    offers = (offer(slow_usd, name=SLOW), offer(fast_usd, name=FAST))
    profiles = {SLOW: slower(made, 2.0), FAST: made}
    named = {f"made.{name}": number for name, number in quotas.items()}
    return Market(offers, World(profiles, directed_links((*made.links, *peers))), named)


def every_proposal(
    market: Market, most: int, *, is_insured: bool = False, transport: TransportName = "store"
) -> Iterator[Plan]:
    """All layouts, cuts, grains and schedules, with any offer for any stage."""
    num_layers = len(market.profile.layers)
    for num_replicas, num_stages in itertools.product(range(1, most + 1), repeat=2):
        num_members = (max(2, num_replicas) if is_insured else num_replicas) * num_stages
        if num_members > most or num_stages > num_layers:
            continue
        for cuts in itertools.combinations(range(1, num_layers), num_stages - 1):
            partition = tuple(itertools.pairwise((0, *cuts, num_layers)))
            for offers in itertools.product(market.offers, repeat=num_stages):
                for grain_size in grain_sizes(market.profile):
                    if -(-market.profile.batch_size // grain_size) < num_replicas:
                        continue
                    for schedule, ahead in schedules(None, num_stages):
                        yield market.plan(
                            partition,
                            offers,
                            num_replicas=num_replicas,
                            grain_size=grain_size,
                            transport=transport,
                            schedule=schedule,
                            ahead=ahead,
                            insured=is_insured,
                        )


layer_lists = st.lists(
    st.builds(
        layer,
        st.floats(0.01, 2),
        out_bytes=st.sampled_from([0.0, 10.0, 300.0]),
        parameter_bytes=st.sampled_from([4, 400]),
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(layer_lists, st.sampled_from(["fastest", "cheapest"]), st.floats(20, 2000), st.booleans())
def test_it_finds_what_simulating_everything_would(
    layers: list[LayerProfile], goal: Goal, bandwidth: float, is_insured: bool
) -> None:
    """Three layers have at most two cuts into as many stages, so every partition is proposed."""
    check_against_everything(layers, goal, bandwidth, offer(usd_per_hour=36.0), is_insured)


risks = st.sampled_from(
    [
        {"interruptions_per_hour": 5.0},
        {"interruptions_per_hour": 60.0, "startup_s": 20.0},
        {"lifetime_s": 40.0, "startup_s": 2.0},
        {"interruptions_per_hour": 20.0, "lifetime_s": 60.0, "startup_s": 5.0, "billing_minimum_s": 30.0},
    ]
)
"""Rates of losses and lifetimes of an offer. Some runs of ten steps cannot even end on them."""


@settings(deadline=None, max_examples=15, derandomize=True)
@given(layer_lists.map(lambda layers: layers[:2]), st.sampled_from(["fastest", "cheapest"]), st.booleans(), risks)
def test_it_does_so_where_members_are_lost_or_run_out_of_time(
    layers: list[LayerProfile], goal: Goal, is_insured: bool, risk: dict[str, float]
) -> None:
    check_against_everything(layers, goal, 200.0, offer(usd_per_hour=36.0, **risk), is_insured)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(layer_lists, st.floats(20, 2000), st.floats(1, 50), st.booleans())
def test_it_does_so_where_members_share_machines(
    layers: list[LayerProfile], bandwidth: float, speedup: float, is_insured: bool
) -> None:
    """Links inside a machine are faster than those between two."""
    on = offer(36.0, machine_members=2)
    inside = inside_of(on)
    peers = (
        link(bandwidth, 0.01, from_site=SITE, to_site=SITE),
        link(bandwidth * speedup, 0.01 / speedup, from_site=inside, to_site=inside),
    )
    check_against_everything(layers, "fastest", bandwidth, on, is_insured, peers)


def check_against_everything(
    layers: list[LayerProfile],
    goal: Goal,
    bandwidth: float,
    on: Offer,
    is_insured: bool,
    peers: tuple[Link, ...] = (),
) -> None:
    market = single(profile(layers, store_links(bandwidth, 0.01)), on, peers)
    most = 4 if is_insured else 3
    plans = []
    may_have_copies = not is_insured and bool(on.losses_per_s)
    proposals = list(every_proposal(market, most, is_insured=is_insured))
    proposals += every_proposal(market, most, is_insured=is_insured, transport="tcp") if peers else ()
    proposals += every_proposal(market, most, is_insured=True) if may_have_copies else ()
    for proposal in proposals:
        with contextlib.suppress(HopelessPlan):
            plans.append(evaluate(draft(proposal, market)))
    limits = Limits(max_members=most, insured=is_insured)
    if not plans:
        with pytest.raises(PlanError, match="members"):
            search(market, limits, goal)
        return
    found = search(market, limits, goal)
    times = [plan.prediction.run_s if goal == "fastest" else plan.prediction.run_usd for plan in plans]
    own = found.pick.prediction.run_s if goal == "fastest" else found.pick.prediction.run_usd
    assert own == pytest.approx(min(times), rel=1e-9)
    assert found.proof.status == "optimal"
    assert found.num_simulated <= len(plans)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    layer_lists,
    st.floats(20, 2000),
    st.floats(0, 0.5),
    st.sampled_from(["store", "tcp"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_no_plan_is_below_the_bounds_of_its_family(
    layers: list[LayerProfile],
    bandwidth: float,
    rtt_s: float,
    transport: TransportName,
    is_local: bool,
    is_insured: bool,
    machine_members: int,
) -> None:
    on = offer(36.0, machine_members=machine_members, **({"platform": "local"} if is_local else {}))
    peers = (
        link(bandwidth, rtt_s, from_site=SITE, to_site=SITE),
        link(10 * bandwidth, rtt_s / 10, from_site=inside_of(on), to_site=inside_of(on)),
    )
    market = single(profile(layers, store_links(bandwidth, rtt_s)), on, peers)
    for family in families(market, Limits(max_members=4, transport=transport, insured=is_insured)):
        assert family.plan.num_members <= 4
        for made in family.drafts(3):
            prediction = evaluate(made).prediction
            for least_s, least_usd in (family.lower_bound, family.sharpened().lower_bound, made.lower_bound):
                assert least_s <= prediction.run_s * (1 + 1e-9)
                assert least_usd <= prediction.run_usd * (1 + 1e-9)
            needed = max(stage.memory_bytes for stage in made.plan.stages)
            assert family.missing_bytes <= needed - family.group.tables.offer.memory_bytes


def test_a_family_knows_that_its_slowest_layer_cannot_be_cut() -> None:
    """One layer takes 10 of 12 s: two stages take 10 s for each of 8 grains, and not 6."""
    market = single(profile([layer(10.0), layer(1.0), layer(1.0)], store_links()), offer(36.0))
    halves = next(
        family
        for family in families(market, Limits(max_members=2))
        if (family.plan.layout, family.plan.grain_size) == ("1x2", 1)
    )
    assert halves.sharpened().partition_bound_s == pytest.approx(80.0)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(layer_lists, st.sampled_from(["fastest", "cheapest"]), st.floats(20, 2000), st.floats(1.2, 4.0))
def test_nothing_is_lost_by_having_more_to_choose_from(
    layers: list[LayerProfile], goal: Goal, bandwidth: float, fast_usd: float
) -> None:
    made = profile(layers, store_links(bandwidth, 0.01))
    market = two_offers(made, fast_usd=fast_usd)
    found = search(market, Limits(max_members=3), goal).pick.prediction
    for each in market.offers:
        alone = search(single(market.world.profile_of(each), each), Limits(max_members=3), goal).pick.prediction
        if goal == "fastest":
            assert found.run_s <= alone.run_s * (1 + 1e-9)
        else:
            assert found.run_usd <= alone.run_usd * (1 + 1e-9)


def test_stages_stand_on_different_offers_where_that_is_best() -> None:
    """One stage has twice the work of the other, and one offer is twice as fast: nobody waits for anybody."""
    made = profile([layer(1.0), layer(2.0)])
    found = search(two_offers(made, fast_usd=2.0), Limits(num_replicas=1, num_stages=2, schedule="gpipe"), "cheapest")
    assert [stage.offer for stage in found.pick.stages] == [SLOW, FAST]
    alike = [each for each in found.candidates if each.layout == "1x2" and len(set(each.offers)) == 1]
    assert found.pick.prediction.run_usd < min(each.run_usd for each in alike)


def test_replicas_stand_on_different_offers_and_share_by_speed() -> None:
    made = profile([layer(1.0)], epochs=10)
    found = search(two_offers(made, fast=1, slow=1), Limits(max_members=3), "fastest")
    plan = found.pick
    assert sorted(plan.replica_offers) == [FAST, SLOW]
    shares = dict(zip(plan.replica_offers, plan.shares, strict=True))
    assert max(shares[FAST], 2 * shares[SLOW]) == 6, "eight grains, two to one"
    assert [each.name for each in plan.member_offers] == list(plan.replica_offers)
    alone = min(each.run_s for each in found.candidates if len(each.offers) == 1 and each.num_members == 1)
    assert plan.prediction.run_s < 0.8 * alone


def test_present_members_stay_in_plans_that_add_others() -> None:
    """One fast member trains, and no other can be had. Slow ones join, as many as there are, or none."""
    market = two_offers(profile([layer(1.0)], epochs=10), fast=1, slow=4)
    limits = Limits(max_members=4)
    found = plans_with(market, {FAST: 1}, limits, 1, "store")
    assert sorted(sorted(each.name for each in plan.member_offers) for plan in found) == [
        [FAST],
        [FAST, SLOW],
        [FAST, SLOW, SLOW],
        [FAST, SLOW, SLOW, SLOW],
    ]
    steps_s = {plan.num_members: plan.prediction.step_s for plan in found}
    assert steps_s[1] == pytest.approx(8.0), "eight grains of a second"
    assert steps_s[3] == pytest.approx(4.0), "four of them, while each slow member computes two"
    assert steps_s[2] < steps_s[1]
    assert plans_with(market, {"made.gone": 1}, limits, 1, "store") == []
    assert plans_with(two_offers(profile([layer(1.0)]), fast=1, slow=1), {FAST: 2}, limits, 1, "store") == []


class TestLimits:
    def test_quotas_hold_for_all_names_that_begin_so(self) -> None:
        made = profile([layer(1.0)], epochs=10)
        market = two_offers(made)
        for quota in (1, 2, 3):
            asked = Market(market.offers, market.world, {"made": quota})
            plan = search(asked, Limits(max_members=8), "fastest").pick
            assert plan.num_members == quota
            assert all(each.num_members <= quota for each in search(asked, Limits(max_members=8)).candidates)

    @pytest.mark.parametrize(
        ("quotas", "message"),
        [
            ({"made.slow": 0}, "the quota of made.slow is 0; give at least 1, or leave the offer out"),
            ({"aws": 3}, "a quota is given for 'aws', but the offers are made.slow, made.fast; name one"),
        ],
    )
    def test_a_quota_of_nothing_is_refused(self, quotas: dict[str, int], message: str) -> None:
        market = two_offers(profile([layer(1.0)]))
        with pytest.raises(PlanError, match=re.escape(message)):
            Market(market.offers, market.world, quotas)

    def test_no_offers_are_refused(self) -> None:
        with pytest.raises(PlanError, match="no offer is given; give one or more"):
            Market((), World({}, {}))

    def test_a_layout_beyond_the_quota_is_refused(self) -> None:
        market = two_offers(profile([layer(1.0)] * 2), slow=1, fast=1)
        with pytest.raises(PlanError, match=r"4 members are asked for, but the quotas \(made.slow 1, made.fast 1\)"):
            search(market, Limits(num_replicas=2, num_stages=2), "fastest")

    def test_a_deadline_holds_in_95_of_100_runs(self) -> None:
        made = profile([layer(1.0)] * 2, store_links(100.0, 0.3), spread=Spread(of_steps=0.0, of_runs=0.1))
        market = single(made, offer(1.0))
        cheapest = search(market, Limits(), "cheapest").pick.prediction
        assert cheapest.run_p95_s is not None
        between_s = (cheapest.run_s + cheapest.run_p95_s) / 2
        hasty = search(market, Limits(deadline_s=between_s), "cheapest").pick.prediction
        assert hasty.run_p95_s is not None
        assert hasty.run_p95_s <= between_s < cheapest.run_p95_s

    def test_a_layer_that_fits_nowhere_is_named_with_what_is_missing(self) -> None:
        made = profile([layer(1.0), layer(2.0, parameter_bytes=100_000), layer(1.0)])
        needed = stage_memory_bytes(made, 1, 2, 1, 1)
        with pytest.raises(PlanError, match=r"the layer layer of 2 s alone lacks .* give a larger offer"):
            search(single(made, offer(memory_bytes=needed // 2)), Limits(max_members=3))

    def test_negative_limits_are_refused(self) -> None:
        with pytest.raises(ValueError, match="`budget_usd` is -1"):
            Limits(budget_usd=-1)


class TestGoals:
    MARKET = two_offers(profile([layer(1.0)] * 2, store_links(100.0, 0.01), epochs=5), fast_usd=2.5)

    def test_an_hour_that_is_worth_nothing_much_is_cheap_and_one_worth_all_is_fast(self) -> None:
        picks = [search(self.MARKET, Limits(), "weighted", hour_usd).pick for hour_usd in (1e-6, 1.0, 1e6)]
        assert picks[0].prediction.run_usd == search(self.MARKET, Limits(), "cheapest").pick.prediction.run_usd
        assert picks[2].prediction.run_s == search(self.MARKET, Limits(), "fastest").pick.prediction.run_s
        times = [plan.prediction.run_s for plan in picks]
        assert times == sorted(times, reverse=True)

    @pytest.mark.parametrize(("goal", "hour_usd"), [("weighted", None), ("fastest", 2.0), ("weighted", 0.0)])
    def test_what_an_hour_is_worth_goes_with_its_goal(self, goal: Goal, hour_usd: float | None) -> None:
        with pytest.raises(InputError, match="an hour is worth"):
            search(self.MARKET, Limits(), goal, hour_usd)

    def test_the_balanced_pick_is_the_fastest_of_the_front_that_is_worth_it(self) -> None:
        found = search(self.MARKET, Limits(max_members=6))
        cheapest = found.front[-1].prediction

        def worth(number: int) -> float:
            own = found.front[number].prediction
            dearer = own.run_usd / cheapest.run_usd - 1
            return (cheapest.run_s / own.run_s - 1) / dearer if dearer else float("inf")

        at = found.front.index(found.pick)
        assert worth(at) >= 0.8
        assert all(worth(number) < 0.8 for number in range(at))

    def test_the_front_has_nothing_that_is_beaten(self) -> None:
        found = search(self.MARKET, Limits(max_members=6))
        points = [(plan.prediction.run_s, plan.prediction.run_usd) for plan in found.front]
        assert points == sorted(points)
        assert [usd for _, usd in points] == sorted((usd for _, usd in points), reverse=True)
        simulated = [each for each in found.candidates if each.is_simulated and not each.reason]
        for each in simulated:
            assert any(run_s <= each.run_s and run_usd <= each.run_usd for run_s, run_usd in points)


class TestReasons:
    def test_a_limit_that_excludes_something_better_is_named(self) -> None:
        market = single(profile([layer(1.0)] * 2, store_links(100.0, 0.3), epochs=10), offer(1.0))
        fastest_s = search(market, Limits(), "fastest").pick.prediction.run_s
        found = search(market, Limits(deadline_s=fastest_s * 1.01), "cheapest")
        assert any(sentence.startswith("What binds is the deadline") for sentence in found.reasons)
        loose = search(market, Limits(deadline_s=1e6), "cheapest")
        assert "No limit binds: nothing beyond them is better." in loose.reasons

    def test_the_runner_up_is_another_plan_and_says_what_it_loses_by(self) -> None:
        found = search(TestGoals.MARKET, Limits(), "fastest")
        assert found.runner_up is not None
        assert found.runner_up.prediction.run_s > found.pick.prediction.run_s
        said = next(sentence for sentence in found.reasons if sentence.startswith("The runner-up"))
        assert "% slower" in said

    def test_why_not_names_what_the_offer_lacks(self) -> None:
        market = two_offers(profile([layer(1.0)] * 2, epochs=5), slow_usd=5.0)
        found = search(market, Limits(), "cheapest")
        assert f"{FAST} is in the pick" in why_not(found, FAST)
        assert re.search(
            r"The best on made.slow, 1x1 on made.slow, takes .* slower and .* dearer than", why_not(found, SLOW)
        )
        with pytest.raises(InputError, match="nothing was planned on aws; the candidates run on"):
            why_not(found, "aws")

    def test_why_not_names_the_limit(self) -> None:
        market = two_offers(profile([layer(1.0)], epochs=10))
        found = search(market, Limits(max_members=1, deadline_s=1000.0), "cheapest")
        assert found.pick.member_offers[0].name == FAST, "the other takes 1600 s"
        said = why_not(found, SLOW)
        assert said.startswith("No plan on made.slow is within the limits: of 1x1 on made.slow, the deadline: it takes")


def test_a_search_reads_back_what_it_was() -> None:
    found = search(TestGoals.MARKET, Limits())
    assert decode_record(encode_record(found), Search, "search") == found


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 50)), min_size=1, max_size=6), st.integers(1, 3), st.data())
def test_the_table_of_memory_has_what_each_stage_needs(
    sizes: list[tuple[int, float]], num_replicas: int, data: st.DataObject
) -> None:
    made = profile([layer(1.0, parameter_bytes=size, out_bytes=out) for size, out in sizes])
    kept = data.draw(st.integers(1, 4))
    table = stage_memory_table(made, 2, kept, num_replicas=num_replicas)
    for first, end in itertools.combinations(range(len(sizes) + 1), 2):
        assert table[first, end] == stage_memory_bytes(made, first, end, 2, kept, num_replicas=num_replicas)
    for num_stages in range(1, len(sizes) + 1):
        needed = np.zeros((len(sizes) + 1, len(sizes) + 1))
        needed[:-1] = table
        cut = smallest_need(needed, num_stages)
        tried = [
            max(table[first, end] for first, end in itertools.pairwise((0, *cuts, len(sizes))))
            for cuts in itertools.combinations(range(1, len(sizes)), num_stages - 1)
        ]
        assert max(table[first, end] for first, end in cut) == min(tried)


def test_connected_members_are_looked_at_where_their_links_are_known() -> None:
    made = profile([layer(1.0, parameter_bytes=4000)] * 2, store_links(100.0, 0.5), epochs=5)
    peers = (link(10_000.0, 0.001, from_site=SITE, to_site=SITE),)
    assert search(single(made, offer(1.0)), Limits(), "fastest").pick.transport == "store"
    assert search(single(made, offer(1.0), peers), Limits(), "fastest").pick.transport == "tcp"


class TestProposalsOfOthers:
    """What a baseline would take, or a user has in mind, is weighed with everything else."""

    MARKET = single(profile([layer(1.0)] * 2, store_links(100.0, 0.3)), offer(1.0))
    ODD = MARKET.plan(
        ((0, 1), (1, 2)), MARKET.offers * 2, num_replicas=2, grain_size=3, schedule="gpipe", transport="store"
    )
    """Grains of three samples: no plan of our own has them."""

    def test_one_is_among_the_candidates_with_its_simulated_time(self) -> None:
        market = self.MARKET
        found = search(market, Limits(), "fastest", also=[self.ODD])
        (own,) = [each for each in found.candidates if each.grain_size == 3]
        assert (own.layout, own.schedule, own.is_simulated) == ("2x2", "gpipe", True)
        assert own.run_s == evaluate(draft(self.ODD, market)).prediction.run_s
        assert not [each for each in search(market, Limits(), "fastest").candidates if each.grain_size == 3]

    def test_one_that_does_not_fit_is_told_so(self) -> None:
        small = offer(1.0, memory_bytes=1050)  # 1000 before the first grain, and 10 for every sample of a layer
        market = single(profile([layer(1.0)] * 2), small)
        found = search(market, Limits(), also=[structs.replace(self.ODD, offers=(small,), grain_size=7)])
        (own,) = [each for each in found.candidates if each.grain_size == 7]
        assert (own.verdict, own.reason) == ("too large", "it lacks 20 B of memory")
        assert found.pick.grain_size < 7

    @settings(deadline=None, max_examples=25, derandomize=True)
    @given(layer_lists, st.sampled_from(["fastest", "cheapest"]), st.floats(20, 2000), st.integers(0, 10**6))
    def test_the_pick_is_never_worse_than_one(
        self, layers: list[LayerProfile], goal: Goal, bandwidth: float, seed: int
    ) -> None:
        """Even where the search has no time to look at anything else."""
        searching = importlib.import_module("zooid.planner.search")  # the package has the function under this name
        market = two_offers(profile(layers, store_links(bandwidth, 0.01)))
        every = list(every_proposal(market, 3))
        some = [every[(seed + step) % len(every)] for step in (0, 7, 31)]
        plans = [evaluate(draft(proposal, market)).prediction for proposal in some]
        least = min(plan.run_s if goal == "fastest" else plan.run_usd for plan in plans)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(searching, "MAX_ACTIONS", -1)
            patch.setattr(searching, "MIN_SIMULATED", 0)
            pick = search(market, Limits(max_members=3), goal, also=some).pick.prediction
        assert (pick.run_s if goal == "fastest" else pick.run_usd) <= least

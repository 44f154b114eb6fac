"""The papers' baselines propose what their papers say, and get the best of it: a comparison with them is fair."""

import itertools

import pytest
from msgspec import structs

from benchmarks.baselines.bayes import bayes
from benchmarks.baselines.hybrid_ps import hybrid_ps, server
from benchmarks.baselines.hydrozoa import cut_by_grid, hydrozoa
from benchmarks.baselines.lambda_ml import lambda_ml, lambda_ml_accumulating
from benchmarks.baselines.rivals import GOALS, ON_FUNCTIONS, ON_VMS, Effort, on_functions, on_vms
from benchmarks.baselines.simulated import closed_form_step_s, fits, simulated
from benchmarks.baselines.tpdmp import fastest_flow, tpdmp
from lab.miniature import Miniature
from lab.widening import widened
from tests.unit.profiles import SITE, layer, link, offer, profile, store_links
from zooid.planner import Market
from zooid.planner.objectives import objective_of
from zooid.predictor import World, directed_links

MOST = 4
SMALL, LARGE = "made.small", "made.large"
RATE = 1000.0
EFFORT = Effort(num_bounds=50, num_evaluations=15)


def market() -> Market:
    """Two sizes at twice the price and half the time; 1000 bytes before the first grain."""
    sizes = (1, 2, 4, 8)
    layers = [
        layer(0.2 * number, out_bytes=40.0 * (number % 3), parameter_bytes=200 * number, sizes=sizes)
        for number in range(1, 6)
    ]
    slow = profile(layers, store_links(RATE, 0.01), epochs=20)
    fast = profile(
        [
            layer(0.1 * number, out_bytes=40.0 * (number % 3), parameter_bytes=200 * number, sizes=sizes)
            for number in range(1, 6)
        ],
        store_links(RATE, 0.01),
        epochs=20,
    )
    offers = (
        offer(1.0, name=SMALL, memory_bytes=19_000, vcpus=1.0),
        offer(2.0, name=LARGE, memory_bytes=40_000, vcpus=2.0),
    )
    return Market(offers, World({SMALL: slow, LARGE: fast}, directed_links(slow.links)))


def test_lambda_ml_has_one_grain_a_worker_on_the_largest_memory() -> None:
    proposals = list(lambda_ml(market(), MOST))
    assert [each.num_replicas for each in proposals] == [1, 2, 3, 4]
    assert [each.grain_size for each in proposals] == [8, 4, 3, 2]
    assert {each.offers[0].name for each in proposals} == {LARGE}
    assert {each.all_reduce for each in proposals} == {"three_phase"}


def test_accumulating_takes_the_smallest_memory_in_which_it_goes() -> None:
    where = market()
    proposals = list(lambda_ml_accumulating(where, MOST))
    assert {each.offers[0].name for each in proposals} == {SMALL, LARGE}, "or else the sizes say nothing"
    for each in proposals:
        assert fits(each, where)
        small = structs.replace(each, offers=where.offers[:1], stages=(structs.replace(each.stages[0], offer=SMALL),))
        assert each.offers[0].name == SMALL or not fits(small, where)


def test_workers_push_and_pull_at_their_own_rate_and_pay_for_the_server() -> None:
    where = market()
    num_bytes = where.profile.parameter_bytes(0, 5)
    runs = [run for run in hybrid_ps(where, MOST) if run.workers.offers[0].name == LARGE]
    four = next(run for run in runs if run.workers.num_replicas == 4 and run.workers.grain_size == 2)
    computing_s = 2 * 0.1 * sum(range(1, 6))
    assert four.step_s == pytest.approx(computing_s + 2 * num_bytes / RATE)
    hub = server()
    assert hub.usd_per_hour == pytest.approx(1.53)
    assert four.run_usd >= (4 * 2.0 + 1.53) * four.run_s / 3600


@pytest.mark.parametrize(("num_stages", "grain_size"), [(1, 1), (2, 4), (3, 1), (3, 4), (4, 4)])
def test_the_slowest_stage_of_a_flow_is_as_fast_as_can_be(num_stages: int, grain_size: int) -> None:
    where = market()
    layers = where.profile.layers

    def slowest_s(partition: tuple[tuple[int, int], ...]) -> float:
        crossing = [layers[end - 1].boundary.at(grain_size) / RATE for _, end in partition[:-1]]
        around = zip([0.0, *crossing], [*crossing, 0.0], strict=True)
        return max(
            max(sum(each.forward_s(grain_size) + each.backward_s(grain_size) for each in layers[first:end]), sum(links))
            for (first, end), links in zip(partition, around, strict=True)
        )

    every = [tuple(itertools.pairwise((0, *cuts, 5))) for cuts in itertools.combinations(range(1, 5), num_stages - 1)]
    found = fastest_flow(where, where.offers[0], grain_size, num_stages)
    assert slowest_s(found) == pytest.approx(min(map(slowest_s, every)))


def test_hydrozoa_selects_for_every_number_of_members_and_its_grid_cuts_as_well() -> None:
    where = market()
    proposals = list(hydrozoa(where, MOST))
    assert {each.offers[0].name for each in proposals} == {SMALL, LARGE}
    for each in proposals:
        assert len(set(each.offers)) == 1
        recut = cut_by_grid(each, where, num_bounds=300)
        assert fits(recut, where)
        assert closed_form_step_s(recut, where) == pytest.approx(closed_form_step_s(each, where), rel=0.05)


def test_bayes_stays_within_the_members_and_learns() -> None:
    where = market()
    objective = objective_of("fastest")
    plans = bayes(where, MOST, objective, num_evaluations=40)
    assert len(plans) == 40
    assert all(plan.num_members <= MOST for plan in plans)
    times = [plan.prediction.run_s for plan in plans]
    assert min(times[10:]) < min(times[:10]), "the first ten are random"
    assert times == [plan.prediction.run_s for plan in bayes(where, MOST, objective, num_evaluations=40)]


def test_every_baseline_gets_its_best_for_either_goal() -> None:
    where = market()
    found = {(each.name, each.goal): each for each in on_functions(where, MOST, EFFORT)}
    assert found.keys() == set(itertools.product(ON_FUNCTIONS, GOALS))
    for name in ON_FUNCTIONS:
        fastest, cheapest = found[name, "fastest"], found[name, "cheapest"]
        assert fastest.run_s <= cheapest.run_s or name == "Bayes", "which searches anew"
        assert cheapest.run_usd <= fastest.run_usd or name == "Bayes"
    best_s = min(plan.prediction.run_s for plan in simulated(lambda_ml(where, MOST), where))
    assert found["LambdaML", "fastest"].run_s == best_s
    assert all(fits(each, where) for each in tpdmp(where, MOST))


def test_on_machines_that_reach_one_another_the_greedy_take_what_they_are_greedy_for() -> None:
    """The small ones cost a dollar and take twice as long: as cheap for the work, and cheaper an hour."""
    apart = market()
    links = (*store_links(RATE, 0.01), link(RATE, 0.001, to_site=SITE))
    offers = tuple(structs.replace(each, memory_bytes=40_000) for each in apart.offers)
    where = Market(offers, World(apart.world.profiles, directed_links(links)))
    found = {(each.name, each.goal): each for each in on_vms(where, MOST, EFFORT)}
    assert found.keys() == {("APM", "fastest"), ("APM", "cheapest"), ("CGF", "cheapest"), ("FGF", "fastest")}
    assert {name for name, _ in found} == set(ON_VMS)
    plans = {key: each.plan for key, each in found.items() if each.plan is not None}
    assert [offer.name for offer in plans["CGF", "cheapest"].member_offers] == [SMALL]
    assert [offer.name for offer in plans["FGF", "fastest"].member_offers] == [LARGE]
    assert plans["APM", "fastest"].num_members > plans["APM", "cheapest"].num_members == 1
    assert found["APM", "fastest"].closed_form_s < found["APM", "cheapest"].closed_form_s


def test_a_miniature_takes_as_long_as_what_it_stands_for() -> None:
    """Where messages are so large that those of a vote, which are not divided, count for nothing."""
    where = market()
    proposal = max(hydrozoa(where, MOST), key=lambda each: len(each.partition))
    assert len(proposal.partition) > 1
    large, small = (Miniature.of(proposal, where.world, factor) for factor in (1e-5, 1e-4))
    assert sum(bucket.num_bytes for bucket in large.layout.stages[0][0].buckets) == pytest.approx(
        10 * sum(bucket.num_bytes for bucket in small.layout.stages[0][0].buckets)
    )
    assert small.step_s == pytest.approx(large.step_s, rel=1e-3)


def test_a_wider_model_computes_and_reduces_by_the_square_and_sends_by_the_width() -> None:
    made = market().profile
    wide = widened(made, 3.0)
    assert wide.parameter_bytes(0, 5) == 9 * made.parameter_bytes(0, 5)
    for before, after in zip(made.layers, wide.layers, strict=True):
        assert after.forward_s(4) == pytest.approx(9 * before.forward_s(4))
        assert after.boundary.at(4) == 3 * before.boundary.at(4)

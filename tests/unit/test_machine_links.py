"""Members that share machines: where they are, over which links they send, and what they share."""

import pytest
from msgspec import structs

from tests.unit.profiles import SITE, layer, link, offer, profile, store_links
from zooid.core.plans.plan import Plan
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.machine_sites import inside_of
from zooid.core.resources.offer import Offer
from zooid.planner import Market, single
from zooid.predictor import directed_links
from zooid.predictor.machine_links import link_among, member_sites, with_machines
from zooid.predictor.prediction import lay_out
from zooid.predictor.prediction import predict as predict_run
from zooid.predictor.simulation.step import simulate_step

PAIRED = offer(1.0, name="ssh.a+b", machine_members=2, max_members=4)
INSIDE = inside_of(PAIRED)
BETWEEN = link(100.0, 0.2, from_site=SITE, to_site=SITE)
WITHIN = link(1000.0, 0.02, from_site=INSIDE, to_site=INSIDE)


def a_market(on: Offer, *peers: Link) -> Market:
    layers = [layer(0.001, out_bytes=100.0, parameter_bytes=400) for _ in range(4)]
    return single(profile(layers, store_links(100.0, 0.1)), on, peers)


def a_plan(market: Market, replicas: int, stages: int) -> Plan:
    width = 4 // stages
    return market.plan(
        [(width * stage, width * (stage + 1)) for stage in range(stages)],
        market.offers * stages,
        num_replicas=replicas,
        grain_size=1,
        transport="tcp",
    )


def step_s(market: Market, replicas: int, stages: int) -> float:
    return simulate_step(*lay_out(a_plan(market, replicas, stages), market.world)).step_s


def test_each_machine_is_filled_before_the_next() -> None:
    market = a_market(PAIRED, BETWEEN, WITHIN)
    machines = [f"{INSIDE}/0", f"{INSIDE}/1"]
    assert member_sites(a_plan(market, 1, 4)) == ((machines[0], machines[0], machines[1], machines[1]),)
    assert member_sites(a_plan(market, 3, 1)) == ((machines[0],), (machines[0],), (machines[1],))
    alone = a_market(structs.replace(PAIRED, machine_members=1), BETWEEN)
    assert member_sites(a_plan(alone, 3, 1)) == ((SITE,),), "one row stands for all replicas"


def test_links_of_machines_are_those_inside_or_those_of_the_site() -> None:
    links = directed_links((BETWEEN, WITHIN, *store_links(50.0, 0.3)))
    one, other = f"{INSIDE}/0", f"{INSIDE}/1"
    known = with_machines(links, [[one, other]])
    assert known[one, one] == known[other, other] == links[INSIDE, INSIDE]
    assert known[one, other] == known[other, one] == links[SITE, SITE]
    assert known[one, STORE_SITE] == links[SITE, STORE_SITE]
    unmeasured = with_machines(directed_links((BETWEEN,)), [[one]])
    assert unmeasured[one, one] == links[SITE, SITE], "as at the site"
    assert with_machines(links, [[SITE]]) is links


def test_the_best_link_among_members_is_for_bounds() -> None:
    best = link_among(directed_links((BETWEEN, WITHIN)), PAIRED)
    assert best is not None
    assert (best.bytes_per_s, best.rtt_s) == (1000.0, 0.02)
    only_inside = link_among(directed_links((WITHIN,)), PAIRED)
    assert only_inside is not None
    assert link_among({}, PAIRED) is None
    assert link_among(directed_links((WITHIN,)), structs.replace(PAIRED, machine_members=1)) is None


def test_members_of_one_machine_do_not_cross_the_site() -> None:
    fast, slow = a_market(PAIRED, BETWEEN, WITHIN), a_market(PAIRED, BETWEEN)
    as_site = a_market(
        structs.replace(PAIRED, machine_members=1), structs.replace(WITHIN, from_site=SITE, to_site=SITE)
    )
    assert step_s(fast, 1, 2) == pytest.approx(step_s(as_site, 1, 2)), "both members are on one machine"
    assert step_s(fast, 1, 2) < step_s(slow, 1, 2) / 4
    assert step_s(fast, 1, 2) < step_s(fast, 1, 4) < step_s(slow, 1, 4), "the middle cut is between machines"


def test_members_of_one_machine_share_its_interface() -> None:
    """Two replicas of two stages fill two machines, and the reduces of both stages cross between them at once."""
    market = a_market(PAIRED, BETWEEN, WITHIN)
    own = a_market(structs.replace(PAIRED, machine_members=1), BETWEEN)
    shared_s = step_s(market, 2, 2)
    reduced_bytes = 2 * 800  # of both stages, there and back, at 100 bytes a second
    assert shared_s >= reduced_bytes / 2 / 100
    assert shared_s < step_s(own, 2, 2) + reduced_bytes / 2 / 100


def test_traffic_inside_a_site_is_priced_as_such() -> None:
    market = a_market(PAIRED, BETWEEN, WITHIN)
    prediction, _ = predict_run(a_plan(market, 2, 2), market.world)
    assert prediction.run_usd > 0, "machines are no sites of their own for prices"

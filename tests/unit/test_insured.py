"""Copies of stages without replicas: who is started, what that costs, and what is refused."""

import pytest

from tests.unit.profiles import SITE, layer, link, offer, profile, store_links
from zooid.coordinator.runs.first_roster import roster_for
from zooid.core.errors import PlanError, RecordError
from zooid.core.plans.plan import Limits, Plan, TransportName
from zooid.planner import Market, search, single

STAGES = [layer(1.0, parameter_bytes=8_000_000), layer(1.0, parameter_bytes=4_000_000)]


def planned(num_replicas: int, *, is_insured: bool, transport: TransportName = "tcp", bandwidth: float = 1e9) -> Plan:
    peers = (link(bandwidth, 0.0, from_site=SITE, to_site=SITE),)
    market = single(profile(STAGES, store_links(bandwidth, 0.0)), offer(36.0), peers)
    limits = Limits(
        num_replicas=num_replicas,
        num_stages=2,
        transport=transport,
        insured=is_insured,
        schedule="gpipe",
    )
    return search(market, limits).pick


def test_a_single_replica_has_a_copy_of_each_stage() -> None:
    plan = planned(1, is_insured=True)
    roster = roster_for(plan, "run", 0, 0)
    assert [seat.name for seat in roster.seats] == ["r0s0", "r0s1", "c0s0", "c0s1"]
    assert [copy.stage for copy in roster.copies] == [0, 1]
    assert (plan.num_members, plan.num_copies, len(plan.member_offers)) == (4, 2, 4)
    assert roster.num_voters == 4


def test_replicas_insure_one_another() -> None:
    plan = planned(2, is_insured=True)
    assert (plan.num_members, plan.num_copies) == (4, 0)
    assert plan.prediction == planned(2, is_insured=False).prediction


@pytest.mark.parametrize("transport", ["tcp", "store"])
def test_a_copy_costs_a_member_and_the_way_of_its_gradients(transport: TransportName) -> None:
    bare, insured = (
        planned(1, is_insured=each, transport=transport, bandwidth=4e6).prediction for each in (False, True)
    )
    num_ways = 1 if transport == "tcp" else 2
    assert insured.step_s - bare.step_s == pytest.approx(num_ways * 2.0, rel=0.1), "a store is looked at in turns"
    compute = [next(term.usd for term in each.cost_terms if term.kind == "compute") for each in (bare, insured)]
    assert compute[1] / compute[0] == pytest.approx(2 * insured.run_s / bare.run_s, rel=0.01)
    assert insured.run_usd == pytest.approx(sum(term.usd for term in insured.cost_terms))


def test_a_member_has_room_for_gradients_on_their_way_to_its_copy() -> None:
    needs = [[stage.memory_bytes for stage in planned(1, is_insured=each).stages] for each in (False, True)]
    assert [with_copy - alone for alone, with_copy in zip(*needs, strict=True)] == [8_000_000, 4_000_000]


def test_too_few_members_are_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(RecordError, match="the layout needs 8 members, 4 of them copies, but"):
        Limits(num_replicas=1, num_stages=4, insured=True)


def test_transports_that_survive_no_loss_are_refused() -> None:
    with pytest.raises(RecordError, match="give the transport store or tcp"):
        Limits(insured=True, transport="gloo")


def test_quotas_hold_for_copies_too() -> None:
    market = single(profile(STAGES, store_links()), offer(36.0))
    bounded = Market(market.offers, market.world, {market.offers[0].name: 1})
    with pytest.raises(PlanError, match="insured"):
        search(bounded, Limits(insured=True))

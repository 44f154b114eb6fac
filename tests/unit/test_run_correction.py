"""Profiles and links are corrected by what a run measured: known factors are found again, and other layouts follow."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from tests.unit.measured_runs import measured_members, simulated_step_s
from tests.unit.profiles import device, layer, link, offer, profile
from zooid.core.errors import PlanError
from zooid.core.plans.plan import Plan, StagePlan, TransportName
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.runs.step_measurements import Timing
from zooid.predictor import Corrected, corrected

pytestmark = pytest.mark.timeout(60)

FAST, SLOW = offer(name="made.fast", site="x"), offer(name="made.slow", site="y")
HALVES, WHOLE = ((0, 3), (3, 6)), ((0, 6),)
PROFILE = profile(
    [layer(0.01 * (1 + number % 3), out_bytes=2e5, parameter_bytes=1_000_000) for number in range(6)],
    (),
    optimizer_s_per_byte=1e-9,
)
KNOWN = {FAST.name: PROFILE, SLOW.name: PROFILE}
Rates = dict[tuple[str, str], tuple[float, float]]
"""Factors on the bandwidth and on the round trip of links."""


def plan_of(
    spans: Sequence[tuple[int, int]],
    num_replicas: int = 1,
    offers: Sequence[str] = (FAST.name, FAST.name),
    transport: TransportName = "tcp",
    **changed: Any,
) -> Plan:
    return Plan(
        job="made",
        model_fingerprint="f",
        batch_size=8,
        grain_size=1,
        num_replicas=num_replicas,
        stages=tuple(
            StagePlan(first_layer=first, end_layer=end, offer=name, memory_bytes=1)
            for (first, end), name in zip(spans, offers, strict=False)
        ),
        schedule="1f1b",
        transport=transport,
        all_reduce="auto",
        offers=(FAST, SLOW),
        **changed,
    )


def links_of(transport: TransportName, factors: Rates | None = None) -> tuple[Link, ...]:
    sites = ("x", "y")
    to_store = [pair for site in sites for pair in ((site, STORE_SITE), (STORE_SITE, site))]
    ends = to_store if transport == "store" else [(one, other) for one in sites for other in sites]
    made = []
    for pair in ends:
        bandwidth, rtt = (factors or {}).get(pair, (1.0, 1.0))
        made.append(link(20e6 * bandwidth, 0.004 * rtt, from_site=pair[0], to_site=pair[1]))
    return tuple(made)


def scaled(known: Profile, factors: Sequence[tuple[float, float]]) -> Profile:
    """The profile with a factor on the forward and on the backward of each layer."""
    return structs.replace(
        known,
        layers=tuple(
            structs.replace(
                each,
                points=tuple(
                    structs.replace(point, forward_s=point.forward_s * forward, backward_s=point.backward_s * backward)
                    for point in each.points
                ),
            )
            for each, (forward, backward) in zip(known.layers, factors, strict=True)
        ),
    )


def factors_of(found: Profile, known: Profile = PROFILE) -> list[tuple[float, float]]:
    return [
        (new.points[0].forward_s / old.points[0].forward_s, new.points[0].backward_s / old.points[0].backward_s)
        for new, old in zip(found.layers, known.layers, strict=True)
    ]


def learn(plan: Plan, truth: dict[str, Profile], links: Sequence[Link]) -> Corrected:
    members = measured_members(plan, truth, links)
    return corrected(KNOWN, links_of(plan.transport), plan, members)


@pytest.mark.parametrize("transport", ["tcp", "store"])
def test_factors_of_stages_and_of_links_are_found_again(transport: TransportName) -> None:
    ends = [("x", "x")] if transport == "tcp" else [("x", STORE_SITE), (STORE_SITE, "x")]
    links = links_of(transport, dict.fromkeys(ends, (0.6, 1.5)))
    own = [(1.4, 0.8)] * 3 + [(0.7, 2.0)] * 3
    found = learn(plan_of(HALVES, 2, transport=transport), KNOWN | {FAST.name: scaled(PROFILE, own)}, links)
    assert factors_of(found.profiles[FAST.name]) == [pytest.approx(pair, rel=1e-6) for pair in own]
    for new, true, old in zip(found.links, links, links_of(transport), strict=True):
        if (new.from_site, new.to_site) in ends:
            assert new.bandwidth_bytes_per_s == pytest.approx(true.bandwidth_bytes_per_s, rel=0.02)
            assert new.rtt_s == pytest.approx(true.rtt_s, rel=0.25)
            assert "corrected by a run" in new.source
        elif transport == "store":
            assert new == old, "nothing went over it"
        else:
            assert new.bandwidth_bytes_per_s <= old.bandwidth_bytes_per_s
    assert found.profiles[SLOW.name] == PROFILE, "nobody was there"


@pytest.mark.parametrize("site", ["x", "y"])
@pytest.mark.parametrize("shares", [(2, 2, 2, 2), (3, 3, 1, 1)])
def test_all_reduces_tell_which_members_have_slower_links(site: str, shares: tuple[int, ...]) -> None:
    """All replicas end together, but a member with a faster link is done with a bucket earlier."""
    slower = ((site, STORE_SITE), (STORE_SITE, site))
    links = links_of("store", dict.fromkeys(slower, (0.5, 1.0)))
    fleet = (FAST.name, FAST.name, SLOW.name, SLOW.name)
    found = learn(plan_of(WHOLE, 4, transport="store", replica_offers=fleet, shares=shares), KNOWN, links)
    for new in found.links:
        expected = 10e6 if (new.from_site, new.to_site) in slower else 20e6
        assert new.bandwidth_bytes_per_s == pytest.approx(expected, rel=0.1)


ASKED = (
    plan_of(HALVES, 1, (FAST.name, SLOW.name)),
    plan_of(((0, 2), (2, 6)), 2),
    plan_of(WHOLE, 2, replica_offers=(FAST.name, SLOW.name)),
    plan_of(WHOLE, 3, replica_offers=(FAST.name, SLOW.name, SLOW.name)),
)
RAN = plan_of(HALVES, 2, replica_offers=(FAST.name, SLOW.name))


@pytest.mark.parametrize("seed", range(4))
def test_layouts_that_were_not_run_are_predicted_from_a_run(seed: int) -> None:
    """Two kinds of machines, each with a speed and links of its own."""
    generator = random.Random(seed)

    def factor() -> float:
        return generator.choice((generator.uniform(0.5, 0.8), generator.uniform(1.25, 2.0)))

    speeds = {name: (factor(), factor()) for name in KNOWN}
    rates = {"x": factor(), "y": factor()}
    links = links_of("tcp", {(a, b): (min(rates[a], rates[b]), 1.0) for a in "xy" for b in "xy"})
    truth = {name: scaled(PROFILE, [both] * 6) for name, both in speeds.items()}
    found = learn(RAN, truth, links)
    for asked in ASKED:
        true_s = simulated_step_s(asked, truth, links)
        before = abs(simulated_step_s(asked, KNOWN, links_of("tcp")) / true_s - 1)
        after = abs(simulated_step_s(asked, found.profiles, found.links) / true_s - 1)
        assert after < max(0.05, before / 2)


def test_layers_that_an_offer_has_not_run_get_the_factor_of_those_it_has() -> None:
    plan = plan_of(HALVES, offers=(FAST.name, SLOW.name))
    truth = {FAST.name: scaled(PROFILE, [(1.5, 1.5)] * 6), SLOW.name: scaled(PROFILE, [(3.0, 2.0)] * 6)}
    found = learn(plan, truth, links_of("tcp"))
    assert factors_of(found.profiles[FAST.name]) == [pytest.approx((1.5, 1.5))] * 6
    assert factors_of(found.profiles[SLOW.name]) == [pytest.approx((3.0, 2.0))] * 6


def test_a_forward_is_reading_and_computing() -> None:
    known = structs.replace(PROFILE, load_s_per_sample=0.002)
    plan = plan_of(WHOLE)
    [member] = measured_members(plan, {FAST.name: known}, ())
    slower = structs.replace(member, forward=Timing(median_s=1.3 * member.forward.median_s))
    found = corrected({FAST.name: known, SLOW.name: known}, (), plan, [slower]).profiles[FAST.name]
    [again] = measured_members(plan, {FAST.name: found}, ())
    assert again.forward.median_s == pytest.approx(slower.forward.median_s)
    assert again.backward.median_s == pytest.approx(member.backward.median_s)
    assert found.load_s_per_sample > 0


def test_members_that_share_cores_are_not_slow_because_of_each_other() -> None:
    """Four members on two cores take twice the time of the profile, as predicted."""
    local = offer(name="local", platform="local", site="x")
    known = {"local": structs.replace(PROFILE, device=device(num_cores=2.0))}
    stages = (StagePlan(first_layer=0, end_layer=6, offer="local", memory_bytes=1),)
    plan = structs.replace(plan_of(WHOLE, 4), stages=stages, offers=(local,))
    truth = {"local": scaled(known["local"], [(1.25, 0.9)] * 6)}
    members = measured_members(plan, truth, links_of("tcp"))
    found = corrected(known, links_of("tcp"), plan, members).profiles["local"]
    assert factors_of(found) == [pytest.approx((1.25, 0.9), rel=0.01)] * 6


def test_what_a_member_does_besides_is_taken_over() -> None:
    plan = plan_of(WHOLE)
    [member] = measured_members(plan, KNOWN, ())
    changed = structs.replace(
        member,
        update=Timing(median_s=0.012),
        between=Timing(median_s=0.004),
        step=Timing(median_s=member.step.median_s, spread=0.1349),
    )
    found = corrected(KNOWN, (), plan, [changed]).profiles[FAST.name]
    assert found.optimizer_s_per_byte == pytest.approx(0.012 / 6e6)
    assert found.between_steps_s == 0.004
    assert found.spread.of_steps == pytest.approx(0.1)
    step_s = simulated_step_s(plan, KNOWN | {FAST.name: found}, ())
    assert step_s == pytest.approx(simulated_step_s(plan, KNOWN, ()) + 0.012 + 0.004 - 0.006)


def test_a_gpu_is_corrected_by_its_steps() -> None:
    """The process only starts its work, so forwards and backwards seem to take no time."""
    gpu = structs.replace(PROFILE, device=structs.replace(device(), kind="cuda"))
    plan = plan_of(WHOLE)
    [member] = measured_members(plan, {FAST.name: scaled(gpu, [(1.5, 1.5)] * 6)}, ())
    seen = structs.replace(member, forward=Timing(median_s=1e-5), backward=Timing(median_s=1e-5))
    found = corrected({FAST.name: gpu, SLOW.name: gpu}, (), plan, [seen]).profiles[FAST.name]
    assert factors_of(found, gpu) == [pytest.approx((1.5, 1.5), rel=0.01)] * 6


def test_members_with_the_same_work_share_a_factor_and_a_slow_one_is_named() -> None:
    plan = plan_of(WHOLE, 2, (FAST.name,))
    fast, slow = measured_members(plan, KNOWN, links_of("tcp"))
    slow = structs.replace(
        slow,
        forward=Timing(median_s=2 * slow.forward.median_s),
        backward=Timing(median_s=2 * slow.backward.median_s),
    )
    found = corrected(KNOWN, links_of("tcp"), plan, [fast, slow])
    assert factors_of(found.profiles[FAST.name]) == [pytest.approx((4 / 3, 4 / 3))] * 6
    named = [row for row in found.corrections if row.where == "r1s0, slower than others"]
    assert {row.part: row.factor for row in named} == {"forward": pytest.approx(2.0), "backward": pytest.approx(2.0)}


def test_rows_say_what_was_corrected_and_by_how_much() -> None:
    truth = KNOWN | {FAST.name: scaled(PROFILE, [(2.0, 1.0)] * 6)}
    members = measured_members(plan_of(HALVES), truth, links_of("tcp"))
    rows = corrected(KNOWN, links_of("tcp"), plan_of(HALVES), members, run="file:///runs/7").corrections
    assert {row.run for row in rows} == {"file:///runs/7"}
    found = {(row.part, row.where): row.factor for row in rows}
    assert found["forward", "stage 1 on made.fast"] == pytest.approx(2.0)
    assert found["backward", "stage 1 on made.fast"] == pytest.approx(1.0)
    assert found["bandwidth", "x to x"] == pytest.approx(1.0, rel=0.01)
    assert (found["step", "all members"] or 0) > 1.1


def test_measurements_must_be_of_all_members_and_of_this_model() -> None:
    plan = plan_of(HALVES)
    members = measured_members(plan, KNOWN, links_of("tcp"))
    with pytest.raises(PlanError, match="measurements are of 1 member"):
        corrected(KNOWN, links_of("tcp"), plan, members[:1])
    with pytest.raises(PlanError, match="trained another model than the profile of made is of"):
        corrected(KNOWN, links_of("tcp"), structs.replace(plan, model_fingerprint="g"), members)
    with pytest.raises(PlanError, match=r"members on made\.fast, of which there is no profile, only of made\.slow"):
        corrected({SLOW.name: PROFILE}, links_of("tcp"), plan, members)

"""Every member gets the predicted memory and the margin, rounded up to a size; no other size would be better."""

import contextlib
import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.unit.profiles import layer, link, profile
from zooid import catalog
from zooid.coordinator.plans.markets import market_for, offers_named
from zooid.coordinator.plans.plan_forecast import predict
from zooid.core.errors import HopelessPlan, PlanError
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import Goal
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.resources.offer import Offer
from zooid.core.resources.sized_offer import sizes_of
from zooid.planner import Market, search
from zooid.planner.drafts import draft, evaluate
from zooid.planner.families import grain_sizes, schedules
from zooid.planner.member_sizes import ENTRY_BYTES, MARGIN, fitted
from zooid.planner.search import SLACKS

MB = 10**6
SIZED = ("aws.lambda", "azure.aci.cpu", "azure.jobs.cpu", "aws.microvm")


def store_links(*sites: str, bytes_per_s: float = 7e7) -> tuple[Link, ...]:
    ends = [(site, STORE_SITE) for site in sites]
    return tuple(link(bytes_per_s, 0.04, from_site=a, to_site=b) for end in ends for a, b in (end, end[::-1]))


def measured(megabytes: list[float], seconds: float = 0.2, out_bytes: float = 1e6, **changed: object) -> Profile:
    layers = [
        layer(seconds * (1 + number), out_bytes=out_bytes, parameter_bytes=round(size * MB))
        for number, size in enumerate(megabytes)
    ]
    links = store_links("local", "aws.us-east-1.lambda", "aws.us-east-1", "azure.eastus")
    return profile(layers, links, **({"runtime_bytes": 300 * MB} | changed))


def market_of(name: str, made: Profile) -> Market:
    return market_for(offers_named([name]), {"local": made})[0]


def least_offer(name: str, predicted_bytes: int, vcpus: float | None = None) -> Offer:
    """The smallest size with the memory and the margin, found by trying all."""
    sized = catalog.sized_offer(name)
    assert sized is not None
    for size in sizes_of(sized):
        offer = sized.offer_of(size)
        if vcpus in (None, offer.vcpus) and offer.memory_bytes >= (1 + MARGIN) * predicted_bytes + ENTRY_BYTES:
            return offer
    raise AssertionError("no size is large enough")


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.sampled_from(SIZED), st.integers(1, 6_000 * MB))
def test_the_size_is_the_smallest_that_holds_prediction_and_margin(name: str, predicted_bytes: int) -> None:
    for offer in offers_named([name]):
        vcpus = None if name in ("aws.lambda", "aws.microvm") else offer.vcpus
        sized = fitted(offer, predicted_bytes)
        needed_bytes = (1 + MARGIN) * predicted_bytes + ENTRY_BYTES
        largest_bytes = sizes_largest(name, vcpus)
        if needed_bytes > largest_bytes:
            assert sized.memory_bytes == largest_bytes
        elif needed_bytes <= offer.memory_bytes:
            assert sized == offer
        else:
            least = least_offer(name, predicted_bytes, vcpus)
            fields = ("name", "vcpus", "memory_bytes", "usd_per_hour")
            assert [getattr(sized, field) for field in fields] == [getattr(least, field) for field in fields]


def sizes_largest(name: str, vcpus: float | None) -> int:
    sized = catalog.sized_offer(name)
    assert sized is not None
    offers = (
        [sized.offer_of(size) for size in sizes_of(sized)[-400:]]
        if vcpus is None
        else [sized.offer_of(size) for size in sizes_of(sized)]
    )
    return max(offer.memory_bytes for offer in offers if vcpus in (None, offer.vcpus))


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("goal", ["fastest", "cheapest", "balanced"])
def test_members_of_the_pick_have_what_they_need(name: str, goal: Goal) -> None:
    """The sizes are those of the catalog, so that a platform finds them by their names."""
    made = measured([30, 10, 80, 40])
    found = search(market_of(name, made), Limits(max_members=4), goal)
    for plan in (found.pick, *found.front):
        for offer in plan.offers:
            assert offer.sized_by == ""
            assert structs.replace(catalog.offer(offer.name), startup_s=offer.startup_s) == offer
        for number, stage in enumerate(plan.stages):
            offer = plan.offer_of(number)
            assert offer.memory_bytes >= (1 + MARGIN) * stage.memory_bytes + ENTRY_BYTES
            if name == "azure.aci.cpu":
                assert offer.name == least_offer(name, stage.memory_bytes, offer.vcpus).name


def every_plan(market: Market, most: int) -> Iterator[Plan]:
    """All layouts, cuts, grains and schedules on the first offer."""
    num_layers = len(market.profile.layers)
    for num_replicas, num_stages in itertools.product(range(1, most + 1), range(1, min(most, num_layers) + 1)):
        if num_replicas * num_stages > most:
            continue
        for cuts in itertools.combinations(range(1, num_layers), num_stages - 1):
            for grain_size in grain_sizes(market.profile):
                if math.ceil(market.profile.batch_size / grain_size) < num_replicas:
                    continue
                for schedule, ahead in schedules(None, num_stages):
                    yield market.plan(
                        list(itertools.pairwise((0, *cuts, num_layers))),
                        market.offers[:1] * num_stages,
                        num_replicas=num_replicas,
                        grain_size=grain_size,
                        transport="store",
                        schedule=schedule,
                        ahead=ahead,
                    )


def value(plan: Plan, goal: Goal) -> float:
    return plan.prediction.run_s if goal == "fastest" else plan.prediction.run_usd


megabytes = st.lists(st.sampled_from([1.0, 20.0, 60.0, 150.0]), min_size=1, max_size=3)


@settings(deadline=None, max_examples=6, derandomize=True)
@given(megabytes, st.sampled_from(["fastest", "cheapest"]), st.sampled_from([0.01, 0.5]))
def test_with_chosen_vcpus_no_plan_with_any_memory_is_better(sizes: list[float], goal: Goal, seconds: float) -> None:
    """Three layers have at most two cuts, so every partition is proposed. More memory is tried for each stage."""
    made = measured(sizes, seconds)
    market, _ = market_for([offers_named(["azure.aci.cpu"])[1]], {"local": made})
    best = math.inf
    for plan in every_plan(market, 3):
        fit = draft(plan, market)
        for more in itertools.product((0, 1, 7), repeat=len(plan.stages)):
            offers = []
            for stage, steps in zip(fit.plan.stages, more, strict=True):
                gb = least_offer("azure.aci.cpu", stage.memory_bytes, 2.0).memory_bytes / 1e9 + steps / 10
                name = f"azure.aci.cpu.2x{gb:.1f}".removesuffix(".0")
                offers.append(structs.replace(catalog.offer(name), startup_s=60.0))
            stages = tuple(
                structs.replace(stage, offer=offer.name) for stage, offer in zip(plan.stages, offers, strict=True)
            )
            resized = structs.replace(plan, stages=stages, offers=tuple({each.name: each for each in offers}.values()))
            best = min(best, value(evaluate(draft(resized, market)), goal))
    found = search(market, Limits(max_members=3), goal)
    assert value(found.pick, goal) == pytest.approx(best, rel=1e-9)


@settings(deadline=None, max_examples=8, derandomize=True)
@given(megabytes, st.sampled_from(["fastest", "cheapest"]), st.sampled_from([0.01, 0.2]), st.sampled_from([1e7, 1e8]))
def test_replicas_on_functions_have_the_best_of_the_sizes_that_can_matter(
    sizes: list[float], goal: Goal, seconds: float, bytes_per_s: float
) -> None:
    """These are the smallest size that holds the model, and all larger sizes to try; none below the first to try."""
    made = structs.replace(
        measured(sizes, seconds), links=store_links("local", "aws.us-east-1.lambda", bytes_per_s=bytes_per_s)
    )
    market = market_of("aws.lambda", made)
    best = math.inf
    for plan in every_plan(market, 2):
        if len(plan.stages) > 1:
            continue
        needed = draft(plan, market).plan.stages[0].memory_bytes
        least = max(least_offer("aws.lambda", needed), market.offers[0], key=lambda offer: offer.memory_bytes)
        for tried in (least, *(offer for offer in market.offers if offer.memory_bytes > least.memory_bytes)):
            fixed = structs.replace(catalog.offer(tried.name), startup_s=10.0)
            resized = structs.replace(
                plan, stages=(structs.replace(plan.stages[0], offer=fixed.name),), offers=(fixed,)
            )
            with contextlib.suppress(HopelessPlan):  # a step takes longer than a function lives
                best = min(best, value(evaluate(draft(resized, market)), goal))
    if math.isinf(best):
        return
    found = search(market, Limits(max_members=2, num_stages=1), goal)
    assert best <= value(found.pick, goal) * (1 + 1e-9)
    assert value(found.pick, goal) <= best * (1 + SLACKS[0][1]), "of many candidates, some are pruned within this"


def test_a_plan_of_chosen_sizes_is_predicted_again_alike() -> None:
    made = measured([30, 10, 80, 40])
    found = search(market_of("aws.lambda", made), Limits(max_members=4, num_stages=2), "cheapest")
    again = predict(found.pick, {"local": made}).prediction
    assert (again.run_s, again.run_usd) == (found.pick.prediction.run_s, found.pick.prediction.run_usd)


def test_times_on_other_sizes_follow_from_the_measured_size_of_the_same_offer() -> None:
    made = measured([30.0])
    market, _ = market_for(
        offers_named(["aws.lambda"]),
        {"local": made, "aws.lambda.10240": structs.replace(made, device=structs.replace(made.device, num_cores=6.0))},
    )
    profiles = {offer.name: market.world.profile_of(offer) for offer in market.offers}
    assert not profiles["aws.lambda.10240"].is_estimate
    slow, fast = profiles["aws.lambda.1024"].layers[0], made.layers[0]
    assert profiles["aws.lambda.1024"].is_estimate
    assert slow.forward_s(1) / fast.forward_s(1) == pytest.approx(10, rel=1e-3)


def test_what_no_size_holds_is_refused_with_the_margin() -> None:
    with pytest.raises(PlanError, match=r"of aws.lambda.10240: .* needs .* and a margin of .*, and a member has"):
        search(market_of("aws.lambda", measured([4000.0])), Limits(max_members=2), "cheapest")


def test_stages_of_a_required_layout_get_sizes_of_their_own() -> None:
    """Computing costs the same on any size, so a stage that waits for messages should have no more than it needs."""
    made = measured([5, 5, 5, 400], seconds=0.001, out_bytes=1e3, batch_size=64, num_samples=640)
    limits = Limits(max_members=4, num_stages=2, num_replicas=1)
    pick = search(market_of("aws.lambda", made), limits, "cheapest").pick
    first, last = pick.stages
    assert first.offer == "aws.lambda.512"
    assert last.offer == least_offer("aws.lambda", last.memory_bytes).name
    assert last.offer not in {offer.name for offer in offers_named(["aws.lambda"])}

"""Predicting a plan: what is known about where it would run is put together, and checked before anything else."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import get_args

from msgspec import structs

from zooid.catalog import OWNED, store_place
from zooid.catalog.shipped_tables import check_offer
from zooid.coordinator.plans.markets import links_for, prices_at, profile_for
from zooid.coordinator.plans.offer_names import LOCAL, held_to, prices_in_words
from zooid.coordinator.runs.measured_run import measured_run
from zooid.core.errors import InputError, PlanError
from zooid.core.plans.all_reduce_samples import AllReduceSample, AllReduceSamples, Library
from zooid.core.plans.forecast import Forecast
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import Links
from zooid.core.resources.offer import Offer
from zooid.core.resources.prices import Prices
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.predictor import World, forecast, lay_out, ways_from
from zooid.predictor.costs.usage import DataSet
from zooid.predictor.learned.all_reduce_model import Place, fit_all_reduce
from zooid.predictor.simulation.layout import AllReduceTime


def predict(
    plan: Plan,
    profile: Profile | Mapping[str, Profile],
    *,
    links: Links | None = None,
    samples: AllReduceSamples | None = None,
    store_at: str | None = None,
    checkpoints: CheckpointRule = DEFAULT_RULE,
    data: DataSet | None = None,
    compare: str | None = None,
) -> Forecast:
    """What a plan takes and costs, what holds it back, and what one more replica or twice the batch would bring.

    `profile` is the one that the plan was made from, or several by the names of their offers. `links` are needed where
    members are connected; `samples` of a library's all-reduces make a plan for that library more certain. `store_at` is
    where the run's store is, for its prices: a place such as `aws.us-east-1`, or the URL of a folder of one's own; if
    not given, where the plan has it.
    `data` is what members load, if the data set is charged for. `compare` is the folder of a run of this plan, whose
    measured times are put beside the predicted ones. Nothing is started.
    """
    profiles = _profiles(plan, profile)
    for each in profiles.values():
        check_fits(plan, each)
    given = () if links is None else links.links
    prices = _prices(plan, store_at)
    is_folder = prices.storage.provider == OWNED and all(offer.platform == LOCAL for offer in plan.offers)
    world = World(
        profiles=profiles,
        ways=ways_from(links_for(plan.offers, [given, plan.links, *(each.links for each in profiles.values())])),
        looks="folder" if is_folder else "store",
        prices=prices,
    )
    lay_out(plan, world)  # refuses links that are missing, before anything takes time
    measured = None if compare is None else measured_run(compare, plan)
    notes: dict[str, None] = {}
    made = forecast(
        plan,
        replace(world, library=_library(plan, samples, notes)),
        prices=f"{prices_in_words(plan.offers[0])}; {_store_in_words(prices)}",
        rule=checkpoints,
        data=data,
    )
    return structs.replace(made, notes=(*made.notes, *notes), measured=measured)


def check_fits(plan: Plan, profile: Profile) -> None:
    """Refuse a profile that the plan was not made from."""
    num_steps = -(-profile.num_samples // profile.batch_size) * profile.epochs
    for what, planned, measured in (
        ("model (its fingerprint)", plan.model_fingerprint, profile.model_fingerprint),
        ("number of layers", plan.stages[-1].end_layer, len(profile.layers)),
        ("batch size", plan.batch_size, profile.batch_size),
        ("autocast", plan.autocast, profile.autocast),
        ("number of steps, by its samples and epochs,", plan.num_steps, num_steps),
    ):
        if planned != measured:
            raise PlanError(
                f"the plan for {plan.job} has another {what} than the profile: {planned}, not {measured}; give the "
                "profile that it was made from, or plan anew"
            )


def _profiles(plan: Plan, given: Profile | Mapping[str, Profile]) -> dict[str, Profile]:
    """A profile for each offer that members stand on, measured or estimated as when the plan was made."""
    offers = {offer.name: offer for offer in plan.member_offers}
    is_estimate = plan.predicted is not None and bool(plan.predicted.estimated_from)
    if isinstance(given, Profile):
        is_of_offer = len(offers) == 1 and is_estimate == given.is_estimate
        given = {next(iter(offers)) if is_of_offer else LOCAL: given}
    if not given:
        raise PlanError(f"no profile is given; give those of {', '.join(offers)}, or one to estimate theirs from")
    found = {name: profile_for(offer, given) for name, offer in offers.items()}
    if unmeasured := [name for name, profile in found.items() if profile.is_estimate and not is_estimate]:
        raise PlanError(
            f"the plan was made from a profile of {' and of '.join(unmeasured)}, which is not given; add it with "
            "--profile (in Python, by the name of its offer)"
        )
    return found


def _prices(plan: Plan, store_at: str | None) -> Prices:
    """Prices of requests, storage and traffic; unknown ones are refused, and members' in another unit."""
    for offer in plan.offers:
        if offer.kind != OWNED:
            check_offer(offer)
    place = None if store_at is None else _place(store_at)
    return prices_at(plan.offers, place or plan.store_at or None)


def _place(store_at: str) -> str:
    """A place as it is given, or that of a URL."""
    if "://" not in store_at:
        return store_at
    try:
        return store_place(store_at, "")
    except PlanError as error:
        raise InputError(f"{error}: give the place instead of the URL, for example --store-at aws.us-east-1") from error


def _store_in_words(prices: Prices) -> str:
    storage = prices.storage
    if storage.provider == OWNED:
        return "the store is one's own, at no cost"
    return f"the store at those of {storage.provider}.{storage.region} ({storage.service}, {storage.date})"


def _library(plan: Plan, samples: AllReduceSamples | None, notes: dict[str, None]) -> AllReduceTime | None:
    """What all-reduces of the plan's library take, learned from samples; where these are left, `notes` get to know."""
    if samples is None:
        return None
    if plan.transport not in get_args(Library):
        raise InputError(
            f"samples of all-reduces are given, but the plan's members exchange over {plan.transport}, which is "
            f"simulated without; leave them out, or plan for {' or '.join(get_args(Library))}"
        )
    own = [sample for sample in samples.samples if sample.library == plan.transport]
    if not own:
        raise InputError(f"the samples hold no all-reduce of {plan.transport}; measure some: {_PROBE}")
    learned = fit_all_reduce(own, time.time())
    places = [_measured_place(offer, own) for offer in plan.offers]
    least_bytes = min(sample.num_bytes for sample in own)

    @cache
    def time_s(num_bytes: int, num_members: int) -> float:
        # a vote is smaller than what anybody measures; latency alone decides there, and that was measured
        estimate = learned.predict(max(num_bytes, least_bytes), num_members, places=places)
        if estimate.is_extrapolated:
            notes[estimate.beyond] = None
        return estimate.median_s

    return time_s


_PROBE = "zooid probe --only all-reduce"


def _measured_place(offer: Offer, samples: Sequence[AllReduceSample]) -> Place:
    """Where the offer's samples are from; with the prices of another, this machine is still this machine."""
    known = {sample.offer for sample in samples}
    is_here = offer.platform == LOCAL and held_to(offer) is None and offer.name not in known
    return Place(LOCAL if is_here else offer.name, offer.site)

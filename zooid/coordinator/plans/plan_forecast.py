"""The forecast of a plan, with the links, prices and profiles of the offers that it uses."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import get_args

from msgspec import structs

from zooid.catalog import OWNED, store_location
from zooid.catalog.shipped_tables import check_offer
from zooid.coordinator.plans.earlier_runs import learn_from_runs, merged_links
from zooid.coordinator.plans.interruption_rates import with_interruptions
from zooid.coordinator.plans.markets import links_for, prices_at, profile_for
from zooid.coordinator.plans.offer_names import LOCAL, enforced_size, prices_in_words
from zooid.coordinator.runs.measured_run import measured_run
from zooid.core.errors import InputError, PlanError
from zooid.core.plans.all_reduce_samples import AllReduceSample, AllReduceSamples, Library
from zooid.core.plans.forecast import Forecast
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import Link, Links
from zooid.core.resources.offer import Offer
from zooid.core.resources.prices import Prices
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.predictor import World, directed_links, forecast, lay_out
from zooid.predictor.costs.usage import DataSet
from zooid.predictor.learned.all_reduce_model import MemberKind, fit_all_reduce
from zooid.predictor.prediction import predict as predict_run
from zooid.predictor.simulation.layout import AllReduceTime


def predict(
    plan: Plan,
    profile: Profile | Mapping[str, Profile],
    *,
    runs: Sequence[str] = (),
    links: Links | None = None,
    samples: AllReduceSamples | None = None,
    store_at: str | None = None,
    checkpoints: CheckpointRule = DEFAULT_RULE,
    data: DataSet | None = None,
    interruptions: Mapping[str, float] | None = None,
    compare: str | None = None,
) -> Forecast:
    """Predict time and cost of a plan, its bottlenecks, and the effect of one more replica or a doubled batch.

    `profile` is the one that the plan was made from, or several by the names of their offers. `runs` are the folders of
    earlier runs of the same model, whose measurements correct profiles and links. `links` are needed if
    members are directly connected. `samples` of a library's all-reduces make the forecast for that library more
    certain. `store_at` is the location of the run's store for its prices, such as `aws.us-east-1`, or the URL of one's
    own folder; by default that of the plan. `data` describes what members load, if that is charged. `interruptions` are
    losses of a member per hour, by the offer's name or its beginning; by default those of the plan's offers. `compare`
    is the folder of a run of this plan, whose measured times are put beside the predicted ones. Nothing is started.
    """
    plan = structs.replace(plan, offers=with_interruptions(plan.offers, interruptions))
    profiles = profiles_of(plan, profile)
    for offer_profile in profiles.values():
        check_fits(plan, offer_profile)
    learned = learn_from_runs(profiles, merged_links(() if links is None else links.links, plan.links), runs)
    profiles = {name: learned.profiles[name] for name in profiles}
    prices = _prices(plan, store_at)
    world = _world(plan, profiles, prices, learned.links)
    lay_out(plan, world)  # rejects missing links before anything takes time
    measured = None if compare is None else measured_run(compare, plan)
    notes: dict[str, None] = {}
    predicted = forecast(
        plan,
        replace(world, library=_library(plan, samples, notes)),
        prices=f"{prices_in_words(plan.offers[0])}; {_store_in_words(prices)}",
        rule=checkpoints,
        data=data,
    )
    return structs.replace(
        predicted, notes=(*predicted.notes, *notes), measured=measured, corrections=learned.corrections
    )


def _world(plan: Plan, profiles: Mapping[str, Profile], prices: Prices, links: Iterable[Link] = ()) -> World:
    is_folder = prices.storage.provider == OWNED and all(offer.platform == LOCAL for offer in plan.offers)
    sources = [links, plan.links, *(profile.links for profile in profiles.values())]
    return World(
        profiles=profiles,
        links=directed_links(links_for(plan.offers, sources)),
        looks="folder" if is_folder else "store",
        prices=prices,
    )


def with_prediction(plan: Plan, profiles: Mapping[str, Profile], checkpoints: CheckpointRule = DEFAULT_RULE) -> Plan:
    """Return the plan with the time and the cost that these profiles of its offers predict.

    A plan that was made without a profile stays without a prediction.
    """
    for profile in profiles.values():
        check_fits(plan, profile)
    if plan.predicted is None:
        return plan
    prediction, _ = predict_run(plan, _world(plan, profiles, _prices(plan, None)), checkpoints)
    return structs.replace(plan, predicted=prediction)


def check_fits(plan: Plan, profile: Profile) -> None:
    """Reject a profile from which the plan was not made."""
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
                "profile from which it was made, or plan again"
            )


def profiles_of(plan: Plan, given: Profile | Mapping[str, Profile]) -> dict[str, Profile]:
    """Return a profile for each offer of the plan, measured or estimated as when the plan was made."""
    offers = {offer.name: offer for offer in plan.member_offers}
    is_estimate = plan.predicted is not None and bool(plan.predicted.estimated_from)
    if isinstance(given, Profile):
        is_of_offer = len(offers) == 1 and is_estimate == given.is_estimate
        given = {next(iter(offers)) if is_of_offer else LOCAL: given}
    if not given:
        raise PlanError(f"no profile is given; give those of {', '.join(offers)}, or one to estimate theirs from")
    profiles = {name: profile_for(offer, given) for name, offer in offers.items()}
    if unmeasured := [name for name, profile in profiles.items() if profile.is_estimate and not is_estimate]:
        raise PlanError(
            f"the plan was made from a profile of {' and of '.join(unmeasured)}, which is not given; add it with "
            "--profile (in Python, by the name of its offer)"
        )
    return profiles


def _prices(plan: Plan, store_at: str | None) -> Prices:
    """Return the prices of requests, storage and traffic; reject unknown ones, and member prices in a wrong unit."""
    for offer in plan.offers:
        if offer.kind != OWNED:
            check_offer(offer)
    location = None if store_at is None else _location(store_at)
    return prices_at(plan.offers, location or plan.store_at or None)


def _location(store_at: str) -> str:
    if "://" not in store_at:
        return store_at
    try:
        return store_location(store_at, "")
    except PlanError as error:
        raise InputError(
            f"{error}: give the location instead of the URL, for example --store-at aws.us-east-1"
        ) from error


def _store_in_words(prices: Prices) -> str:
    storage = prices.storage
    if storage.provider == OWNED:
        return "the store is one's own, at no cost"
    return f"the store at those of {storage.provider}.{storage.region} ({storage.service}, {storage.date})"


def _library(plan: Plan, samples: AllReduceSamples | None, notes: dict[str, None]) -> AllReduceTime | None:
    """Return the all-reduce times of the plan's library, learned from samples; extrapolations are added to `notes`."""
    if samples is None:
        return None
    if plan.transport not in get_args(Library):
        raise InputError(
            f"samples of all-reduces are given, but the plan's transport is {plan.transport}, whose simulation needs "
            f"none; leave them out, or plan for {' or '.join(get_args(Library))}"
        )
    library_samples = [sample for sample in samples.samples if sample.library == plan.transport]
    if not library_samples:
        raise InputError(
            f"the samples hold no all-reduce of {plan.transport}; measure some: zooid probe --only all-reduce"
        )
    learned = fit_all_reduce(library_samples, time.time())
    kinds = [_measured_kind(offer, library_samples) for offer in plan.offers]
    min_bytes = min(sample.num_bytes for sample in library_samples)

    @cache
    def time_s(num_bytes: int, num_members: int) -> float:
        # a vote is smaller than any sample; its time is all latency, which the smallest sample shows
        estimate = learned.predict(max(num_bytes, min_bytes), num_members, kinds=kinds)
        if estimate.is_extrapolated:
            notes[estimate.beyond] = None
        return estimate.median_s

    return time_s


def _measured_kind(offer: Offer, samples: Sequence[AllReduceSample]) -> MemberKind:
    """Return offer and site under which the samples are filed; `local:OFFER` is this machine, only at other prices."""
    known = {sample.offer for sample in samples}
    is_this_machine = offer.platform == LOCAL and enforced_size(offer) is None and offer.name not in known
    return MemberKind(LOCAL if is_this_machine else offer.name, offer.site)

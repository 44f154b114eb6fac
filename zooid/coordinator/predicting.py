"""Predicting a plan: what is known about where it would run is put together, and checked before anything else."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import get_args

from msgspec import structs

from zooid.catalog import OWNED, prices_for, store_place
from zooid.catalog.tables import check_offer
from zooid.coordinator.measured import measured_run
from zooid.coordinator.offers import LOCAL, held_to, prices_in_words
from zooid.core.all_reduce import AllReduceSample, AllReduceSamples, Library
from zooid.core.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.errors import InputError, PlanError
from zooid.core.forecast import Forecast
from zooid.core.link import Link, Links
from zooid.core.offer import Offer
from zooid.core.plan import Plan
from zooid.core.prices import FREE, Prices
from zooid.core.profile import Profile
from zooid.predictor import Proposal, World, forecast, lay_out, ways_from
from zooid.predictor.layout import AllReduceTime
from zooid.predictor.learned import Place, fit_all_reduce
from zooid.predictor.usage import DataSet


def predict(
    plan: Plan,
    profile: Profile | Mapping[str, Profile],
    *,
    links: Links | None = None,
    samples: AllReduceSamples | None = None,
    store: str | None = None,
    checkpoints: CheckpointRule = DEFAULT_RULE,
    data: DataSet | None = None,
    compare: str | None = None,
) -> Forecast:
    """What a plan takes and costs, what holds it back, and what one more replica or twice the batch would bring.

    `profile` is the one that the plan was made from, or one for each of its offers, by name. `links` are needed where
    members are connected; `samples` of a library's all-reduces make a plan for that library more certain. `store` is
    where the run's store is, for its prices: a place such as `aws.us-east-1`, or the URL of a folder of one's own.
    `data` is what members load, if the data set is charged for. `compare` is the folder of a run of this plan, whose
    measured times are put beside the predicted ones. Nothing is started.
    """
    profiles = _profiles(plan, profile)
    for each in profiles.values():
        check_fits(plan, each)
    proposal, prices = Proposal.of(plan), _prices(plan, store)
    is_folder = prices.storage.provider == OWNED and all(offer.platform == LOCAL for offer in plan.offers)
    world = World(
        profiles=profiles,
        ways=ways_from(_links(profiles, links)),
        looks="folder" if is_folder else "store",
        prices=prices,
    )
    lay_out(proposal, world)  # refuses links that are missing, before anything takes time
    measured = None if compare is None else measured_run(compare, plan)
    notes: dict[str, None] = {}
    made = forecast(
        proposal,
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
        ("number of steps, by its samples and epochs,", plan.prediction.num_steps, num_steps),
    ):
        if planned != measured:
            raise PlanError(
                f"the plan for {plan.job} has another {what} than the profile: {planned}, not {measured}; give the "
                "profile that it was made from, or plan anew"
            )


def _profiles(plan: Plan, given: Profile | Mapping[str, Profile]) -> dict[str, Profile]:
    """One for each offer that stages stand on."""
    names = list(dict.fromkeys(offer.name for offer in plan.member_offers))
    if isinstance(given, Profile):
        if len(names) > 1:
            raise PlanError(f"the plan stands on {', '.join(names)}; give a profile for each of them, by these names")
        return {names[0]: given}
    if missing := [name for name in names if name not in given]:
        raise PlanError(
            f"there is no profile for {', '.join(missing)}, but for {', '.join(given) or 'nothing'}; measure the job "
            "there, too"
        )
    return {name: given[name] for name in names}


def _links(profiles: Mapping[str, Profile], given: Links | None) -> list[Link]:
    """What is given counts, and what profiles saw of other directions."""
    chosen = list(given.links) if given is not None else []
    directions = {(link.from_site, link.to_site) for link in chosen}
    for profile in profiles.values():
        chosen += [link for link in profile.links if (link.from_site, link.to_site) not in directions]
    return chosen


def _prices(plan: Plan, store: str | None) -> Prices:
    """Of requests, storage and traffic; unknown ones are refused, and members' in another unit."""
    rented = [offer for offer in plan.offers if offer.kind != OWNED]
    for offer in rented:
        check_offer(offer)
    if store is None and rented:
        names = ", ".join(offer.name for offer in rented)
        raise InputError(
            f"members are rented ({names}), so that it depends on the store's place what requests and traffic cost; "
            "say where it is, for example aws.us-east-1, or owned"
        )
    if store is None:
        return FREE
    return prices_for(plan.offers, _place(store))


def _place(store: str) -> str:
    """As it is given, or that of a URL."""
    if "://" not in store:
        return store
    try:
        return store_place(store, "")
    except PlanError as error:
        raise InputError(f"{error}: give the place instead of the URL, for example aws.us-east-1") from error


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

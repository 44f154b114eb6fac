"""Fleets on which the rest of a run could be trained, as the planner finds them while the run trains."""

import contextlib
from collections.abc import Mapping

from msgspec import structs

from zooid.coordinator.plans.earlier_runs import learn_so_far
from zooid.coordinator.plans.markets import market_for
from zooid.coordinator.plans.offer_names import largest_of
from zooid.coordinator.plans.remaining_steps import as_whole_run, rest_of
from zooid.core.errors import ObjectNotFound, PlanError
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.runs import keys
from zooid.core.runs.steering import Steering
from zooid.planner import search
from zooid.planner.kept_members import plans_with
from zooid.schedule.samples import samples_of
from zooid.store import ObjectStore
from zooid.store.checkpoint_index import last_step, read_manifest
from zooid.store.stored_records import read_record


def remaining_fleets(
    store: ObjectStore,
    plan: Plan,
    steering: Steering,
    present: Mapping[str, int],
    quotas: Mapping[str, int],
    step: int,
) -> tuple[Plan, ...]:
    """Return the plans for the steps from this one on that no other is at least as fast and as cheap as.

    Plans in which the present members stay are added; `present` has their numbers by offer. All plans have the run's
    grain size and transport, and at most so many members on each offer as `quotas` say. An offer with a quota of 0 is
    left out. Profiles and links are corrected by what the run itself has measured. PlanError is raised if there is no
    such plan, or if the run has no profile.
    """
    chosen_sizes = [offer for offer in plan.offers if offer.name not in {each.name for each in steering.offers}]
    offers = [offer for offer in (*steering.offers, *chosen_sizes) if quotas.get(offer.name, 1) > 0]
    if not offers:
        raise PlanError("no offer can be had now")
    learned = learn_so_far(_profiles(store, plan, steering), plan.links, store)
    samples = samples_of(read_manifest(store, last_step(store)))
    rest = {name: rest_of(profile, samples, step) for name, profile in learned.profiles.items()}
    names = {offer.name for offer in offers}
    market, _ = market_for(
        offers,
        rest,
        links=learned.links,
        store_at=plan.store_at or None,
        quotas={**steering.quotas, **{name: quota for name, quota in quotas.items() if name in names}},
        transport=plan.transport,
    )
    limits = Limits(
        max_members=min(steering.max_members, samples.num_grains(step)),
        transport=plan.transport,
        reproducible=plan.reproducible,
        insured=plan.insured,
    )
    found = list(search(market, limits, "balanced").front)
    if len(plan.stages) == 1 and plan.num_copies == 0:
        found += plans_with(market, present, limits, plan.grain_size, plan.transport)
    return tuple(as_whole_run(structs.replace(each, links=plan.links), samples, step) for each in found)


def _profiles(store: ObjectStore, plan: Plan, steering: Steering) -> dict[str, Profile]:
    with contextlib.suppress(ObjectNotFound):
        pace = read_record(store, keys.PACE, RehearsalPace)
        if pace.profiles:
            return dict(pace.profiles)
    try:
        first = read_record(store, keys.PROFILE, Profile)
    except ObjectNotFound as error:
        raise PlanError(f"the run in {store.url} has no profile, so that no other fleet can be planned") from error
    others = {}
    for offer in steering.offers[1:]:
        with contextlib.suppress(ObjectNotFound):
            others[offer.name] = read_record(store, keys.profile_on(offer.name), Profile)
    measured = (steering if others or steering.offers[0].sized_by else plan).offers[0]
    return {largest_of(measured).name: first, **others}

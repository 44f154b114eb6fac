"""Plans and forecasts that rest on what earlier runs of the same model have measured."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zooid.coordinator.plans.markets import links_for, profile_for
from zooid.coordinator.plans.offer_names import LIMITED, LOCAL
from zooid.core.errors import InputError, ObjectNotFound
from zooid.core.plans.correction import Correction
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import Link
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.predictor import corrected
from zooid.predictor.simulation.layout import Looks
from zooid.store import ObjectStore, open_store
from zooid.store.member_measurements import RunMeasurements, read_measurements
from zooid.store.stored_records import read_record


@dataclass(frozen=True)
class RunKnowledge:
    """Profiles and links, as earlier runs have corrected them."""

    profiles: dict[str, Profile]
    """Profiles by the names of offers."""
    links: tuple[Link, ...]
    """The given links, and all links that the runs have corrected."""
    corrections: tuple[Correction, ...] = ()


def profile_in(runs: Sequence[str]) -> Profile | None:
    """Return the first profile in the folders of these runs; None if there is none."""
    for url in runs:
        try:
            return read_record(open_store(url), keys.PROFILE, Profile)
        except ObjectNotFound:
            continue
    return None


def learn_from_runs(profiles: Mapping[str, Profile], links: Sequence[Link], runs: Sequence[str]) -> RunKnowledge:
    """Correct profiles and links by each run in turn, so that later runs win where several say something.

    `profiles` are by offer name, with or without `local:` or `limited:`.
    """
    knowledge = RunKnowledge(dict(profiles), tuple(links))
    for url in runs:
        knowledge = _with_run(knowledge, read_measurements(open_store(url)))
    return knowledge


def learn_so_far(profiles: Mapping[str, Profile], links: Sequence[Link], store: ObjectStore) -> RunKnowledge:
    """Correct profiles and links by what the run in this folder has measured until now, if that is enough."""
    try:
        return learn_from_runs(profiles, links, [store.url])
    except InputError:  # members write what they have measured after some steps
        return RunKnowledge(dict(profiles), tuple(links))


def _with_run(knowledge: RunKnowledge, found: RunMeasurements) -> RunKnowledge:
    known, plan = knowledge.profiles, found.plan
    for profile in known.values():
        if profile.model_fingerprint != plan.model_fingerprint:
            raise InputError(
                f"the run in {found.url} trained another model than the profile of {profile.job} is of: its "
                f"fingerprint is {plan.model_fingerprint or 'empty'}, not {profile.model_fingerprint}; give runs of "
                "the same model"
            )
    offers = {offer.name: offer for offer in plan.member_offers}
    profiles = {name: profile_for(offer, known) for name, offer in offers.items()}
    known_links = links_for(
        plan.offers, [knowledge.links, plan.links, *(profile.links for profile in profiles.values())]
    )
    looks: Looks = "folder" if found.url.startswith("file://") else "store"
    result = corrected(profiles, known_links, plan, found.members, looks=looks, run=found.url)
    learned = {_key(offer, known): result.profiles[name] for name, offer in offers.items()}
    changed = [new for old, new in zip(known_links, result.links, strict=True) if new != old]
    return RunKnowledge(
        known | learned,
        merged_links(changed, knowledge.links),
        (*knowledge.corrections, *result.corrections),
    )


def _key(offer: Offer, known: Mapping[str, Profile]) -> str:
    """Return the name under which `profile_for` finds the offer's profile, or would find one of its own."""
    for name in (offer.name, offer.name.rpartition(":")[2]):
        if name in known:
            return name
    is_this_machine = offer.platform == LOCAL and not offer.name.startswith(f"{LIMITED}:")
    return next(iter(known)) if is_this_machine else offer.name


def merged_links(links: Iterable[Link], others: Iterable[Link]) -> tuple[Link, ...]:
    """Return the links, and those of the others that are between other sites."""
    first = list(links)
    pairs = {(link.from_site, link.to_site) for link in first}
    return (*first, *(link for link in others if (link.from_site, link.to_site) not in pairs))

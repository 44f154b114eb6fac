"""The search for the best plan of a job."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from msgspec import structs

from zooid.coordinator.job_files.job_objects import check_job_file
from zooid.coordinator.measurements.job_profiles import profiles
from zooid.coordinator.measurements.link_probes import peer_links
from zooid.coordinator.plans.earlier_runs import learn_from_runs, profile_in
from zooid.coordinator.plans.interruption_rates import with_interruptions
from zooid.coordinator.plans.markets import markets_for, offers_named
from zooid.coordinator.plans.offer_names import LIMITED, LOCAL
from zooid.coordinator.plans.reachable_offers import check_connections
from zooid.coordinator.plans.shared_memory import check_shared_memory
from zooid.coordinator.runs.relay import OnEvent, ignore
from zooid.core.errors import PlanError
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import Goal, Search
from zooid.core.resources.link import STORE_SITE, Link, Links
from zooid.core.resources.offer import Offer
from zooid.planner import search as find
from zooid.platforms import Platform

SEARCH_LIMIT_S = 4.0
"""Time limit of a search over several locations. What it leaves open is in its proof."""


class PlanOptions(TypedDict, total=False):
    """Options of a search; all of them may be left out."""

    measured: Profile | Mapping[str, Profile] | None
    """Profile of the job, or several by the names of their offers; measured if not given."""
    runs: Sequence[str]
    """Folders of earlier runs of the same model, whose measurements correct profiles and links."""
    links: Links | None
    limits: Limits | None
    goal: Goal | None
    """Goal of the search; balanced if not given."""
    hour_usd: float | None
    """Worth of an hour, for the weighted goal."""
    quotas: Mapping[str, int] | None
    """Maximum number of members on an offer, by the offer's name or its beginning."""
    store: str | None
    store_at: str | None
    """Location of the store for its prices, such as `aws.us-east-1`; by default that of all rented members."""
    on: str | Sequence[str]
    interruptions: Mapping[str, float] | None
    """Losses of a member per hour, by the offer's name or its beginning; by default those of the offers."""
    on_event: OnEvent
    platform: Platform | None


def plan(job_file: Job | str | Path, **how: Unpack[PlanOptions]) -> Plan:
    """Return the best plan for a job under the limits: the pick of `search`."""
    return search(job_file, **how).pick


def search(job_file: Job | str | Path, **how: Unpack[PlanOptions]) -> Search:
    """Return the best plan for a job under the limits, the alternatives, and the reasons.

    `on` names one or several offers: forms of this machine, or offers of the catalog. The job is measured first unless
    a profile is given (one, or one for each offer by name). So are the links between members that will be connected,
    unless they are given. Offers that cannot be measured here get an estimate, which is marked as one. Earlier `runs`
    of the same model correct all of this by what they measured. They also have a profile, if none is given.
    """
    file = check_job_file(job_file)
    on = how.get("on", LOCAL)
    names = [on] if isinstance(on, str) else list(on)
    offers = with_interruptions(offers_named(names), how.get("interruptions"))
    check_shared_memory(job_file, file, offers)
    limits = how.get("limits") or Limits()
    check_connections(limits.transport, [offer for offer in offers if not offer.accepts_connections])
    on_event, platform = how.get("on_event", ignore), how.get("platform")
    runs = how.get("runs", ())
    measured = how.get("measured") or profile_in(runs)
    startable = [offer for offer in offers if _is_free_to_measure(offer)]
    store = how.get("store")
    if measured is None:
        on = [offer.name for offer in startable] or [LOCAL]
        measured = profiles(file, store=store, on=on, on_event=on_event, platform=platform)
    known = {LOCAL: measured} if isinstance(measured, Profile) else dict(measured)
    if isinstance(measured, Profile) and len(offers) == 1:
        known = {offers[0].name: measured}
    for profile in known.values():
        if profile.job != file.stem:
            raise PlanError(
                f"the profile is of the job {profile.job}, not of {file.stem}; give a profile of {file.stem}, or none"
            )
    given_links = how.get("links")
    learned = learn_from_runs(known, () if given_links is None else given_links.links, runs)
    links = learned.links
    has_peer_links = any(STORE_SITE not in (link.from_site, link.to_site) for link in links)
    if startable and given_links is None and not has_peer_links:  # others are in the catalog, or cannot be measured
        links += peer_links(limits, startable, None, on_event, platform, store=store)
    markets, notes, assumed_links = markets_for(
        offers,
        learned.profiles,
        links=links,
        store_at=how.get("store_at"),
        quotas=how.get("quotas"),
        transport=limits.transport,
    )
    found = _with_links(
        find(markets, limits, how.get("goal") or "balanced", how.get("hour_usd")), (*links, *assumed_links)
    )
    assumed = dict.fromkeys(profile.assumption for profile in known.values() if profile.assumption)
    notes += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in assumed]
    return structs.replace(found, reasons=(*found.reasons, *notes), corrections=learned.corrections)


def _is_free_to_measure(offer: Offer) -> bool:
    """Whether members can be started on an offer only to measure it: what is rented would be billed."""
    is_here = offer.name.partition(":")[0] in (LOCAL, LIMITED)
    return is_here or (offer.is_elsewhere and not offer.is_rented)


def _with_links(found: Search, links: tuple[Link, ...]) -> Search:
    """Store the given or measured links in all plans, so that they can be predicted again."""

    def with_links(plan: Plan) -> Plan:
        return structs.replace(plan, links=links)

    return structs.replace(
        found,
        pick=with_links(found.pick),
        runner_up=None if found.runner_up is None else with_links(found.runner_up),
        front=tuple(map(with_links, found.front)),
    )

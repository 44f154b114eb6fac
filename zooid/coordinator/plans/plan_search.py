"""Profiling and planning: a member measures, the planner decides."""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from msgspec import structs

from zooid.coordinator.job_files.job_objects import check_job_file
from zooid.coordinator.measurements.link_probes import peer_links
from zooid.coordinator.measurements.probe_groups import rounds
from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.markets import market_for, offers_named
from zooid.coordinator.plans.offer_names import LIMITED, LOCAL, held_to, num_threads, resolve_offers
from zooid.coordinator.runs.crew import Crew, ready_platform, wait_for_all
from zooid.coordinator.runs.relay import OnEvent, Parts, Relay, ignore
from zooid.core.errors import InputError, PlanError
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import Goal, Search
from zooid.core.records import decode_record
from zooid.core.resources.link import Link, Links
from zooid.core.resources.machine import cpu_quota, memory_bytes, num_cores
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import PhaseStarted
from zooid.core.runs.spec import ProfilerSpec
from zooid.planner import search as find
from zooid.platforms import Platform
from zooid.store import ObjectStore, open_store

_PROFILER = "profiler"
MOST_NEIGHBOURS = 3
"""Layers are measured in the company of so many others at most, which is what a plan of a few members brings."""


class Wishes(TypedDict, total=False):
    """What may be said about a plan; all of it may be left out."""

    measured: Profile | Mapping[str, Profile] | None
    links: Links | None
    limits: Limits | None
    goal: Goal | None
    """Balanced, if not given."""
    hour_usd: float | None
    """What an hour is worth, where the goal is weighted."""
    quotas: Mapping[str, int] | None
    """How many members may stand on offers, by their names or the beginnings of these."""
    store: str | None
    store_at: str | None
    """Where the store is, for its prices, as `aws.us-east-1`; where all rented members are, if not given."""
    on: str | Sequence[str]
    on_event: OnEvent
    platform: Platform[Any] | None


def profile(
    job_file: Job | str | Path,
    *,
    store: str | None = None,
    on: str = LOCAL,
    known: Profile | None = None,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> Profile:
    """Check a job and measure its layers where its members will run, and the way to the store they will use.

    A `known` profile of this job that still holds is returned as it is.
    """
    [name] = resolve_offers([on])
    held = {} if known is None else {name: known}
    return profiles(job_file, on=[on], store=store, known=held, on_event=on_event, platform=platform)[name]


def profiles(
    job_file: Job | str | Path,
    *,
    on: Sequence[str],
    store: str | None = None,
    known: Mapping[str, Profile] | None = None,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> dict[str, Profile]:
    """The same on several offers, by their names in the catalog: one member on each, at the same time where they do not
    disturb each other. When one fails, all end."""
    file = check_job_file(job_file)
    offers = resolve_offers(on)
    held = known or {}
    if strange := held.keys() - offers.keys():
        raise InputError(f"`known` has profiles of {', '.join(sorted(strange))}, but `on` names {', '.join(offers)}")
    used_platform = platform or ready_platform(next(iter(offers.values())))
    parts = Parts(len(offers), on_event)
    found: dict[str, Profile] = {}
    with scratch_folder(store, "profiling") as objects:
        on_event(PhaseStarted(at_s=time.time(), phase="profile"))
        for names in rounds(offers, cpu_quota(), memory_bytes()):
            tasks = []
            for name in names:
                folder = open_store(f"{objects.url}/{name}")  # each has its own events, and its own profile
                member = _PROFILER if len(offers) == 1 else f"{_PROFILER}-{name}"
                relay = Relay(folder, parts.of(name))
                tasks.append(_Task(member, offers[name], folder, relay, held.get(name)))
            found |= zip(names, _measure_at_once(file, tasks, used_platform), strict=True)
    return {name: found[name] for name in offers}


def plan(job_file: Job | str | Path, **how: Unpack[Wishes]) -> Plan:
    """The best plan for a job under the limits: the pick of `search`."""
    return search(job_file, **how).pick


def search(job_file: Job | str | Path, **how: Unpack[Wishes]) -> Search:
    """The best plan for a job under the limits, all that it was chosen from, and why.

    `on` names one offer or several: this machine in one of its ways, or offers of the catalog. Measures the job first
    unless a profile is given (one, or one for each offer by name), and the links between members, where these are to be
    connected, unless they are. Offers that cannot be measured here get an estimate, which is marked as one.
    """
    file = check_job_file(job_file)
    on = how.get("on", LOCAL)
    names = [on] if isinstance(on, str) else list(on)
    offers = offers_named(names)
    on_event, platform = how.get("on_event", ignore), how.get("platform")
    measured = how.get("measured")
    here = [name for name in names if name.partition(":")[0] in (LOCAL, LIMITED)]
    if measured is None:
        measured = profiles(file, store=how.get("store"), on=here or [LOCAL], on_event=on_event, platform=platform)
    known = {LOCAL: measured} if isinstance(measured, Profile) else dict(measured)
    if isinstance(measured, Profile) and len(offers) == 1:
        known = {offers[0].name: measured}
    for each in known.values():
        if each.job != file.stem:
            raise PlanError(f"the profile is of the job {each.job}, not of {file.stem}; measure this one")
    limits = how.get("limits") or Limits()
    given = how.get("links")
    links: tuple[Link, ...] = ()
    if here or given is not None:  # what is not here has its links in the catalog, or else cannot be measured
        links = peer_links(limits, here[0] if here else LOCAL, given, on_event, platform)
    market, notes = market_for(
        offers,
        known,
        links=links,
        store_at=how.get("store_at"),
        quotas=how.get("quotas"),
        transport=limits.transport,
    )
    found_plans = _with_links(find(market, limits, how.get("goal") or "balanced", how.get("hour_usd")), links)
    return structs.replace(found_plans, reasons=(*found_plans.reasons, *notes))


def _with_links(found: Search, links: tuple[Link, ...]) -> Search:
    """Plans keep the links that were given or measured for them, so that they can be predicted again."""

    def kept(plan: Plan) -> Plan:
        return structs.replace(plan, links=links)

    return structs.replace(
        found,
        pick=kept(found.pick),
        runner_up=None if found.runner_up is None else kept(found.runner_up),
        front=tuple(map(kept, found.front)),
    )


def measure(
    job_file: Path,
    store: ObjectStore,
    offer: Offer,
    platform: Platform[Any],
    relay: Relay,
    known: Profile | None = None,
) -> Profile:
    """Start one profiling member on the platform, wait for it, and return what it measured."""
    [measured] = _measure_at_once(job_file, [_Task(_PROFILER, offer, store, relay, known)], platform)
    return measured


@dataclass(frozen=True)
class _Task:
    """What one profiling member is to do, and where it is heard of."""

    member: str
    offer: Offer
    store: ObjectStore
    relay: Relay
    known: Profile | None


def _measure_at_once(job_file: Path, tasks: Sequence[_Task], platform: Platform[Any]) -> list[Profile]:
    """Start a member for each, wait for all of them, and return what they measured."""

    def poll() -> None:
        for task in tasks:
            task.relay.poll()

    with ExitStack() as started:
        crews = []
        for task in tasks:
            crew = Crew(platform, task.store, checks_input=True, during=_during(task.offer))
            crews.append(started.enter_context(crew))
            crew.start("profiler", [_spec(job_file, task)], [task.offer])
        wait_for_all(crews, poll)
    for task in tasks:
        task.relay.flush()
    return [_read(task.store, task.offer) for task in tasks]


def _during(offer: Offer) -> str:
    where = "" if offer.name == LOCAL else f" on {offer.name}"
    return f"while the job was being measured{where}"


def _spec(job_file: Path, task: _Task) -> ProfilerSpec:
    return ProfilerSpec(
        run=secrets.token_hex(4),
        member=task.member,
        store=task.store.url,
        job_file=str(job_file),
        num_threads=num_threads(task.offer),
        roster=task.relay.roster,
        site=task.offer.site,
        num_neighbours=_num_neighbours(task.offer),
        memory_bytes=task.offer.memory_bytes,
        known=task.known,
    )


def _read(store: ObjectStore, offer: Offer) -> Profile:
    measured = decode_record(bytes(store.get(keys.PROFILE)), Profile, f"{store.url}/{keys.PROFILE}")
    if held_to(offer) is None:
        return measured
    # such a member sees its own share alone, but what members contend for is the machine
    return structs.replace(measured, device=structs.replace(measured.device, num_cores=float(num_cores())))


def _num_neighbours(offer: Offer) -> int:
    """None for a member that is held to a size: its company would live on its own share, and slow it down by that."""
    if offer.platform != LOCAL or held_to(offer) is not None:
        return 0
    return min(num_cores() - 1, MOST_NEIGHBOURS)

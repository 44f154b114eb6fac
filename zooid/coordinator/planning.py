"""Profiling and planning: a member measures, the planner decides."""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from zooid.coordinator.crew import Crew, wait_for_all
from zooid.coordinator.offers import LOCAL, held_to, num_threads, resolve_offer, resolve_offers
from zooid.coordinator.probing import peer_links
from zooid.coordinator.relay import OnEvent, Parts, Relay, ignore
from zooid.coordinator.rounds import rounds
from zooid.coordinator.scratch import scratch_folder
from zooid.core import keys
from zooid.core.errors import InputError, JobError, PlanError
from zooid.core.events import PhaseStarted
from zooid.core.link import Links
from zooid.core.machine import cpu_share, memory_bytes, num_cores
from zooid.core.offer import Offer
from zooid.core.plan import Limits, Plan
from zooid.core.profile import Profile
from zooid.core.records import decode_record
from zooid.core.spec import ProfilerSpec
from zooid.planner import Goal, find_plan
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
from zooid.store import ObjectStore, open_store

_PROFILER = "profiler"
MOST_NEIGHBOURS = 3
"""Layers are measured in the company of so many others at most, which is what a plan of a few members brings."""


def profile(
    job_file: str | Path,
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
    job_file: str | Path,
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
    used_platform = platform or LocalPlatform()
    parts = Parts(len(offers), on_event)
    found: dict[str, Profile] = {}
    with scratch_folder(store, "profiling") as objects:
        on_event(PhaseStarted(at_s=time.time(), phase="profile"))
        for names in rounds(offers, cpu_share(), memory_bytes()):
            tasks = []
            for name in names:
                folder = open_store(f"{objects.url}/{name}")  # each has its own events, and its own profile
                member = _PROFILER if len(offers) == 1 else f"{_PROFILER}-{name}"
                relay = Relay(folder, parts.of(name))
                tasks.append(_Task(member, offers[name], folder, relay, held.get(name)))
            found |= zip(names, _measure_at_once(file, tasks, used_platform), strict=True)
    return {name: found[name] for name in offers}


def plan(
    job_file: str | Path,
    *,
    measured: Profile | None = None,
    links: Links | None = None,
    limits: Limits | None = None,
    goal: Goal | None = None,
    store: str | None = None,
    on: str = LOCAL,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> Plan:
    """The best plan for a job under the limits; measures the job first unless its profile is given, and the links
    between members, where these are to be connected, unless they are."""
    file = check_job_file(job_file)
    if measured is None:
        measured = profile(file, store=store, on=on, on_event=on_event, platform=platform)
    if measured.job != file.stem:
        raise PlanError(f"the profile is of the job {measured.job}, not of {file.stem}; measure this one")
    limits = limits or Limits()
    peers = peer_links(limits, on, links, on_event, platform)
    return find_plan(measured, resolve_offer(on), limits, goal or "fastest", peers)


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
            crew = Crew(platform, task.store, checks_input=True, offer=task.offer)
            crews.append(started.enter_context(crew))
            crew.start("profiler", [_spec(job_file, task)])
        wait_for_all(crews, poll)
    for task in tasks:
        task.relay.flush()
    return [_read(task.store, task.offer) for task in tasks]


def _spec(job_file: Path, task: _Task) -> ProfilerSpec:
    return ProfilerSpec(
        run=secrets.token_hex(4),
        member=task.member,
        store=task.store.url,
        job_file=str(job_file),
        num_threads=num_threads(task.offer),
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


def check_job_file(job_file: str | Path) -> Path:
    """The file's full path; that it defines a job is found out by the first member, which can import torch."""
    file = Path(job_file).resolve()
    if not file.is_file():
        raise JobError(
            f"there is no job file {job_file}; give the path of a Python file that defines `job = zooid.Job(…)`"
        )
    return file


def _num_neighbours(offer: Offer) -> int:
    """None for a member that is held to a size: its company would live on its own share, and slow it down by that."""
    if offer.platform != LOCAL or held_to(offer) is not None:
        return 0
    return min(num_cores() - 1, MOST_NEIGHBOURS)

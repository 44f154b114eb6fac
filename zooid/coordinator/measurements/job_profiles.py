"""Profiles of a job, measured by members that are started where the job would train."""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from zooid.coordinator.job_files.job_objects import check_job_file
from zooid.coordinator.job_files.travelling_job import TravellingJob, packed_job
from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.offer_names import LOCAL, enforced_size, num_threads, resolve_offers
from zooid.coordinator.plans.shared_memory import check_shared_memory
from zooid.coordinator.runs.crew import Crew, wait_for_all
from zooid.coordinator.runs.platform_choice import opened_platform
from zooid.coordinator.runs.relay import OnEvent, ProgressSum, Relay, ignore
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.errors import InputError
from zooid.core.jobs.job import Job
from zooid.core.plans.profile import Profile
from zooid.core.records import encode_record
from zooid.core.resources.machine import cpu_quota, memory_bytes, num_cores
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import PhaseStarted
from zooid.core.runs.spec import ProfilerSpec
from zooid.platforms import Platform
from zooid.store import ObjectStore, open_store
from zooid.store.stored_records import read_record

_PROFILER = "profiler"
_MAX_NEIGHBOURS = 3
"""Maximum number of other members that load the machine while layers are measured, as a plan of a few members does."""


def profile(
    job_file: Job | str | Path,
    *,
    store: str | None = None,
    on: str = LOCAL,
    known: Profile | None = None,
    on_event: OnEvent = ignore,
    platform: Platform | None = None,
) -> Profile:
    """Check a job, and measure its layers and the links to the store where its members will run.

    A `known` profile of this job is returned unchanged if it is still valid.
    """
    names = list(resolve_offers([on]))
    if len(names) > 1:
        raise InputError(f"{on!r} means {', '.join(names)}; give one of them, or measure all with `profiles`")
    [name] = names
    by_name = {} if known is None else {name: known}
    return profiles(job_file, on=[on], store=store, known=by_name, on_event=on_event, platform=platform)[name]


def profiles(
    job_file: Job | str | Path,
    *,
    on: Sequence[str],
    store: str | None = None,
    known: Mapping[str, Profile] | None = None,
    on_event: OnEvent = ignore,
    platform: Platform | None = None,
) -> dict[str, Profile]:
    """Profile a job on several offers, and return the profiles by the offers' names in the catalog.

    Each offer gets one member. Members that do not disturb each other measure at the same time. If one fails, all end.
    """
    file = check_job_file(job_file)
    offers = resolve_offers(on)
    known = known or {}
    if unknown := known.keys() - offers.keys():
        raise InputError(
            f"`known` has profiles of {', '.join(sorted(unknown))}, but `on` names {', '.join(offers)}; leave out the "
            "others"
        )
    check_shared_memory(job_file, file, offers.values())
    job = packed_job(file, offers.values())
    progress = ProgressSum(len(offers), on_event)
    measured: dict[str, Profile] = {}
    with opened_platform(platform, offers.values()) as used_platform, scratch_folder(store, "profiling") as objects:
        on_event(PhaseStarted(at_s=time.time(), phase="profile"))
        members = dict(zip(offers, _member_names(len(offers)), strict=True))
        for names in rounds(offers, cpu_quota(), memory_bytes()):
            tasks = []
            for name in names:
                folder = open_store(f"{objects.url}/{name}")  # each member has its own events and profile
                relay = Relay(folder, progress.of(name))
                tasks.append(_Task(members[name], offers[name], folder, relay, known.get(name)))
            for task in tasks:
                job.store_in(task.store)
            measured |= zip(names, _measure_together(job, tasks, used_platform), strict=True)
    return {name: measured[name] for name in offers}


def measure(
    job: TravellingJob,
    store: ObjectStore,
    offers: Sequence[Offer],
    platform: Platform,
    relay: Relay,
    meter: RunMeter | None = None,
) -> dict[str, Profile]:
    """Measure a run's job on offers that do not disturb one another, and return the profiles by their names.

    The profiles stay in the run's folder. The meter bills the members.
    """
    first, *others = offers
    first_name, *other_names = _member_names(len(offers))
    tasks = [_Task(first_name, first, store, relay, None)]
    with ExitStack() as folders:
        for name, offer in zip(other_names, others, strict=True):  # each member has its own events and profile
            folder = folders.enter_context(scratch_folder(store.url, "profiling"))
            folder.put(keys.code(job.code), store.get(keys.code(job.code)))
            tasks.append(_Task(name, offer, folder, Relay(folder, ignore), None))
        measured = _measure_together(job, tasks, platform, meter)
    for offer, profile in zip(others, measured[1:], strict=True):
        store.put(keys.profile_on(offer.name), encode_record(profile))
    return {offer.name: profile for offer, profile in zip(offers, measured, strict=True)}


def _member_names(num_members: int) -> list[str]:
    """Return the names of profiling members. Not every name of an offer can be part of a member's name."""
    return [_PROFILER] if num_members == 1 else [f"{_PROFILER}-{number + 1}" for number in range(num_members)]


def rounds(offers: Mapping[str, Offer], num_cores: float, memory_bytes: int) -> list[list[str]]:
    """Group offers into rounds that measure at the same time; each offer joins the first round with room for it.

    Members of this machine that are limited to a size measure together as long as cores and memory suffice for all. A
    member without such a limit needs the machine to itself. Members elsewhere have machines of their own.
    """
    grouped: list[list[str]] = []
    for name in offers:
        group = next((names for names in grouped if _fit([*names, name], offers, num_cores, memory_bytes)), None)
        if group is None:
            grouped.append([name])
        else:
            group.append(name)
    return grouped


def _fit(names: list[str], offers: Mapping[str, Offer], num_cores: float, memory_bytes: int) -> bool:
    local_sizes = [enforced_size(offers[name]) for name in names if offers[name].platform == LOCAL]
    sizes = [size for size in local_sizes if size is not None]
    if len(sizes) < len(local_sizes):
        return len(local_sizes) == 1
    return sum(size.vcpus for size in sizes) <= num_cores and sum(size.memory_bytes for size in sizes) <= memory_bytes


@dataclass(frozen=True)
class _Task:
    """The task of one profiling member, with the relay of its events."""

    member: str
    offer: Offer
    store: ObjectStore
    relay: Relay
    known: Profile | None


def _measure_together(
    job: TravellingJob, tasks: Sequence[_Task], platform: Platform, meter: RunMeter | None = None
) -> list[Profile]:
    def poll() -> None:
        for task in tasks:
            task.relay.poll()

    with ExitStack() as started:
        crews = []
        for task in tasks:
            where = "" if task.offer.name == LOCAL else f" on {task.offer.name}"
            during = f"while the job was being measured{where}"
            crew = Crew(platform, task.store, checks_input=True, during=during, meter=meter)
            crews.append(started.enter_context(crew))
            crew.start("profiler", [_spec(job, task)], [task.offer])
        wait_for_all(crews, poll)
    for task in tasks:
        task.relay.flush()
    return [_read(task.store, task.offer) for task in tasks]


def _spec(job: TravellingJob, task: _Task) -> ProfilerSpec:
    # a neighbour of a member with a size limit would run within that limit, and slow the member down
    job_file, code = job.seen_from(task.offer)
    has_neighbours = task.offer.platform == LOCAL and enforced_size(task.offer) is None
    return ProfilerSpec(
        run=secrets.token_hex(4),
        member=task.member,
        store=task.store.url,
        job_file=job_file,
        code=code,
        num_threads=num_threads(task.offer),
        roster=task.relay.roster,
        site=task.offer.site,
        num_neighbours=min(num_cores() - 1, _MAX_NEIGHBOURS) if has_neighbours else 0,
        memory_bytes=task.offer.memory_bytes,
        known=task.known,
    )


def _read(store: ObjectStore, offer: Offer) -> Profile:
    measured = read_record(store, keys.PROFILE, Profile)
    if enforced_size(offer) is None:
        return measured
    # a member with a size limit sees only its own quota, but members contend for the whole machine
    return structs.replace(measured, device=structs.replace(measured.device, num_cores=float(num_cores())))

"""Profiling and planning: a member measures, the planner decides."""

import math
import secrets
import time
from pathlib import Path
from typing import Any

from msgspec import structs

from zooid.coordinator.crew import Crew
from zooid.coordinator.offers import LOCAL, held_to, resolve_offer
from zooid.coordinator.relay import OnEvent, Relay
from zooid.coordinator.scratch import scratch_folder
from zooid.core import keys
from zooid.core.errors import JobError, PlanError
from zooid.core.events import Event, PhaseStarted
from zooid.core.machine import num_cores
from zooid.core.offer import Offer
from zooid.core.plan import Limits, Plan
from zooid.core.profile import Profile
from zooid.core.records import decode_record
from zooid.core.spec import ProfilerSpec
from zooid.planner import Goal, find_plan
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
from zooid.store import ObjectStore

MOST_NEIGHBOURS = 3
"""Layers are measured in the company of so many others at most, which is what a plan of a few members brings."""


def ignore(event: Event) -> None:
    """For callers who do not want to watch."""


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
    file = check_job_file(job_file)
    offer = resolve_offer(on)
    with scratch_folder(store, "profiling") as objects:
        on_event(PhaseStarted(at_s=time.time(), phase="profile"))
        return measure(file, objects, offer, platform or LocalPlatform(), Relay(objects, on_event), known)


def plan(
    job_file: str | Path,
    *,
    measured: Profile | None = None,
    limits: Limits | None = None,
    goal: Goal | None = None,
    store: str | None = None,
    on: str = LOCAL,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> Plan:
    """The best plan for a job under the limits; measures the job first unless its profile is given."""
    file = check_job_file(job_file)
    if measured is None:
        measured = profile(file, store=store, on=on, on_event=on_event, platform=platform)
    if measured.job != file.stem:
        raise PlanError(f"the profile is of the job {measured.job}, not of {file.stem}; measure this one")
    return find_plan(measured, resolve_offer(on), limits or Limits(), goal or "fastest")


def measure(
    job_file: Path,
    store: ObjectStore,
    offer: Offer,
    platform: Platform[Any],
    relay: Relay,
    known: Profile | None = None,
) -> Profile:
    """Start one profiling member on the platform, wait for it, and return what it measured."""
    spec = ProfilerSpec(
        run=secrets.token_hex(4),
        member="profiler",
        store=store.url,
        job_file=str(job_file),
        num_threads=num_threads(offer),
        site=offer.site,
        num_neighbours=_num_neighbours(offer),
        memory_bytes=offer.memory_bytes,
        known=known,
    )
    with Crew(platform, store, checks_input=True, offer=offer) as crew:
        crew.start("profiler", [spec])
        crew.wait(relay.poll)
    relay.flush()
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


def num_threads(offer: Offer) -> int:
    """Threads that a member computes with: one for each of its cores, a part of a core included."""
    return math.ceil(offer.vcpus)


def _num_neighbours(offer: Offer) -> int:
    """None for a member that is held to a size: its company would live on its own share, and slow it down by that."""
    if offer.platform != LOCAL or held_to(offer) is not None:
        return 0
    return min(num_cores() - 1, MOST_NEIGHBOURS)

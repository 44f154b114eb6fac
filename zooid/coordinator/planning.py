"""Profiling and planning: a member measures, the planner decides."""

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zooid.coordinator.crew import crew_on
from zooid.coordinator.offers import LOCAL, num_cores, resolve_offer
from zooid.core import keys
from zooid.core.errors import JobError
from zooid.core.events import Event
from zooid.core.offer import Offer
from zooid.core.plan import Limits, Plan
from zooid.core.profile import Profile
from zooid.core.records import decode_record
from zooid.core.spec import ProfilerSpec
from zooid.planner import Goal, find_plan
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
from zooid.store import EventReader, ObjectStore, open_store

OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """For callers who do not want to watch."""


def profile(
    job_file: str | Path,
    *,
    store: str | None = None,
    on: str = LOCAL,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> Profile:
    """Check a job and measure its layers where its members will run, and the way to the store they will use."""
    file = check_job_file(job_file)
    offer = resolve_offer(on)
    with _store_or_temporary(store) as objects:
        reader = EventReader(objects)

        def relay() -> None:
            for event in reader.read_new():
                on_event(event)

        return measure(file, objects, offer, platform or LocalPlatform(), relay)


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
    if measured is None:
        measured = profile(job_file, store=store, on=on, on_event=on_event, platform=platform)
    return find_plan(measured, resolve_offer(on), limits or Limits(), goal or "fastest")


def measure(
    job_file: Path, store: ObjectStore, offer: Offer, platform: Platform[Any], relay: Callable[[], None]
) -> Profile:
    """Start one profiling member on the platform, wait for it, and return what it measured."""
    spec = ProfilerSpec(
        run=secrets.token_hex(4),
        member="profiler",
        store=store.url,
        job_file=str(job_file),
        num_threads=num_threads(offer),
        site=offer.site,
        num_neighbours=num_cores() - 1 if offer.platform == LOCAL else 0,
    )
    with crew_on(platform, store) as crew:
        crew.start("profiler", [spec])
        crew.wait(relay)
    relay()
    return decode_record(bytes(store.get(keys.PROFILE)), Profile, f"{store.url}/{keys.PROFILE}")


def check_job_file(job_file: str | Path) -> Path:
    """The file's full path; that it defines a job is found out by the first member, which can import torch."""
    file = Path(job_file).resolve()
    if not file.is_file():
        raise JobError(
            f"there is no job file {job_file}; give the path of a Python file that defines `job = zooid.Job(…)`"
        )
    return file


def num_threads(offer: Offer) -> int:
    """Threads that a member computes with: its whole cores, at least one."""
    return max(1, int(offer.vcpus))


@contextmanager
def _store_or_temporary(url: str | None) -> Iterator[ObjectStore]:
    if url is not None:
        yield open_store(url)
        return
    with tempfile.TemporaryDirectory(prefix="zooid-") as folder:
        yield open_store(f"file://{folder}")

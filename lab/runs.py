"""Runs that are set up by hand: a plan, a roster and checkpoint 0 in a folder, ready for members of any kind."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from msgspec import structs

from lab.plans import bare_plan
from zooid.coordinator.plans.offer_names import num_threads
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.first_roster import roster_for
from zooid.coordinator.runs.relay import OnEvent, Relay
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Plan, ScheduleName, TransportName
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.spec import WorkerSpec
from zooid.layers import LayeredModel, check_job, collate, trace_job
from zooid.platforms import Platform
from zooid.schedule.samples import SamplePlan
from zooid.store import ObjectStore, open_store
from zooid.worker.member.prepare_task import prepare


@contextmanager
def run_by_hand(
    job_file: Path,
    num_stages: int,
    *,
    schedule: ScheduleName = "1f1b",
    ahead: int = 0,
    transport: TransportName = "store",
) -> Iterator[tuple[ObjectStore, list[WorkerSpec]]]:
    """The store of a run of one replica that is about to train, and its members' specs, which lie there."""
    with tempfile.TemporaryDirectory(prefix="zooid-run-") as folder:
        store = open_store(Path(folder).as_uri())
        plan = plan_by_hand(job_file, num_stages, schedule, transport, ahead)
        yield store, _set_up(job_file, plan, secrets.token_hex(4), store, threads=1)


def train_by_hand(job_file: Path, plan: Plan, store: ObjectStore, platform: Platform, on_event: OnEvent) -> None:
    """Train to the end in a store that need not honour create-only puts, since nobody else writes there."""
    run = secrets.token_hex(4)
    specs = _set_up(job_file, plan, run, store, num_threads(plan.offers[0]))
    Crew(platform, store, checks_input=False).run("worker", specs, plan.member_offers, Relay(store, on_event))


def _set_up(job_file: Path, plan: Plan, run: str, store: ObjectStore, threads: int) -> list[WorkerSpec]:
    """Plan, roster, specs and checkpoint 0 in the store."""
    roster = roster_for(plan, run, 0, 0)
    store.put(keys.plan(0), encode_record(plan))
    store.put(keys.roster(0), encode_record(roster))
    specs = [
        WorkerSpec(
            run=run,
            member=each.name,
            store=store.url,
            job_file=str(job_file),
            num_threads=threads,
            task="train",
            roster=0,
            timeout_s=60.0,
        )
        for each in roster.members
    ]
    digest = prepare(structs.replace(specs[0], member="preparer", task="prepare"), store)
    specs = [structs.replace(spec, trace=digest) for spec in specs]
    for spec in specs:
        store.put(keys.spec(spec.member), encode_record(spec))
    return specs


def plan_by_hand(
    job_file: Path, num_stages: int, schedule: ScheduleName, transport: TransportName, ahead: int = 0
) -> Plan:
    """Nothing is predicted; stages begin where a single value crosses."""
    checked = check_job(load_job(job_file))
    job = checked.job
    layered = trace_job(job, collate(checked.data, range(2), job))
    grain_size = job.grain_size or job.batch_size
    cuts = [0, *(_narrow_cut(layered, number, num_stages) for number in range(1, num_stages)), layered.num_layers]
    return bare_plan(
        job=job_file.stem,
        fingerprint=layered.fingerprint,
        spans=list(pairwise(cuts)),
        batch_size=job.batch_size,
        grain_size=grain_size,
        num_steps=SamplePlan.of(job, checked.num_samples, grain_size).num_steps,
        schedule=schedule,
        ahead=ahead,
        transport=transport,
    )


def _narrow_cut(layered: LayeredModel, number: int, num_stages: int) -> int:
    """The layer nearest to an even division at which one value crosses."""
    middle = layered.num_layers * number / num_stages
    narrow = [layer for layer in range(1, layered.num_layers) if len(layered.values_into(layer)) == 1]
    return min(narrow, key=lambda layer: abs(layer - middle))

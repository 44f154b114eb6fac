"""A training run from job to checkpoint: everything is refused, decided and written down before members start."""

import secrets
from pathlib import Path
from typing import Any

from msgspec import structs

from zooid.coordinator.job_files.job_objects import check_job_file, keep_source
from zooid.coordinator.measurements.scratch_folder import refuse_memory
from zooid.coordinator.plans.given_plan import check_given, check_reproducible, fixed_layout
from zooid.coordinator.plans.offer_names import LOCAL, resolve_offer
from zooid.coordinator.runs.crew import ready_platform
from zooid.coordinator.runs.relay import OnEvent, PrintsOnly
from zooid.coordinator.runs.supervision import Run, RunResult
from zooid.core.errors import InputError, ObjectExists
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.search_result import Goal
from zooid.core.records import encode_record
from zooid.core.resources.link import Links
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.runs.spec import RunClaim
from zooid.platforms import Platform
from zooid.store import ObjectStore, check_create_only, open_store


def train(
    job_file: Job | str | Path,
    *,
    store: str,
    plan: Plan | None = None,
    links: Links | None = None,
    limits: Limits | None = None,
    goal: Goal | None = None,
    on: str | None = None,
    checkpoints: CheckpointRule | None = None,
    profile: bool = True,
    reproducible: bool = False,
    on_event: OnEvent | None = None,
    platform: Platform[Any] | None = None,
) -> RunResult:
    """Train a job to its end; without a plan it is profiled and planned first. The store's folder becomes the run's.

    With `profile=False` and limits that pin replicas and stages, the job is neither profiled nor planned: stages are as
    even as the traced model can tell, and nothing is known about time, money and memory.

    With `reproducible`, gradients are added up in a fixed tree over grains. Then every layout trains the same bits,
    whatever members are lost, as long as the grain size is the same. A plan that is given must have been made so.

    Without `on_event`, what the job prints in its members is printed here. What was trained until the last checkpoint
    is not lost if the run ends before: `resume` goes on from there.
    """
    on_event = on_event or PrintsOnly()
    file = check_job_file(job_file)
    offer = resolve_offer(on or LOCAL)
    if reproducible and plan is None:
        limits = structs.replace(limits or Limits(), reproducible=True)
    layout = None if profile else fixed_layout(plan, limits, goal, links, offer)
    if plan is not None:
        check_given(plan, limits, goal, on)
        check_reproducible(plan, wanted=reproducible)
    own_platform = platform or ready_platform(offer if plan is None else plan.offers[0])
    claim = RunClaim(
        run=secrets.token_hex(4),
        job_file=str(file),
        checkpoints=checkpoints or DEFAULT_RULE,
        nonce=secrets.token_hex(8),
    )
    objects = _claim_folder(store, claim)
    with Run(objects, claim, 0, own_platform, on_event) as run:
        given = plan or layout or _planned(run, objects, offer, limits or Limits(), goal or "balanced", links, on_event)
        with run.preparing(given) as prepared:
            keep_source(objects, file)
            return run.train(prepared)


def _planned(
    run: Run, store: ObjectStore, offer: Offer, limits: Limits, goal: Goal, links: Links | None, on_event: OnEvent
) -> Plan:
    """Measure the job, and search for the best plan."""
    from zooid.coordinator.measurements.link_probes import peer_links
    from zooid.coordinator.plans.plan_search import (
        measure,  # these load the planner, which a run with a plan does not need
    )
    from zooid.planner import search, single

    run.enter("profile")
    measured = measure(run.job_file, store, offer, run.platform, run.relay)
    run.enter("plan")
    peers = peer_links(limits, offer.name, links, on_event, run.platform)
    return search(single(measured, offer, peers), limits, goal).pick


def _claim_folder(url: str, claim: RunClaim) -> ObjectStore:
    """The run's folder: one that members can share, honest about create-only puts, and empty."""
    refuse_memory(url)
    store = open_store(url)
    if not store.is_empty():
        raise InputError(
            f"{url} is not empty: it holds a run or something else; give a folder that does not exist yet, or go on "
            f"with the run: zooid resume {url}"
        )
    check_create_only(store)
    try:
        store.create(keys.CLAIM, encode_record(claim))
    except ObjectExists as error:
        raise InputError(f"another run has just begun in {url}; give another folder") from error
    return store

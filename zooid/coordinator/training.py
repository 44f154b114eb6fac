"""A training run from job to checkpoint: everything is refused, decided and written down before members start."""

import secrets
from pathlib import Path
from typing import Any

from zooid.coordinator.given import check_given
from zooid.coordinator.job_objects import keep_source
from zooid.coordinator.offers import LOCAL, resolve_offer
from zooid.coordinator.planning import check_job_file, measure
from zooid.coordinator.probing import peer_links
from zooid.coordinator.relay import OnEvent, PrintsOnly
from zooid.coordinator.running import Run, RunResult
from zooid.coordinator.scratch import refuse_memory
from zooid.core import keys
from zooid.core.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.errors import InputError, ObjectExists
from zooid.core.job import Job
from zooid.core.link import Links
from zooid.core.plan import Limits, Plan
from zooid.core.records import encode_record
from zooid.core.search import Goal
from zooid.core.spec import RunClaim
from zooid.planner import search, single
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform
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
    on_event: OnEvent | None = None,
    platform: Platform[Any] | None = None,
) -> RunResult:
    """Train a job to its end; without a plan it is profiled and planned first. The store's folder becomes the run's.

    Without `on_event`, what the job prints in its members is printed here. What was trained until the last checkpoint
    is not lost if the run ends before: `resume` goes on from there.
    """
    on_event = on_event or PrintsOnly()
    file = check_job_file(job_file)
    offer = resolve_offer(on or LOCAL)
    if plan is not None:
        check_given(plan, limits, goal, on)
    claim = RunClaim(
        run=secrets.token_hex(4),
        job_file=str(file),
        checkpoints=checkpoints or DEFAULT_RULE,
        nonce=secrets.token_hex(8),
    )
    objects = _claim_folder(store, claim)
    with Run(objects, claim, 0, platform or LocalPlatform(), on_event) as run:
        if plan is None:
            run.enter("profile")
            measured = measure(file, objects, offer, run.platform, run.relay)
            run.enter("plan")
            limits = limits or Limits()
            peers = peer_links(limits, on or LOCAL, links, on_event, platform)
            plan = search(single(measured, offer, peers), limits, goal or "balanced").pick
        run.prepare(plan)
        keep_source(objects, file)
        return run.train(plan)


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

"""Going on with a run that has ended before its last step: from its last checkpoint, in any layout."""

import contextlib
import secrets
from pathlib import Path
from typing import Any

from msgspec import structs

from zooid.coordinator.job_files.job_objects import check_job_file, keep_source, kept_source, refuse_while_loading
from zooid.coordinator.measurements.link_probes import peer_links
from zooid.coordinator.measurements.scratch_folder import refuse_memory
from zooid.coordinator.plans.given_plan import check_continues, check_given, check_memory
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.plans.plan_search import measure
from zooid.coordinator.plans.remaining_steps import plan_the_rest, samples_of
from zooid.coordinator.runs.adoption import Orphans, find_orphans
from zooid.coordinator.runs.crew import ready_platform
from zooid.coordinator.runs.lease import refuse_living, told_until
from zooid.coordinator.runs.leftovers import clear_earlier
from zooid.coordinator.runs.relay import OnEvent, PrintsOnly
from zooid.coordinator.runs.supervision import Run, RunResult
from zooid.core.errors import InputError, ObjectNotFound, RecordError, ZooidError
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import Goal
from zooid.core.records import decode_record
from zooid.core.resources.link import Links
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, CheckpointRule
from zooid.core.runs.spec import RunClaim
from zooid.platforms import Platform
from zooid.store import ObjectStore, clear, open_store
from zooid.store.checkpoint_index import (
    complete_steps,
    last_step,
    read_manifest,
    reject_missing_shards,
    sweep_incomplete,
)
from zooid.store.claims import last_claim, remembered_job_file
from zooid.store.rosters import last_number


def resume(
    store: str,
    *,
    job_file: Job | str | Path | None = None,
    plan: Plan | None = None,
    links: Links | None = None,
    limits: Limits | None = None,
    goal: Goal | None = None,
    on: str | None = None,
    checkpoints: CheckpointRule | None = None,
    past_stop: bool = False,
    on_event: OnEvent | None = None,
    platform: Platform[Any] | None = None,
) -> RunResult:
    """Go on with the run in this folder, from its last complete checkpoint to its end.

    Where the run's coordinator has died and its members still train, they are adopted: they go on as they are, unless
    a job file, a plan, limits, a goal, `on` or another rule for checkpoints is given.

    A run that has stopped early is complete, unless `past_stop` says to go on all the same. Without a plan, limits, a
    goal and `on`, members are as many as before. What is not given is as it was. The losses are the same as if the run
    had not been interrupted, in whatever layout.
    """
    on_event = on_event or PrintsOnly()
    objects, before, number = _find(store)
    file = _job_file(job_file, before, objects)
    offer = None if on is None else resolve_offer(on)
    if plan is not None:
        check_given(plan, limits, goal, on)
    was_killed = refuse_living(objects, number - 1)
    if not was_killed:  # else members may still be at work: what they have left is looked at, and removed, below
        manifest = _last_checkpoint(objects, past_stop=past_stop)
        if plan is not None:
            check_continues(plan, manifest, objects.url)
    last_plan = _last_plan(objects)
    own_platform = platform or ready_platform(offer or (plan or last_plan).offers[0])
    claim = RunClaim(
        run=before.run,
        job_file=str(file),
        checkpoints=checkpoints or before.checkpoints,
        nonce=secrets.token_hex(8),
    )
    are_as_before = all(given is None for given in (job_file, plan, limits, goal, on))
    if was_killed and are_as_before and claim.checkpoints == before.checkpoints:
        orphans = find_orphans(objects, own_platform, last_plan, told_until(objects, number - 1))
        if orphans is not None:
            return _adopt(objects, before, number, own_platform, on_event, orphans, last_plan)
    with Run(objects, claim, number, own_platform, on_event) as run:
        if was_killed:  # its members may have written checkpoints since, and pruned others, until they saw the claim
            run.wait_for_earlier_members()
        manifest = _last_checkpoint(objects, past_stop=past_stop)
        _tidy(objects, claim.run, number)
        if plan is None and limits is None and goal is None and on is None:
            plan = _here(last_plan)
        if plan is None:
            chosen = offer or resolve_offer(last_plan.offers[0].name)
            measured = _profile(objects, manifest, chosen, run)
            run.enter("plan")
            limits = limits or Limits(insured=last_plan.insured)
            limits = structs.replace(
                limits,
                transport=limits.transport or last_plan.transport,
                reproducible=limits.reproducible or last_plan.reproducible,
            )
            peers = peer_links(limits, on or chosen.name, links, on_event, own_platform)
            plan = plan_the_rest(measured, manifest, chosen, limits, goal or "balanced", peers)
        check_continues(plan, manifest, objects.url)
        run.check(plan)
        keep_source(objects, file)
        return run.train(plan, manifest.step)


def _adopt(
    store: ObjectStore,
    claim: RunClaim,
    number: int,
    platform: Platform[Any],
    on_event: OnEvent,
    orphans: Orphans,
    plan: Plan,
) -> RunResult:
    """Go on with members that train already. If this is left early, they end."""
    with Run(store, claim, number, platform, on_event, orphans) as run:
        try:
            return run.adopt(plan)
        except BaseException:
            if not (orphans.are_seen or run.is_replaced):
                with contextlib.suppress(InputError):  # somebody else has gone on, and that ends them, too
                    _end_by_claim(store, claim, number + 1, platform, on_event)
            raise


def _end_by_claim(store: ObjectStore, claim: RunClaim, number: int, platform: Platform[Any], on_event: OnEvent) -> None:
    """End members that no process here can reach: they leave when they see a claim that does not adopt them."""
    with Run(store, structs.replace(claim, nonce=secrets.token_hex(8)), number, platform, on_event) as run:
        run.wait_for_earlier_members()


def resumable_step(store: str) -> int | None:
    """The step from which `resume` would go on with the run in this folder; None where nothing is left to do."""
    with contextlib.suppress(ZooidError):
        objects = open_store(store)
        steps = complete_steps(objects)
        if not steps:
            return None
        manifest = read_manifest(objects, steps[-1])
        if manifest.step < samples_of(manifest).num_steps and not manifest.ledger.stopped:
            return manifest.step
    return None


def _find(url: str) -> tuple[ObjectStore, RunClaim, int]:
    """The run's folder, its last claim, and the number of the next."""
    refuse_memory(url)
    store = open_store(url)
    number, claim = last_claim(store)
    return store, claim, max(number, last_number(store)) + 1


def _job_file(given: Job | str | Path | None, before: RunClaim, store: ObjectStore) -> Path:
    if given is not None:
        return check_job_file(given)
    refuse_while_loading()
    is_gone = not before.job_file or not Path(before.job_file).is_file()
    if is_gone and (file := kept_source(store)) is not None:
        return file
    return check_job_file(remembered_job_file(store, before))


def _last_checkpoint(store: ObjectStore, *, past_stop: bool) -> CheckpointManifest:
    if not complete_steps(store):
        raise InputError(
            f"the run in {store.url} has no complete checkpoint, not even of its initial weights: it never began; "
            "delete the folder and train anew"
        )
    manifest = read_manifest(store, last_step(store))
    num_steps = samples_of(manifest).num_steps
    if manifest.step >= num_steps:
        raise InputError(
            f"the run in {store.url} is complete: its checkpoint has all {num_steps} steps; "
            f'zooid.load_checkpoint("{store.url}") gives the weights'
        )
    if manifest.ledger.stopped and not past_stop:
        raise InputError(
            f"the run in {store.url} is complete: it stopped early, after step {manifest.step} of {num_steps}, since "
            f"{manifest.ledger.stopped}; to go on all the same: zooid resume {store.url} --past-stop "
            "(in Python, past_stop=True)"
        )
    reject_missing_shards(store, manifest)
    return manifest


def _last_plan(store: ObjectStore) -> Plan:
    """That of the last roster that was written, or of the first one, if none was."""
    number = last_number(store)
    try:
        return decode_record(bytes(store.get(keys.plan(number))), Plan, f"{store.url}/{keys.plan(number)}")
    except ObjectNotFound as error:
        raise InputError(
            f"the run in {store.url} has lost its {keys.plan(number)}; give a plan with --plan, or put it back"
        ) from error


def _here(plan: Plan) -> Plan:
    """The same layout on this machine, which may be another one than last time."""
    resolved = structs.replace(plan, offers=tuple(resolve_offer(offer.name) for offer in plan.offers))
    check_memory(resolved)
    return resolved


def _tidy(store: ObjectStore, run: str, number: int) -> None:
    """Remove what a run that was killed has left: nobody else is at work under the newest claim."""
    sweep_incomplete(store)
    clear_earlier(store, run, number)
    clear(store, keys.PROBES)


def _profile(store: ObjectStore, manifest: CheckpointManifest, offer: Offer, run: Run) -> Profile:
    """The run's own profile, if it tells of this model on this offer; else a new one."""
    with contextlib.suppress(ObjectNotFound, RecordError):
        known = decode_record(bytes(store.get(keys.PROFILE)), Profile, f"{store.url}/{keys.PROFILE}")
        sites = {site for link in known.links for site in (link.from_site, link.to_site)}
        if known.model_fingerprint == manifest.model_fingerprint and offer.site in sites:
            return known
    run.enter("profile")
    return measure(run.job_file, store, offer, run.platform, run.relay)

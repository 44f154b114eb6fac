"""A resumed run: it continues from its last checkpoint in any layout, or adopts members that still train."""

import contextlib
import secrets
from pathlib import Path

from msgspec import structs

from zooid.coordinator.job_files.job_objects import check_job_file, reject_nested_run, save_source, saved_source
from zooid.coordinator.job_files.travelling_job import TravellingJob, packed_job
from zooid.coordinator.measurements.job_profiles import measure
from zooid.coordinator.measurements.link_probes import peer_links
from zooid.coordinator.measurements.scratch_folder import reject_memory_store
from zooid.coordinator.plans.earlier_runs import learn_so_far, merged_links
from zooid.coordinator.plans.interruption_rates import with_interruptions
from zooid.coordinator.plans.offer_names import largest_of, one_or_sizes, resolve_offer
from zooid.coordinator.plans.plan_validation import check_continues, check_given, check_memory
from zooid.coordinator.plans.remaining_steps import plan_the_rest
from zooid.coordinator.runs.adoption import Orphans, find_orphans
from zooid.coordinator.runs.cleanup import clear_earlier
from zooid.coordinator.runs.continued_run import continue_or_raise
from zooid.coordinator.runs.lease import reject_live_coordinator, relayed_until
from zooid.coordinator.runs.platform_choice import opened_platform
from zooid.coordinator.runs.relay import OnEvent, PrintsOnly
from zooid.coordinator.runs.run_limits import limited
from zooid.coordinator.runs.run_pace import find_pace
from zooid.coordinator.runs.run_progress import RunResult
from zooid.coordinator.runs.supervision import Run
from zooid.core.errors import CheckpointError, InputError, MemberFailed, ObjectNotFound, RecordError, ZooidError
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import Goal
from zooid.core.resources.link import Links
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, CheckpointRule, Ledger
from zooid.core.runs.spec import RunClaim
from zooid.core.runs.steering import Steering
from zooid.platforms import Platform
from zooid.schedule.samples import samples_of
from zooid.store import ObjectStore, clear, open_store
from zooid.store.checkpoint_index import (
    complete_steps,
    last_step,
    read_manifest,
    reject_missing_shards,
    sweep_incomplete,
)
from zooid.store.claims import last_claim, remembered_job_file
from zooid.store.planned_changes import read_plan_of
from zooid.store.rosters import last_number, last_roster
from zooid.store.stored_records import read_plan, read_record


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
    platform: Platform | None = None,
) -> RunResult:
    """Continue the run in this folder from its last complete checkpoint to its end.

    If the run's coordinator has died and its members still train, they are adopted and continue unchanged. A job file,
    a plan, limits, a goal, `on` or another checkpoint rule prevents that.

    A run that its job has stopped early is complete, unless `past_stop` is given. Options that are not given stay as
    they were; without a plan, limits, a goal and `on`, so does the layout. In any layout, the losses are the same as
    without the interruption.
    """
    on_event = on_event or PrintsOnly()
    folder, before, number = _find(store)
    file = _job_file(job_file, before, folder)
    named = () if on is None else one_or_sizes(on)
    if plan is not None:
        check_given(plan, limits, goal, links, on)
    was_killed = reject_live_coordinator(folder, number - 1)
    if not was_killed:  # otherwise members may still run, and the checkpoint is read after they have ended
        manifest = _last_checkpoint(folder, past_stop=past_stop)
        if plan is not None:
            check_continues(plan, manifest, folder.url)
    last_plan = _last_plan(folder)
    offers = named or (plan or last_plan).offers
    offers = (*offers, *_offers_of_run(folder, last_plan))
    with opened_platform(platform, offers) as own_platform:
        job = TravellingJob.of(before) if file is None else packed_job(file, offers)
        claim = RunClaim(
            run=before.run,
            job_file=job.file,
            code=job.code,
            code_file=job.code_file,
            checkpoints=checkpoints or before.checkpoints,
            nonce=secrets.token_hex(8),
        )
        is_unchanged = all(option is None for option in (job_file, plan, limits, goal, on))
        if was_killed and is_unchanged and claim.checkpoints == before.checkpoints:
            orphans = find_orphans(folder, own_platform, last_plan, relayed_until(folder, number - 1))
            if orphans is not None:
                return _adopt(folder, before, number, own_platform, on_event, orphans, last_plan)
        claim = limited(claim, number, limits, before, _last_ledger(folder), folder)
        try:
            with Run(folder, claim, number, own_platform, on_event) as run:
                job.store_in(folder)
                if was_killed:  # until they see the claim, its members may write checkpoints and prune others
                    run.wait_for_earlier_members()
                manifest = _last_checkpoint(folder, past_stop=past_stop)
                run.carry_over_costs(last_plan)
                sweep_incomplete(folder)  # nobody else writes under the newest claim
                clear_earlier(folder, claim.run, number)
                clear(folder, keys.PROBES)
                if plan is None and limits is None and goal is None and on is None:
                    followed = _followed_plan(folder, last_plan)
                    plan = _on_this_machine(followed) if find_pace(folder) is None else followed
                if plan is None:
                    choices = named or _offers_to_plan(folder, last_plan)
                    chosen = largest_of(choices[0])
                    measured = _profile(folder, manifest, chosen, run)
                    run.enter("plan")
                    limits = limits or Limits(insured=last_plan.insured)
                    limits = structs.replace(
                        limits,
                        transport=limits.transport or last_plan.transport,
                        reproducible=limits.reproducible or last_plan.reproducible,
                    )
                    peers = peer_links(limits, [chosen], links, on_event, own_platform, run.meter, folder.url)
                    learned = learn_so_far({chosen.name: measured}, merged_links(peers, measured.links), folder)
                    profile = structs.replace(learned.profiles[chosen.name], links=())
                    remaining = run.remaining(limits)
                    plan = plan_the_rest(profile, manifest, choices, remaining, goal or "balanced", learned.links)
                check_continues(plan, manifest, folder.url)
                run.check(plan)
                if file is not None:
                    save_source(folder, file)
                return run.train(plan, manifest.step)
        except (MemberFailed, CheckpointError) as failure:
            return continue_or_raise(failure, folder, own_platform, on_event)


def _adopt(
    store: ObjectStore,
    claim: RunClaim,
    number: int,
    platform: Platform,
    on_event: OnEvent,
    orphans: Orphans,
    plan: Plan,
) -> RunResult:
    """Supervise members that already train. If this ends early, the members end, too."""
    with Run(store, claim, number, platform, on_event, orphans) as run:
        try:
            return run.adopt(plan)
        except BaseException:
            if not (orphans.are_seen or run.is_replaced):
                # members on other machines end when they see a claim that does not adopt them
                ending_claim = structs.replace(claim, nonce=secrets.token_hex(8))
                with (
                    contextlib.suppress(InputError),  # another coordinator has taken over, which ends them, too
                    Run(store, ending_claim, number + 1, platform, on_event) as ending_run,
                ):
                    ending_run.wait_for_earlier_members()
            raise


def resumable_step(store: str) -> int | None:
    """Return the step from which `resume` would continue the run in this folder; None if nothing is left to do."""
    with contextlib.suppress(ZooidError):
        folder = open_store(store)
        steps = complete_steps(folder)
        if not steps:
            return None
        manifest = read_manifest(folder, steps[-1])
        if manifest.step < samples_of(manifest).num_steps and not manifest.ledger.is_complete_early:
            return manifest.step
    return None


def _find(url: str) -> tuple[ObjectStore, RunClaim, int]:
    """Return the run's folder, its last claim, and the number of the next claim."""
    reject_memory_store(url)
    store = open_store(url)
    number, claim = last_claim(store)
    return store, claim, max(number, last_number(store)) + 1


def _job_file(given: Job | str | Path | None, before: RunClaim, store: ObjectStore) -> Path | None:
    """Return the job file on this machine; None if it is not here, but in the archive of the run's code."""
    if given is not None:
        return check_job_file(given)
    reject_nested_run()
    is_gone = not before.job_file or not Path(before.job_file).is_file()
    if is_gone and before.code:
        return None
    if is_gone and (file := saved_source(store)) is not None:
        return file
    return check_job_file(remembered_job_file(store, before))


def _last_checkpoint(store: ObjectStore, *, past_stop: bool) -> CheckpointManifest:
    if not complete_steps(store):
        raise InputError(
            f"the run in {store.url} has no complete checkpoint, not even of its initial weights, so it never began; "
            "delete the folder and train again"
        )
    manifest = read_manifest(store, last_step(store))
    num_steps = samples_of(manifest).num_steps
    if manifest.step >= num_steps:
        raise InputError(
            f"the run in {store.url} is complete: its checkpoint has all {num_steps} steps; "
            f'zooid.load_checkpoint("{store.url}") gives the weights'
        )
    if manifest.ledger.is_complete_early and not past_stop:
        raise InputError(
            f"the run in {store.url} is complete: it stopped early after step {manifest.step} of {num_steps}, because "
            f"{manifest.ledger.stopped}; to continue nevertheless: zooid resume {store.url} --past-stop "
            "(in Python, past_stop=True)"
        )
    reject_missing_shards(store, manifest)
    return manifest


def _last_ledger(store: ObjectStore) -> Ledger:
    """Return the ledger of the last checkpoint; an empty one if there is no checkpoint yet."""
    steps = complete_steps(store)
    return read_manifest(store, steps[-1]).ledger if steps else Ledger()


def _last_plan(store: ObjectStore) -> Plan:
    """Return the plan of the last roster; that of the first one if no roster was written."""
    number = last_number(store)
    try:
        return read_plan(store, number)
    except ObjectNotFound as error:
        raise InputError(
            f"the run in {store.url} has lost its {keys.plan(number)}; give a plan with --plan, or restore the file"
        ) from error


def _offers_of_run(store: ObjectStore, last_plan: Plan) -> tuple[Offer, ...]:
    """Return the offers that have members or may get them: those of its plans, and those to which it may switch."""
    followed = _followed_plan(store, last_plan)
    try:
        steering = read_record(store, keys.STEERING, Steering)
    except ObjectNotFound:
        return (*last_plan.offers, *followed.offers)
    return (*last_plan.offers, *followed.offers, *steering.offers)


def _offers_to_plan(store: ObjectStore, last_plan: Plan) -> tuple[Offer, ...]:
    """Return the offer of the last plan, or the sizes from which the run has chosen its members'."""
    with contextlib.suppress(ObjectNotFound):
        sized = read_record(store, keys.STEERING, Steering).offers[0].sized_by
        if sized:
            return one_or_sizes(sized)
    return (resolve_offer(last_plan.offers[0].name),)


def _followed_plan(store: ObjectStore, last_plan: Plan) -> Plan:
    """Return the plan that members followed last, to which they may have switched since their claim's own plan."""
    roster = last_roster(store, last_number(store))
    if roster is None or not roster.plan:
        return last_plan
    return read_plan_of(store, roster.number, roster.plan)


def _on_this_machine(plan: Plan) -> Plan:
    """Return the same layout on this machine, which may differ from the last one."""
    rates = {offer.name: rate for offer in plan.offers if (rate := offer.interruptions_per_hour) is not None}
    offers = with_interruptions((resolve_offer(offer.name) for offer in plan.offers), rates)
    resolved = structs.replace(plan, offers=offers)
    check_memory(resolved)
    return resolved


def _profile(store: ObjectStore, manifest: CheckpointManifest, offer: Offer, run: Run) -> Profile:
    """Return the run's own profile if it is of this model on this offer, or measure a new one."""
    with contextlib.suppress(ObjectNotFound, RecordError):
        known = read_record(store, keys.PROFILE, Profile)
        sites = {site for link in known.links for site in (link.from_site, link.to_site)}
        if known.model_fingerprint == manifest.model_fingerprint and offer.site in sites:
            return known
    run.enter("profile")
    return measure(run.job, store, [offer], run.platform, run.relay, run.meter)[offer.name]

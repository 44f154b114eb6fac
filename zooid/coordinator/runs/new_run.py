"""A new run: its input is checked, its plan is made and its folder is claimed before members start."""

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from zooid.coordinator.job_files.job_objects import check_job_file, save_source
from zooid.coordinator.job_files.travelling_job import packed_job
from zooid.coordinator.measurements.scratch_folder import reject_memory_store
from zooid.coordinator.plans.interruption_rates import with_interruptions
from zooid.coordinator.plans.offer_names import LOCAL, largest_of, offers_to_start
from zooid.coordinator.plans.plan_validation import check_given, check_predicted, fixed_layout
from zooid.coordinator.plans.reachable_offers import check_connections
from zooid.coordinator.plans.rented_room import check_rented_room
from zooid.coordinator.plans.shared_memory import check_shared_memory
from zooid.coordinator.runs.continued_run import continue_or_raise
from zooid.coordinator.runs.platform_choice import opened_platform
from zooid.coordinator.runs.relay import OnEvent, PrintsOnly
from zooid.coordinator.runs.run_progress import RunResult
from zooid.coordinator.runs.supervision import Run
from zooid.core.errors import CheckpointError, InputError, MemberFailed, ObjectExists
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import FixedLayout, Limits, Plan
from zooid.core.plans.search_result import Goal, Search
from zooid.core.records import encode_record
from zooid.core.resources.link import Links
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.runs.spec import RunClaim
from zooid.core.runs.steering import Steering
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
    on: str | Sequence[str] | None = None,
    interruptions: Mapping[str, float] | None = None,
    checkpoints: CheckpointRule | None = None,
    profile: bool = True,
    reproducible: bool = False,
    on_event: OnEvent | None = None,
    platform: Platform | None = None,
) -> RunResult:
    """Train a job to its end; without a plan it is profiled and planned first. `store` becomes the run's folder.

    With `profile=False` and limits that fix replicas and stages, the job is neither profiled nor planned. Its stages
    are as even as the traced model allows, and time, money and memory are unknown.

    With `reproducible`, gradients are summed in a fixed tree over grains. Every layout with the same grain size then
    trains the same bits, whatever members are lost. A given plan must have been made with this option.

    `on` names one or several offers; `ssh`, `slurm` or `ray` alone means all that are listed of that kind. An offer
    that is sized by resource, as `aws.lambda`, lets the planner choose the size of every member; the largest one is
    measured. The first offer is measured, and so are all other machines of one's own. Further offers to rent get an
    estimate from the first. With several, a run with limits may switch from one to another while it trains. With the
    goal `cheapest`, it also does so to save money. If it loses all members, it waits for others, and goes on from its
    last checkpoint.

    `interruptions` are expected losses of a member per hour, by the offer's name or its beginning. They decide how
    often checkpoints are written, unless `checkpoints` says it.

    Without `on_event`, the job's own output is printed. If the run ends early, `resume` continues from its last
    checkpoint.
    """
    on_event = on_event or PrintsOnly()
    file = check_job_file(job_file)
    names = [on] if isinstance(on, str) else list(on or [LOCAL])
    offers = with_interruptions(offers_to_start(names), interruptions if plan is None else None)
    offer = offers[0]
    if reproducible and plan is None:
        limits = structs.replace(limits or Limits(), reproducible=True)
    layout = None if profile else fixed_layout(plan, limits, goal, links, offers)
    if plan is not None:
        plan = structs.replace(plan, offers=with_interruptions(plan.offers, interruptions))
        check_given(plan, limits, goal, links, offer.name if on else None, reproducible=reproducible)
        check_predicted(plan, limits)
    check_shared_memory(job_file, file, offers if plan is None else plan.offers)
    transport = plan.transport if plan is not None else limits.transport if limits is not None else None
    check_connections(transport, offers if plan is None else plan.offers)
    job = packed_job(file, offers if plan is None else plan.offers)
    claim = RunClaim(
        run=secrets.token_hex(4),
        job_file=job.file,
        code=job.code,
        code_file=job.code_file,
        checkpoints=checkpoints or DEFAULT_RULE,
        nonce=secrets.token_hex(8),
        deadline_at_s=None if limits is None or limits.deadline_s is None else time.time() + limits.deadline_s,
        budget_usd=None if limits is None else limits.budget_usd,
    )
    with opened_platform(platform, offers if plan is None else plan.offers) as own_platform:
        given: Plan | FixedLayout | None = plan or layout
        if given is not None:
            check_rented_room(own_platform, given)
        folder = claim_folder(store, claim)
        fleets: tuple[Plan, ...] = ()
        try:
            with Run(folder, claim, 0, own_platform, on_event) as run:
                job.store_in(folder)
                if given is None:
                    found = _search(run, folder, offers, limits or Limits(), goal or "balanced", links, on_event)
                    given, fleets = found.pick, found.front
                    check_rented_room(own_platform, given)
                    if len(offers) > 1:
                        max_members = (limits or Limits()).max_members
                        rules = Steering(offers=offers, max_members=max_members, seeks_savings=goal == "cheapest")
                        folder.put(keys.STEERING, encode_record(rules))
                with run.preparing(given) as prepared:
                    save_source(folder, file)
                    return run.train(prepared, fleets=fleets)
        except (MemberFailed, CheckpointError) as failure:
            return continue_or_raise(failure, folder, own_platform, on_event, fleets)


def _search(
    run: Run,
    store: ObjectStore,
    offers: Sequence[Offer],
    limits: Limits,
    goal: Goal,
    links: Links | None,
    on_event: OnEvent,
) -> Search:
    # a run with a given plan needs none of these
    from zooid.coordinator.measurements.job_profiles import measure
    from zooid.coordinator.measurements.link_probes import peer_links
    from zooid.coordinator.plans.markets import market_for
    from zooid.planner import search, single

    run.enter("profile")
    offer = largest_of(offers[0])
    own = [other for other in offers[1:] if other.is_elsewhere and not other.is_rented]
    to_measure = [offer, *own]  # others are forms of this machine, or rented and estimated from the first
    measured = measure(run.job, store, to_measure, run.platform, run.relay, run.meter)
    run.enter("plan")
    peers = peer_links(limits, offers, links, on_event, run.platform, run.meter, store.url)
    if len(offers) == 1 and not offer.is_rented:
        return search(single(measured[offer.name], offer, peers), run.remaining(limits), goal)
    market, _ = market_for(offers, measured, links=peers, transport=limits.transport)
    return search(market, run.remaining(limits), goal)


def claim_folder(url: str, claim: RunClaim) -> ObjectStore:
    """Claim the run's folder: empty, in a store that members can share and that honours create-only puts."""
    reject_memory_store(url)
    store = open_store(url)
    if not store.is_empty():
        raise InputError(
            f"{url} is not empty: it holds a run or something else; give a folder that does not exist yet, or resume "
            f"the run: zooid resume {url}"
        )
    check_create_only(store)
    try:
        store.create(keys.CLAIM, encode_record(claim))
    except ObjectExists as error:
        raise InputError(f"another run has just begun in {url}; give another folder") from error
    return store

"""A rehearsed run of a job: its members train the real model, and computing takes the time that profiles give."""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from zooid.coordinator.job_files.job_objects import check_job_file, save_source
from zooid.coordinator.plans.plan_forecast import with_prediction
from zooid.coordinator.plans.plan_validation import check_given, check_memory, check_predicted
from zooid.coordinator.runs.continued_run import continue_or_raise
from zooid.coordinator.runs.new_run import claim_folder
from zooid.coordinator.runs.platform_choice import opened_platform
from zooid.coordinator.runs.relay import OnEvent
from zooid.coordinator.runs.run_progress import RunResult
from zooid.coordinator.runs.supervision import Run
from zooid.core.errors import CheckpointError, MemberFailed
from zooid.core.jobs.job import Job
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Limits, Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.runs.spec import RunClaim
from zooid.core.runs.steering import Steering
from zooid.platforms import Platform


def rehearse_job(
    job_file: Job | str | Path,
    plan: Plan,
    pace: RehearsalPace,
    *,
    store: str,
    limits: Limits | None = None,
    steering: Steering | None = None,
    fleets: Sequence[Plan] = (),
    checkpoints: CheckpointRule | None = None,
    on_event: OnEvent,
    platform: Platform | None = None,
) -> RunResult:
    """Train a job at this pace, with members on this machine, whatever offers the plan names.

    The folder keeps the pace, so that `resume` continues at it. Of the limits, deadline and budget count. With
    `steering`, the run may go on with other members while it trains: with those of `fleets`, which are plans with
    predictions, and with those that the planner finds.
    """
    plan = plan.emulated()
    fleets = [fleet.emulated() for fleet in fleets]
    file = check_job_file(job_file)
    check_memory(plan)
    if limits is not None:
        check_given(plan, limits, None, None, None)
    claim = RunClaim(
        run=secrets.token_hex(4),
        job_file=str(file),
        checkpoints=checkpoints or DEFAULT_RULE,
        nonce=secrets.token_hex(8),
        deadline_at_s=None if limits is None or limits.deadline_s is None else time.time() + limits.deadline_s,
        budget_usd=None if limits is None else limits.budget_usd,
    )
    paced_plan = with_prediction(plan, pace.profiles, claim.checkpoints)
    check_predicted(paced_plan, limits)
    with opened_platform(platform, plan.offers) as own_platform:
        folder = claim_folder(store, claim)
        folder.put(keys.PACE, encode_record(pace))
        if steering is not None:
            folder.put(keys.STEERING, encode_record(steering.emulated()))
        try:
            with Run(folder, claim, 0, own_platform, on_event) as run, run.preparing(paced_plan) as prepared:
                save_source(folder, file)
                return run.train(prepared, fleets=fleets)
        except (MemberFailed, CheckpointError) as failure:
            return continue_or_raise(failure, folder, own_platform, on_event, fleets)

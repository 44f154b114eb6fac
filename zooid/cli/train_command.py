"""`zooid train`: train a job to its end."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import background, options
from zooid.cli.resume_command import suggesting_resume
from zooid.core.plans.plan import Plan
from zooid.core.resources.link import Links
from zooid.report import say, view_for


def train(
    job: options.JobFile,
    store: options.Store = None,
    plan: Annotated[
        Path | None, typer.Option(help="Plan to follow.", show_default="profile and plan the job first")
    ] = None,
    layout: options.Layout = None,
    profile: Annotated[
        bool, typer.Option(help="Measure the job first. With --no-profile, give a --layout; nothing is predicted.")
    ] = True,
    members: options.Members = None,
    deadline: options.Deadline = None,
    budget: options.Budget = None,
    goal: options.GoalOption = None,
    schedule: options.Schedule = None,
    transport: options.Transport = None,
    reproducible: options.Reproducible = False,
    insured: options.Insured = False,
    links: options.LinksFile = None,
    on: options.OnSeveral = None,
    interruptions: options.Interruptions = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep_checkpoints: options.KeepCheckpoints = None,
    detach: options.Detach = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a job. Without --plan it is profiled and planned first; without --store the run's folder is in ./runs.

    Example: zooid train examples/digits.py --layout 2x2 --on local:aws.lambda.1769
    """
    console = Console()
    url = store or Path("runs", f"{job.stem}-{time.strftime('%Y%m%d-%H%M%S')}").absolute().as_uri()
    own_view = background.detach(url, as_json=as_json) if detach else view_for(console, as_json=as_json)
    with suggesting_resume(url), own_view as view:
        result = coordinator.train(
            job,
            store=url,
            plan=options.read_optional(plan, Plan),
            links=options.read_optional(links, Links),
            limits=options.limits_from(layout, members, deadline, budget, schedule, transport, insured=insured),
            goal=options.goal_from(goal),
            on=on,
            interruptions=options.interruptions_from(interruptions),
            checkpoints=options.checkpoints_from(checkpoint_every, keep_checkpoints),
            profile=profile,
            reproducible=reproducible,
            on_event=view.show,
        )
    if not as_json:
        say(console, f"checkpoint: {result.checkpoint}")

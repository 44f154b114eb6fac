"""`zooid resume`: continue an interrupted run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import background, options
from zooid.core.errors import InputError, Superseded, ZooidError
from zooid.core.plans.plan import Plan
from zooid.core.resources.link import Links
from zooid.report import say, view_for


def resume(
    url: options.RunFolder,
    job: options.MovedJobFile = None,
    plan: Annotated[
        Path | None, typer.Option(help="Plan for the remaining steps.", show_default="the run's own")
    ] = None,
    layout: options.Layout = None,
    members: options.Members = None,
    deadline: options.Deadline = None,
    budget: options.Budget = None,
    goal: options.GoalOption = None,
    schedule: options.Schedule = None,
    transport: options.Transport = None,
    insured: options.Insured = False,
    links: options.LinksFile = None,
    on: options.On = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep_checkpoints: options.KeepCheckpoints = None,
    past_stop: Annotated[bool, typer.Option("--past-stop", help="Continue a run that has stopped early.")] = False,
    detach: options.Detach = False,
    as_json: options.AsJson = False,
) -> None:
    """Continue a run from its last checkpoint, in the same or another layout. Limits apply to the remaining steps.

    Example: zooid resume s3://bucket/run-7 --layout 1x4
    """
    console = Console()
    own_view = background.detach(url, as_json=as_json) if detach else view_for(console, as_json=as_json)
    with suggesting_resume(url), own_view as view:
        result = coordinator.resume(
            url,
            job_file=job,
            plan=options.read_optional(plan, Plan),
            links=options.read_optional(links, Links),
            limits=options.limits_from(layout, members, deadline, budget, schedule, transport, insured=insured),
            goal=options.goal_from(goal),
            on=on,
            checkpoints=options.checkpoints_from(checkpoint_every, keep_checkpoints),
            past_stop=past_stop,
            on_event=view.show,
        )
    if not as_json:
        say(console, f"checkpoint: {result.checkpoint}")


@contextmanager
def suggesting_resume(url: str) -> Iterator[None]:
    """If a run is interrupted, print its last checkpoint and the command that resumes it.

    Rejected input has its own message, and a run that another coordinator has taken over needs no resume.
    """
    try:
        yield
    except (InputError, Superseded):
        raise
    except (KeyboardInterrupt, ZooidError):
        step = coordinator.resumable_step(url)
        if step is not None:
            say(Console(stderr=True), f"the checkpoint of step {step} is complete; to continue: zooid resume {url}")
        raise

"""`zooid resume`: go on with a run that was interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.core.errors import InputError, Superseded, ZooidError
from zooid.core.plans.plan import Plan
from zooid.core.resources.link import Links
from zooid.report import say, view_for


def resume(
    url: Annotated[str, typer.Argument(metavar="URL", help="Folder of the run: s3://bucket/run-7, file:///…")],
    job: Annotated[
        Path | None, typer.Option(help="The job file, if it is not where it was when the run began.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan to go on by; that of the run if not given.")] = None,
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
    past_stop: Annotated[bool, typer.Option("--past-stop", help="Go on with a run that has stopped early.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Go on with a run from its last checkpoint, as before, or in another layout; limits hold for what is left of it.

    Example: zooid resume s3://bucket/run-7 --layout 1x4
    """
    console = Console()
    with telling_how_to_go_on(url), view_for(console, as_json=as_json) as view:
        result = coordinator.resume(
            url,
            job_file=job,
            plan=options.read_file(plan, Plan) if plan else None,
            links=options.read_file(links, Links) if links else None,
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
def telling_how_to_go_on(url: str) -> Iterator[None]:
    """When a run is cut short, say what was saved and how to go on.

    Input that is refused has its own words, and a run that somebody else has gone on with needs nobody.
    """
    try:
        yield
    except (InputError, Superseded):
        raise
    except (KeyboardInterrupt, ZooidError):
        step = coordinator.resumable_step(url)
        if step is not None:
            say(
                Console(stderr=True),
                f"the checkpoint of step {step} is complete; go on from there with: zooid resume {url}",
            )
        raise

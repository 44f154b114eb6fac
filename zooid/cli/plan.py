"""`zooid plan`: find the best layout for a job."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.core.link import Links
from zooid.core.profile import Profile
from zooid.core.records import encode_record
from zooid.report import plan_table, view_for


def plan(
    job: options.JobFile,
    profile: Annotated[Path | None, typer.Option(help="A profile to plan from; measured anew if not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the plan; JOB.plan.json if not given.")] = None,
    layout: options.Layout = None,
    members: options.Members = None,
    deadline: options.Deadline = None,
    budget: options.Budget = None,
    goal: options.GoalOption = None,
    schedule: options.Schedule = None,
    transport: options.Transport = None,
    links: options.LinksFile = None,
    store: options.Store = None,
    on: options.On = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the best plan for a job under the limits.

    Example: zooid plan examples/digits.py --on local:aws.lambda.1769 --deadline 10m --budget 0.05
    """
    console = Console()
    limits = options.limits_from(layout, members, deadline, budget, schedule, transport)
    chosen_goal = options.goal_from(goal)
    measured = options.read_file(profile, Profile) if profile else None
    target = out or Path(f"{job.stem}.plan.json")
    with view_for(Console(stderr=True) if as_json else console, as_json=False) as view:
        if measured is None:
            measured = coordinator.profile(job, store=store, on=on or "local", on_event=view.show)
        found = coordinator.plan(
            job,
            measured=measured,
            links=options.read_file(links, Links) if links else None,
            limits=limits,
            goal=chosen_goal,
            on=on or "local",
            on_event=view.show,
        )
    options.write_file(target, found)
    if as_json:
        console.file.write(encode_record(found).decode())
        return
    console.print(plan_table(found, measured))
    console.print(f"plan: {target}", highlight=False, soft_wrap=True)

"""`zooid rehearse`: run steps of a plan on real links while compute sleeps."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.cli.timeline_command import reject_same_file, show_timeline
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.units import format_duration
from zooid.report import say, view_for


def rehearse(
    plan: options.PlanFile,
    profile: Annotated[Path, typer.Option(help="Profile from which the plan was made.")],
    steps: Annotated[int, typer.Option(min=1, help="Number of steps to run, after one that warms up.")] = 5,
    store: options.Store = None,
    out: options.PageFile = Path("rehearsal.html"),
    trace: options.TraceFile = None,
) -> None:
    """Run steps of a plan with its real members, messages and links, while compute sleeps its profiled time.

    Example: zooid rehearse digits.plan.json --profile digits.profile.json
    """
    console = Console()
    reject_same_file(out, trace)
    rehearsed_plan, measured = options.read_file(plan, Plan), options.read_file(profile, Profile)
    with view_for(console, as_json=False) as view:
        rehearsed = coordinator.rehearse(rehearsed_plan, measured, steps=steps, store=store, on_event=view.show)
    title = f"{rehearsed_plan.layout}, {rehearsed_plan.schedule}, rehearsed"
    show_timeline(console, {"rehearsed": rehearsed.timeline}, title, str(plan), out, trace)
    say(
        console,
        f"step: {format_duration(rehearsed.step_s)} rehearsed, as if every member had cores of its own; "
        f"{format_duration(rehearsed_plan.prediction.step_s)} predicted on the plan's offers",
    )

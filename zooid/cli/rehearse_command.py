"""`zooid rehearse`: try a plan on real links while compute sleeps."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.cli.timeline_command import refuse_same_file, show_timeline
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.units import format_duration
from zooid.report import say, view_for


def rehearse(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan to try, as `zooid plan` writes it.")],
    profile: Annotated[Path, typer.Option(help="The profile that the plan was made from.")],
    steps: Annotated[int, typer.Option(min=1, help="How many steps to run, after one that warms up.")] = 5,
    store: options.Store = None,
    out: Annotated[Path, typer.Option(help="Where to write the page to look at.")] = Path("rehearsal.html"),
    trace: Annotated[
        Path | None, typer.Option(help="Where to write a trace for Perfetto or chrome://tracing; none if not given.")
    ] = None,
) -> None:
    """Run steps of a plan with its members, groups, messages and links, while compute sleeps its profiled time.

    Example: zooid rehearse digits.plan.json --profile digits.profile.json
    """
    console = Console()
    refuse_same_file(out, trace)
    wanted, measured = options.read_file(plan, Plan), options.read_file(profile, Profile)
    with view_for(console, as_json=False) as view:
        rehearsed = coordinator.rehearse(wanted, measured, steps=steps, store=store, on_event=view.show)
    title = f"{wanted.layout}, {wanted.schedule}, rehearsed"
    show_timeline(console, {"rehearsed": rehearsed.timeline}, title, str(plan), out, trace)
    say(
        console,
        f"step: {format_duration(rehearsed.step_s)} rehearsed, as if every member had cores of its own; "
        f"{format_duration(wanted.prediction.step_s)} predicted for where the plan stands",
    )

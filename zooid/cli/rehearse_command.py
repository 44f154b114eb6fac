"""`zooid rehearse`: run a plan on real links while compute takes its profiled time."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.cli.resume_command import suggesting_resume
from zooid.cli.timeline_command import reject_same_file, show_timeline
from zooid.core.plans.plan import Plan
from zooid.core.units import format_duration
from zooid.report import replay_table, say, view_for


def rehearse(
    plan: options.PlanFile,
    profile: Annotated[list[Path], typer.Option(help="Profile from which the plan was made; repeatable.")],
    job: Annotated[
        Path | None,
        typer.Option(metavar="JOB", help="Job file. Members then train its model in the time that they would sleep."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of steps to run, after one that warms up.", show_default="5, or all those of the job"
        ),
    ] = None,
    slower: Annotated[float, typer.Option(help="Factor by which compute takes longer than profiled.")] = 1.0,
    store: options.Store = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep_checkpoints: options.KeepCheckpoints = None,
    trace: Annotated[
        Path | None, typer.Option(help="Spot trace to replay: members are killed when fewer instances are up.")
    ] = None,
    trace_speed: Annotated[float, typer.Option(help="Seconds of the trace that pass in one second.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed that decides which members the trace kills.")] = 0,
    out: options.PageFile = Path("rehearsal.html"),
    perfetto: options.PerfettoFile = None,
) -> None:
    """Run a plan with its real members, messages and links, while compute takes its profiled time.

    Without --job, members sleep and exchange zeros. With --job, they train the job in a run like any other.

    Example: zooid rehearse digits.plan.json --profile digits.profile.json
    """
    console = Console()
    reject_same_file(out, perfetto)
    rehearsed_plan = options.read_file(plan, Plan)
    measured = options.profiles_from(profile, Path(rehearsed_plan.job))
    assert measured is not None, "the option is required"
    url = store
    if job is not None and store is None:
        url = Path("runs", f"{job.stem}-rehearsal-{time.strftime('%Y%m%d-%H%M%S')}").absolute().as_uri()
    suggesting = nullcontext() if url is None or job is None else suggesting_resume(url)
    with suggesting, view_for(console, as_json=False) as view:
        rehearsed = coordinator.rehearse(
            rehearsed_plan,
            measured,
            job=job,
            steps=steps,
            store=url,
            slower=slower,
            checkpoints=options.checkpoints_from(checkpoint_every, keep_checkpoints),
            trace=trace,
            trace_speed=trace_speed,
            seed=seed,
            on_event=view.show,
        )
    title = f"{rehearsed_plan.layout}, {rehearsed_plan.schedule}, rehearsed"
    show_timeline(console, {"rehearsed": rehearsed.timeline}, title, str(plan), out, perfetto)
    if rehearsed.report is not None:
        console.print(replay_table(rehearsed.report))
    if rehearsed.run is not None:
        say(console, f"checkpoint: {rehearsed.run.checkpoint}")
    predicted = f"; {format_duration(rehearsed_plan.prediction.step_s)} predicted on the plan's offers"
    say(
        console,
        f"step: {format_duration(rehearsed.step_s)} rehearsed, as if every member had cores of its own"
        + (predicted if slower == 1.0 else f" that are {slower:g} times as slow"),
    )

"""`zooid predict`: time and cost of a plan, its bottlenecks, and the effect of changes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.cli.timeline_command import reject_same_file, say_files, write_trace
from zooid.core.errors import InputError
from zooid.core.plans.all_reduce_samples import AllReduceSamples
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.resources.link import Links
from zooid.core.runs.checkpoint import DEFAULT_RULE
from zooid.report import (
    correction_tables,
    facts_in_words,
    prediction_page,
    prediction_tables,
    say,
    timeline_table,
    write_page,
)


def predict(
    plan: options.PlanFile,
    profile: Annotated[
        list[Path] | None,
        typer.Option(help="Profile from which the plan was made; repeatable.", show_default="those beside the plan"),
    ] = None,
    runs: options.Runs = None,
    links: options.LinksFile = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="Measured all-reduces, as written by `zooid probe --only all-reduce`, for gloo or nccl."),
    ] = None,
    store_at: options.StoreAt = None,
    interruptions: options.Interruptions = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep_checkpoints: options.KeepCheckpoints = None,
    compare: Annotated[
        str | None, typer.Option(metavar="RUN", help="Folder of a run of this plan, to compare its measured times.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to which the picture is written, as an HTML page.", show_default="JOB.prediction.html"),
    ] = None,
    perfetto: options.PerfettoFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict time and cost of a plan, the parts of a step, and the effect of one more replica or a larger batch.

    Example: zooid predict digits.plan.json
    """
    console = Console()
    given_plan = options.read_file(plan, Plan)
    page = out or Path(f"{given_plan.job}.prediction.html")
    reject_same_file(page, perfetto)
    measured = options.profiles_from(profile or _profile_files(plan, given_plan), Path(given_plan.job))
    assert measured is not None, "no prediction without a profile"
    forecast = coordinator.predict(
        given_plan,
        measured,
        runs=runs or (),
        links=options.read_optional(links, Links),
        samples=options.read_optional(samples, AllReduceSamples),
        store_at=store_at,
        checkpoints=options.checkpoints_from(checkpoint_every, keep_checkpoints) or DEFAULT_RULE,
        interruptions=options.interruptions_from(interruptions),
        compare=compare,
    )
    write_page(page, prediction_page(forecast, origin=str(plan)))
    timelines = {"predicted": forecast.timeline}
    if forecast.measured is not None and forecast.measured.timeline is not None:
        timelines["measured"] = forecast.measured.timeline
    write_trace(perfetto, timelines)
    if as_json:
        console.file.write(encode_record(forecast).decode())
        return
    for table in (*correction_tables(forecast.corrections), *prediction_tables(forecast)):
        console.print(table)
    for name, timeline in timelines.items():
        console.print(timeline_table(timeline, f"{given_plan.layout}, {given_plan.schedule}, {name}"))
    for line in facts_in_words(forecast):
        say(console, line)
    say_files(console, page, perfetto)


def _profile_files(plan_file: Path, plan: Plan) -> list[Path]:
    """Find the profiles of the job and of the plan's offers beside the plan, under the names of `zooid profile`."""
    names = dict.fromkeys(offer.name.rpartition(":")[2] for offer in plan.member_offers)
    stems = [plan.job, *(f"{plan.job}.{name}" for name in names)]
    files = [file for stem in stems if (file := plan_file.parent / f"{stem}.profile.json").is_file()]
    if not files:
        raise InputError(
            f"{plan_file.parent / plan.job}.profile.json, from which the plan was made, does not exist; name the "
            "profile with --profile, or measure the job with `zooid profile`"
        )
    return files

"""`zooid predict`: what a plan takes and costs, what holds it back, and what changes would bring."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.cli.timeline_command import refuse_same_file
from zooid.core.errors import InputError
from zooid.core.files import replaced_whole
from zooid.core.plans.all_reduce_samples import AllReduceSamples
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.resources.link import Links
from zooid.core.runs.checkpoint import DEFAULT_RULE
from zooid.report import (
    chrome_trace,
    facts_in_words,
    prediction_page,
    prediction_tables,
    say,
    timeline_table,
    write_page,
)


def predict(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, as `zooid plan` writes it.")],
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            help="The profile that it was made from, or several; those of the job beside the plan if not given."
        ),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(help="Links, as `zooid probe` writes them; needed where members are connected."),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="All-reduces, as `zooid probe --only all-reduce` writes them; for plans over gloo or nccl."),
    ] = None,
    store_at: options.StoreAt = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep_checkpoints: options.KeepCheckpoints = None,
    compare: Annotated[
        str | None, typer.Option(metavar="RUN", help="Folder of a run of this plan, to put what it took beside.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page to look at; JOB.prediction.html if not given.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Where to write a trace for Perfetto or chrome://tracing; none if not given.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict time and money of a plan, where a step's time goes, and what one more replica or a larger batch brings.

    Example: zooid predict digits.plan.json
    """
    console = Console()
    wanted = options.read_file(plan, Plan)
    page = out or Path(f"{wanted.job}.prediction.html")
    refuse_same_file(page, trace)
    measured = options.profiles_from(profile or _profile_files(plan, wanted), Path(wanted.job))
    assert measured is not None, "no prediction without a profile"
    found = coordinator.predict(
        wanted,
        measured,
        links=options.read_file(links, Links) if links else None,
        samples=options.read_file(samples, AllReduceSamples) if samples else None,
        store_at=store_at,
        checkpoints=options.checkpoints_from(checkpoint_every, keep_checkpoints) or DEFAULT_RULE,
        compare=compare,
    )
    write_page(page, prediction_page(found, origin=str(plan)))
    timelines = {"predicted": found.timeline}
    if found.measured is not None and found.measured.timeline is not None:
        timelines["measured"] = found.measured.timeline
    if trace is not None:
        with replaced_whole(trace) as staged:
            staged.write_bytes(chrome_trace(timelines))
    if as_json:
        console.file.write(encode_record(found).decode())
        return
    for table in prediction_tables(found):
        console.print(table)
    for name, timeline in timelines.items():
        console.print(timeline_table(timeline, f"{wanted.layout}, {wanted.schedule}, {name}"))
    for line in facts_in_words(found):
        say(console, line)
    for what, file in (("picture", page), ("trace", trace)):
        if file is not None:
            say(console, f"{what}: {file}")


def _profile_files(plan_file: Path, plan: Plan) -> list[Path]:
    """The job's profile beside the plan, and those of the plan's offers, under the names that `zooid profile` gives."""
    names = dict.fromkeys(offer.name.rpartition(":")[2] for offer in plan.member_offers)
    own = [plan_file.parent / f"{plan.job}.{name}.profile.json" for name in names]
    files = [file for file in (plan_file.parent / f"{plan.job}.profile.json", *own) if file.is_file()]
    if not files:
        raise InputError(
            f"there is no {plan_file.parent / plan.job}.profile.json, where the profile that the plan was made from is "
            "looked for; name its file with --profile, or measure the job with `zooid profile`"
        )
    return files

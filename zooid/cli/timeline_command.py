"""`zooid timeline`: when every member of a run did what, as a table, a page and a trace."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.core.errors import InputError
from zooid.core.files import replaced_whole
from zooid.core.runs.timeline import Timeline
from zooid.report import chrome_trace, say, timeline_page, timeline_table, write_page


def timeline(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of the run: s3://bucket/run-7, file:///…")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Number of the step; the latest that was recorded, if not given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the page to look at.")] = Path("timeline.html"),
    trace: Annotated[
        Path | None, typer.Option(help="Where to write a trace for Perfetto or chrome://tracing; none if not given.")
    ] = None,
) -> None:
    """Show when every member of a run did what in a step, and how much of its transfers computing has hidden.

    Example: zooid timeline s3://bucket/run-7
    """
    refuse_same_file(out, trace)
    recorded = coordinator.timeline(run, step=step)
    show_timeline(Console(), {"measured": recorded.timeline}, f"step {recorded.step}", recorded.run, out, trace)


def refuse_same_file(out: Path, trace: Path | None) -> None:
    """Before anything is run."""
    if trace is not None and trace.resolve() == out.resolve():
        raise InputError(f"page and trace would both be {out}; name two files with --out and --trace")


def show_timeline(
    console: Console, timelines: dict[str, Timeline], title: str, origin: str, out: Path, trace: Path | None
) -> None:
    """Write the page and the trace, and print a table for each timeline."""
    write_page(out, timeline_page(timelines, title=title, origin=origin))
    if trace is not None:
        with replaced_whole(trace) as staged:
            staged.write_bytes(chrome_trace(timelines))
    for timeline in timelines.values():
        console.print(timeline_table(timeline, title))
    for name, file in (("picture", out), ("trace", trace)):
        if file is not None:
            say(console, f"{name}: {file}")

"""`zooid timeline`: the actions of every member in a step of a run, as a table, a page and a trace."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.core.errors import InputError
from zooid.core.files import replaced_whole
from zooid.core.runs.timeline import Timeline
from zooid.report import chrome_trace, say, timeline_page, timeline_table, write_page


def timeline(
    url: options.RunFolder,
    step: Annotated[
        int | None, typer.Option(min=0, help="Number of the step.", show_default="the latest recorded step")
    ] = None,
    out: options.PageFile = Path("timeline.html"),
    perfetto: options.PerfettoFile = None,
) -> None:
    """Show the actions of every member in a step, and how much of its transfers was hidden behind compute.

    Example: zooid timeline s3://bucket/run-7
    """
    reject_same_file(out, perfetto)
    recorded = coordinator.timeline(url, step=step)
    show_timeline(Console(), {"measured": recorded.timeline}, f"step {recorded.step}", recorded.run, out, perfetto)


def reject_same_file(out: Path, trace: Path | None) -> None:
    """Reject one file for both the page and the trace."""
    if trace is not None and trace.resolve() == out.resolve():
        raise InputError(f"--out and --perfetto both name {out}; name two files")


def show_timeline(
    console: Console, timelines: dict[str, Timeline], title: str, origin: str, out: Path, trace: Path | None
) -> None:
    """Write the page and the trace, and print a table for each timeline."""
    write_page(out, timeline_page(timelines, title=title, origin=origin))
    write_trace(trace, timelines)
    for timeline in timelines.values():
        console.print(timeline_table(timeline, title))
    say_files(console, out, trace)


def write_trace(trace: Path | None, timelines: dict[str, Timeline]) -> None:
    """Write the trace, if a file is given."""
    if trace is not None:
        with replaced_whole(trace) as staged:
            staged.write_bytes(chrome_trace(timelines))


def say_files(console: Console, page: Path, trace: Path | None) -> None:
    """Print the names of the files that were written."""
    say(console, f"picture: {page}")
    if trace is not None:
        say(console, f"trace: {trace}")

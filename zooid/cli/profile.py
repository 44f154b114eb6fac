"""`zooid profile`: measure a job's layers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.core.records import encode_record
from zooid.report import profile_table, view_for


def profile(
    job: options.JobFile,
    out: Annotated[Path | None, typer.Option(help="Where to write the profile; JOB.profile.json if not given.")] = None,
    store: options.Store = None,
    on: options.On = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a job and measure its layers, and the way to the store.

    Example: zooid profile examples/digits.py
    """
    console = Console()
    target = out or Path(f"{job.stem}.profile.json")
    with view_for(Console(stderr=True) if as_json else console, as_json=False) as view:
        measured = coordinator.profile(job, store=store, on=on or "local", on_event=view.show)
    options.write_file(target, measured)
    if as_json:
        console.file.write(encode_record(measured).decode())
        return
    console.print(profile_table(measured))
    console.print(f"profile: {target}", highlight=False, soft_wrap=True)

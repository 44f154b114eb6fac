"""`zooid probe`: measure links."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.core.records import encode_record
from zooid.report import links_table, view_for


def probe(
    members: Annotated[int, typer.Option(help="How many members measure together.")] = 2,
    store: options.Store = None,
    on: options.On = None,
    site: Annotated[
        list[str] | None, typer.Option(help="Where each member is, in order; give it once for every member.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="store or peers: leave out the links to the others.")] = None,
    seconds: Annotated[float, typer.Option(help="How long one measurement of bandwidth counts bytes.")] = 1.0,
    out: Annotated[Path, typer.Option(help="Where to write the links.")] = Path("links.json"),
    as_json: options.AsJson = False,
) -> None:
    """Measure bandwidth and round trip between members, and to the store.

    Example: zooid probe --members 2 --store s3://bucket/probes
    """
    console = Console()
    with view_for(Console(stderr=True) if as_json else console, as_json=False) as view:
        measured = coordinator.probe(
            members=members,
            store=store,
            on=on or "local",
            sites=site,
            ends=options.ends_from(only),
            seconds=seconds,
            on_event=view.show,
        )
    options.write_file(out, measured)
    if as_json:
        console.file.write(encode_record(measured).decode())
        return
    console.print(links_table(measured))
    console.print(f"links: {out}", highlight=False, soft_wrap=True)

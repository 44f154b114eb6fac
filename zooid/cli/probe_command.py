"""`zooid probe`: measure links, or all-reduces of a library."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table

from zooid import coordinator
from zooid.cli import options
from zooid.coordinator.measurements.all_reduce_sweep import AT_ONCE, NUM_REPEATS, SIZES
from zooid.core.errors import InputError
from zooid.core.plans.all_reduce_samples import AllReduceSamples, Library
from zooid.core.records import FileRecord, encode_record
from zooid.core.units import parse_bytes
from zooid.report import all_reduce_table, links_table, say, view_for

_SECONDS = 1.0


def probe(
    members: Annotated[int, typer.Option(help="How many members measure together.")] = 2,
    store: options.Store = None,
    on: options.On = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="Where each member is, in order, once for every member; for all-reduce once for all."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="store or peers: leave out the links to the others; all-reduce: a library's, and no links."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="How long one measurement of bandwidth counts bytes; 1 if not given.")
    ] = None,
    library: Annotated[str | None, typer.Option(help="For all-reduce: gloo (if not given) or nccl.")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="For all-reduce: bytes of one, as 16MiB; give it once for each size.")
    ] = None,
    at_once: Annotated[
        list[int] | None, typer.Option(help="For all-reduce: how many are under way; give it once for each number.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="For all-reduce: how often each is timed; 5 if not given.")
    ] = None,
    join: Annotated[
        list[Path] | None, typer.Option(help="For all-reduce: an earlier file, whose samples go into the new one, too.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write it; links.json or all-reduces.json if not given.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure bandwidth and round trip between members, and to the store; or the all-reduces of Gloo or NCCL.

    Example: zooid probe --members 2 --store s3://bucket/probes
    """
    console = Console()
    sweep = {"--library": library, "--size": size, "--at-once": at_once, "--repeats": repeats, "--join": join}
    if only != options.ALL_REDUCE:
        _refuse(sweep, f"is for --only {options.ALL_REDUCE}")
        ends = options.ends_from(only)
        with view_for(Console(stderr=True) if as_json else console, as_json=False) as view:
            links = coordinator.probe(
                members=members,
                store=store,
                on=on or "local",
                sites=site,
                ends=ends,
                seconds=_SECONDS if seconds is None else seconds,
                on_event=view.show,
            )
        _finish(console, links, links_table(links), out or Path("links.json"), "links", as_json)
        return
    _refuse({"--seconds": seconds}, "is for links")
    if site and len(site) > 1:
        raise InputError(f"{len(site)} sites are given; all-reduces are timed at one site: give it once, or not at all")
    earlier = [options.read_file(path, AllReduceSamples) for path in join or ()]
    with view_for(Console(stderr=True) if as_json else console, as_json=False) as view:
        samples = coordinator.probe_all_reduce(
            members=members,
            store=store,
            on=on or "local",
            site=site[0] if site else None,
            library=_library(library),
            sizes=[parse_bytes(text) for text in size] if size else SIZES,
            at_once=at_once or AT_ONCE,
            repeats=NUM_REPEATS if repeats is None else repeats,
            on_event=view.show,
        )
    table = all_reduce_table(samples)
    _finish(console, samples.joined(earlier), table, out or Path("all-reduces.json"), "samples", as_json)


def _refuse(given: Mapping[str, object], reason: str) -> None:
    for name, value in given.items():
        if value is not None and value != []:
            raise InputError(f"{name} {reason}; leave it out")


def _library(text: str | None) -> Library:
    for library in get_args(Library):
        if text in (None, library):
            chosen: Library = library
            return chosen
    raise InputError(f"--library is {text!r}; give {' or '.join(get_args(Library))}")


def _finish(console: Console, measured: FileRecord, table: Table, out: Path, what: str, as_json: bool) -> None:
    options.write_file(out, measured)
    if as_json:
        console.file.write(encode_record(measured).decode())
        return
    console.print(table)
    say(console, f"{what}: {out}")

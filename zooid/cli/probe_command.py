"""`zooid probe`: measure links, or the all-reduces of a library."""

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
    members: Annotated[
        int | None, typer.Option(help="Number of members that measure together.", show_default="as many as are needed")
    ] = None,
    store: options.Store = None,
    on: options.OnSeveral = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="Site of each member, once for every member in order; with all-reduce, once for all."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="store or peers: measure only these links. all-reduce: measure a library instead of links."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Duration of one bandwidth measurement.", show_default=f"{_SECONDS:g}")
    ] = None,
    library: Annotated[str | None, typer.Option(help="all-reduce: gloo or nccl.", show_default="gloo")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="all-reduce: size of one all-reduce, such as 16MiB; repeatable.")
    ] = None,
    at_once: Annotated[
        list[int] | None, typer.Option(help="all-reduce: number of all-reduces in flight at once; repeatable.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="all-reduce: number of measurements of each.", show_default=str(NUM_REPEATS))
    ] = None,
    join: Annotated[
        list[Path] | None, typer.Option(help="all-reduce: earlier file whose samples are added; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="links.json or all-reduces.json")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure bandwidth and round trip between members and to the store, or the all-reduces of Gloo or NCCL.

    Example: zooid probe --members 2 --store s3://bucket/probes
    """
    console = Console()
    sweep = {"--library": library, "--size": size, "--at-once": at_once, "--repeats": repeats, "--join": join}
    if only != options.ALL_REDUCE:
        _reject(sweep, f"is for --only {options.ALL_REDUCE}")
        ends = options.ends_from(only)
        with view_for(Console(stderr=True) if as_json else console, as_json=False) as view:
            links = coordinator.probe(
                members=members,
                store=store,
                on=on or ["local"],
                sites=site,
                ends=ends,
                seconds=_SECONDS if seconds is None else seconds,
                on_event=view.show,
            )
        _finish(console, links, links_table(links), out or Path("links.json"), "links", as_json)
        return
    _reject({"--seconds": seconds}, "is for links")
    if site and len(site) > 1:
        raise InputError(
            f"--site is given {len(site)} times; all-reduces are measured at one site: give it at most once"
        )
    if on and len(on) > 1:
        raise InputError(f"--on is given {len(on)} times; all-reduces are measured on one offer: give it at most once")
    earlier = [options.read_file(path, AllReduceSamples) for path in join or ()]
    with view_for(Console(stderr=True) if as_json else console, as_json=False) as view:
        samples = coordinator.probe_all_reduce(
            members=2 if members is None else members,
            store=store,
            on=on[0] if on else "local",
            site=site[0] if site else None,
            library=options.one_of("--library", library, get_args(Library)) or "gloo",
            sizes=[parse_bytes(text) for text in size] if size else SIZES,
            at_once=at_once or AT_ONCE,
            repeats=NUM_REPEATS if repeats is None else repeats,
            on_event=view.show,
        )
    table = all_reduce_table(samples)
    _finish(console, samples.joined(earlier), table, out or Path("all-reduces.json"), "samples", as_json)


def _reject(given: Mapping[str, object], reason: str) -> None:
    for name, value in given.items():
        if value is not None and value != []:
            raise InputError(f"{name} {reason}; leave it out")


def _finish(console: Console, measured: FileRecord, table: Table, out: Path, what: str, as_json: bool) -> None:
    options.write_file(out, measured)
    if as_json:
        console.file.write(encode_record(measured).decode())
        return
    console.print(table)
    say(console, f"{what}: {out}")

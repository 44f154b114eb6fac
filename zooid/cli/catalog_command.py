"""`zooid catalog`: what can be rented, what it costs, and how old the prices are."""

from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer
from rich.console import Console

from zooid.catalog import offers
from zooid.catalog.importers import read_prices
from zooid.catalog.offer_choice import ORDERS, OfferChoice, chosen_offers
from zooid.catalog.price_cache import imported_offers, keep_prices, kept_prices
from zooid.cli import options
from zooid.core.errors import InputError
from zooid.core.resources.offer import Market, OfferKind
from zooid.core.units import parse_bytes, parse_usd
from zooid.report import age_warning, catalog_lines, import_in_words, price_lists_table, say

_SHOWN = 40


def catalog(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Names of offers, or their beginnings, such as aws.us-east-1; repeatable."),
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Only offers with this GPU, such as A100; repeatable.")] = None,
    min_gpus: Annotated[int, typer.Option(help="Only offers with so many GPUs or more.")] = 0,
    min_memory: Annotated[str | None, typer.Option(help="Only offers with so much memory or more: 64GB.")] = None,
    market: Annotated[str | None, typer.Option(help=f"Only offers of a market: {', '.join(get_args(Market))}.")] = None,
    kind: Annotated[str | None, typer.Option(help=f"Only offers of a kind: {', '.join(get_args(OfferKind))}.")] = None,
    region: Annotated[str | None, typer.Option(help="Only offers of a region, as its provider names it.")] = None,
    max_usd: Annotated[str | None, typer.Option(help="Only offers that cost at most so much an hour.")] = None,
    sort: Annotated[str, typer.Option(help=f"Order of the offers: {', '.join(ORDERS)}.")] = "price",
    limit: Annotated[int, typer.Option(help="How many offers are shown.")] = _SHOWN,
    import_from: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="PATH",
            help="Import prices first: a folder of SkyPilot's files, such as ~/.sky/catalogs/v8, or a price list "
            "that AWS, Azure or Google publishes; repeatable.",
        ),
    ] = None,
    date: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM-DD",
            help="Date of the imported prices.",
            show_default="that in the file, or when it was last changed",
        ),
    ] = None,
    lists: Annotated[bool, typer.Option("--lists", help="Show the imported price lists and their age.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """List what can be rented, compare prices, and import those of today.

    Example: zooid catalog --gpu T4 --market spot
    """
    console, notes = Console(), Console(stderr=True)
    if limit < 1:
        raise InputError(f"--limit is {limit}; give 1 or more")
    order = options.one_of("--sort", sort, ORDERS)
    choice = OfferChoice(
        names=tuple(names or ()),
        gpus=tuple(gpu or ()),
        min_gpus=min_gpus,
        min_memory_bytes=0 if min_memory is None else parse_bytes(min_memory),
        market=None if market is None else options.one_of("--market", market, get_args(Market)),
        kind=None if kind is None else options.one_of("--kind", kind, get_args(OfferKind)),
        region=region or "",
        **({} if max_usd is None else {"max_usd_per_hour": parse_usd(max_usd)}),
    )
    day = options.date_from(date)
    for imported in [imported for path in import_from or () for imported in read_prices(path, day)]:
        keep_prices(imported.prices)
        for line in import_in_words(imported):
            say(notes, line)
    if lists:
        console.print(price_lists_table(kept_prices()))
        return
    fitting = chosen_offers((*offers(), *imported_offers()), choice, order)
    if as_json:
        console.file.write(msgspec.json.encode(fitting).decode() + "\n")
        return
    for line in catalog_lines(fitting[:limit], len(fitting)):
        say(console, line)
    if warning := age_warning(fitting):
        say(notes, warning, "yellow")

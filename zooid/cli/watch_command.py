"""`zooid watch`: show a run from any machine, from its folder alone."""

from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.report import say, say_snapshot, snapshot_of, snapshot_view


def watch(
    url: options.RunFolder,
    once: Annotated[bool, typer.Option("--once", help="Show the run as it is now, and end.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show a run until nobody trains it: members, losses, cost, time left, and what changed. Ctrl-C leaves it alone.

    Example: zooid watch s3://bucket/run-7
    """
    console = Console()
    if once and not as_json:
        say_snapshot(console, snapshot_of(coordinator.observe(url)))
        return
    try:
        with snapshot_view(console, as_json=as_json) as view:
            for observed in [coordinator.observe(url)] if once else coordinator.watch(url):
                view.show(snapshot_of(observed))
    except KeyboardInterrupt:
        say(Console(stderr=True), "the run is left alone")
        raise

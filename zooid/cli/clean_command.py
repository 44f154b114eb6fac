"""`zooid clean`: remove what a crashed run has left."""

from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.report import say


def clean(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder of the run: s3://bucket/run-7, file:///…")],
    force: Annotated[bool, typer.Option("--force", help="Even if a run seems to be at work there.")] = False,
) -> None:
    """Remove the messages that members of a crashed run left in its store; checkpoints and events stay.

    Example: zooid clean s3://bucket/run-7
    """
    num_removed = coordinator.clean(store, force=force)
    say(Console(), f"removed {num_removed} objects from {store}")

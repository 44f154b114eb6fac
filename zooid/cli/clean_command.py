"""`zooid clean`: remove temporary objects of a crashed run."""

from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.report import say


def clean(
    url: options.RunFolder,
    force: Annotated[bool, typer.Option("--force", help="Clean even if a run seems to be active there.")] = False,
) -> None:
    """Remove the messages that members of a crashed run left in its folder. Checkpoints and events stay.

    Example: zooid clean s3://bucket/run-7
    """
    num_removed = coordinator.clean(url, force=force)
    say(Console(), f"removed {num_removed} objects from {url}")

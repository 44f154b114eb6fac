"""`zooid scale`: let a run go on in another layout."""

from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.report import say


def scale(
    url: options.RunFolder,
    layout: Annotated[str, typer.Argument(help="Replicas x stages, such as 4x1.")],
) -> None:
    """Ask a run that trains to go on in another layout. It changes between two steps, and no step is lost.

    Example: zooid scale s3://bucket/run-7 4x1
    """
    num_replicas, num_stages = options.parse_layout("LAYOUT", layout)
    coordinator.scale(url, num_replicas, num_stages)
    say(Console(), f"{url} was asked to go on as {num_replicas}x{num_stages}")

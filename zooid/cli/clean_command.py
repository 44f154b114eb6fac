"""`zooid clean`: end what a crashed run has left, and remove its temporary objects."""

from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.report import say


def clean(
    url: options.RunFolder,
    force: Annotated[
        bool, typer.Option("--force", help="Clean even if members are active there, and end them.")
    ] = False,
    trust_handles: Annotated[
        bool,
        typer.Option(
            "--trust-handles",
            help="Look for members wherever the folder says, not only on machines that you have named. Give it only if "
            "nobody else may write to the folder.",
        ),
    ] = False,
) -> None:
    """End members that a crashed run has left, and remove their messages. Checkpoints and events stay.

    Example: zooid clean s3://bucket/run-7
    """
    num_removed = coordinator.clean(url, force=force, trust_handles=trust_handles)
    say(Console(), f"removed {num_removed} objects from {url}")

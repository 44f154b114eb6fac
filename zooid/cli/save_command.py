"""`zooid save`: export a run's weights for transformers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import zooid
from zooid.cli import options
from zooid.report import say


def save(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Folder of a run or of a checkpoint: s3://bucket/run-7, file:///…")
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to which the model is written.")],
    job: options.MovedJobFile = None,
) -> None:
    """Write the weights of a run's last checkpoint to a folder that transformers' `from_pretrained` reads.

    Example: zooid save s3://bucket/run-7 fine-tuned
    """
    zooid.save_pretrained(url, folder, job_file=job)
    say(Console(), f"saved: {folder}")

"""`zooid save`: write a run's weights for transformers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import zooid
from zooid.report import say


def save(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Folder of a run, or of one checkpoint: s3://bucket/run-7, file:///…")
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the model.")],
    job: Annotated[
        Path | None, typer.Option(help="The job file, if it is not where it was when the run began.")
    ] = None,
) -> None:
    """Write the weights of a run's last checkpoint as a folder that transformers' `from_pretrained` reads.

    Example: zooid save s3://bucket/run-7 fine-tuned
    """
    zooid.save_pretrained(url, folder, job_file=job)
    say(Console(), f"saved: {folder}")

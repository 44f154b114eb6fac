"""`zooid train` as a command that a test interrupts or kills."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.jobs import write_job
from tests.processes import heed_signals


@contextmanager
def training_command(folder: Path, url: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Train a job of many steps over TCP, in a process group of its own, until the block is left."""
    (folder / "job").mkdir()
    job_file = write_job(folder / "job" / "job.py", fields={"epochs": "50"})
    words = [sys.executable, "-m", "zooid.cli.main", "train", str(job_file), "--transport", "tcp", "--store", url]
    with subprocess.Popen(
        [*words, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_signals,
    ) as process:
        try:
            yield process
        finally:
            process.kill()

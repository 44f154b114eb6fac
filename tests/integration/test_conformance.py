"""A sample of PyTorch's own suite of a backend: what Gloo passes, zooid passes. `make conformance` runs all of it."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_zooid_passes_what_gloo_passes() -> None:
    """Over both transports; each is compared with the same run of Gloo."""
    command = [sys.executable, "-m", "tests.conformance", "--sample", "--transport", "file,tcp"]
    options = ["--limit-s", "30", "--details"]
    ended = subprocess.run(
        command + options, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=280, check=False
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr

"""A sample of PyTorch's own suite of a backend, which Gloo passes. `make conformance` runs all of it on both."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("num_ranks", "transport"), [("2", "file"), ("3", "tcp")])
def test_zooid_passes_what_gloo_passes(num_ranks: str, transport: str) -> None:
    command = [sys.executable, "-m", "tests.conformance", "--sample", "--ranks", num_ranks, "--transport", transport]
    options = ["--limit-s", "30", "--details"]
    ended = subprocess.run(
        command + options, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=280, check=False
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr

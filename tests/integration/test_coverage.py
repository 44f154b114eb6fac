"""The benchmark of architectures, on three of them."""

import json
import subprocess
import sys

import pytest

from benchmarks import coverage


@pytest.mark.timeout(400)
def test_well_known_architectures_are_cut_exactly() -> None:
    names = ("bert", "gpt2", "resnet")
    command = [sys.executable, "-m", "benchmarks.coverage", "--only", *names]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    *rows, totals = [json.loads(line) for line in finished.stdout.splitlines()]
    assert {row["architecture"]: row["outcome"] for row in rows} == dict.fromkeys(names, "exact")
    assert all(row["layers"] > 3 and row["difference"] <= 1e-9 for row in rows)
    assert (totals["architectures"], totals["exact_share"], totals["left_out"]) == (3, 1.0, 0)


def test_an_unknown_model_type_is_refused() -> None:
    with pytest.raises(SystemExit, match="no model type bertha"):
        coverage.main(["--only", "bertha"])

"""The benchmark of architectures, on three of them."""

import json
from pathlib import Path

import pytest

from benchmarks import coverage
from tests.integration.interpreters import run_python

BENCHMARK = """
import warnings
from benchmarks import coverage

warnings.resetwarnings()
coverage.main(["--only", *{names}])
"""


@pytest.mark.timeout(400)
def test_well_known_architectures_are_cut_exactly(tmp_path: Path) -> None:
    names = ("bert", "gpt2", "resnet")
    finished = run_python(BENCHMARK.format(names=names), cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    *rows, totals = [json.loads(line) for line in finished.stdout.splitlines()]
    assert {row["architecture"]: row["outcome"] for row in rows} == dict.fromkeys(names, "exact")
    assert all(row["layers"] > 3 and row["difference"] <= 1e-9 for row in rows)
    assert (totals["architectures"], totals["exact_share"], totals["left_out"]) == (3, 1.0, 0)


def test_an_unknown_model_type_is_refused() -> None:
    with pytest.raises(SystemExit, match="no model type bertha"):
        coverage.main(["--only", "bertha"])

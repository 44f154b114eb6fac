"""Examples in docstrings are promises: every one of them runs."""

import doctest
import importlib
from pathlib import Path

import pytest

import zooid

ROOT = Path(zooid.__file__).parent


def modules_with_examples() -> list[str]:
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_examples_are_found() -> None:
    assert "zooid.core.units" in modules_with_examples()


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_hold(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0

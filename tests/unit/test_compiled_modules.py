"""Compiled files that travel are those that Python would use here, and no others."""

import importlib.util
import os
import subprocess
import sys
from compileall import compile_file
from pathlib import Path

import pytest

from zooid.coordinator.job_files.compiled_modules import compiled_modules


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("VALUE = 1\n")
    (tmp_path / "pkg" / "b.py").write_text("VALUE = 2\n")
    return tmp_path


def cached(name: str) -> str:
    return importlib.util.cache_from_source(name)


def test_what_was_not_compiled_stays_away(root: Path) -> None:
    compile_file(root / "pkg" / "a.py", quiet=2)
    assert compiled_modules(root, ["pkg/a.py", "pkg/b.py"]).keys() == {cached("pkg/a.py")}


def test_a_module_that_has_changed_since_stays_away(root: Path) -> None:
    source = root / "pkg" / "a.py"
    compile_file(source, quiet=2)
    source.write_text("VALUE = 10\n")
    assert compiled_modules(root, ["pkg/a.py"]) == {}


def test_a_file_of_another_python_stays_away(root: Path) -> None:
    compile_file(root / "pkg" / "a.py", quiet=2)
    path = root / cached("pkg/a.py")
    path.write_bytes(b"\0\0\r\n" + path.read_bytes()[4:])
    assert compiled_modules(root, ["pkg/a.py"]) == {}


def test_python_uses_it_beside_a_source_of_any_age_but_not_beside_another_text(root: Path, tmp_path: Path) -> None:
    source = root / "pkg" / "a.py"
    compile_file(source, quiet=2)
    [(name, data)] = compiled_modules(root, ["pkg/a.py"]).items()
    (root / name).write_bytes(data)
    os.utime(source, (0, 0))
    assert imported(root) == ("1", True)
    source.write_text("VALUE = 3\n")
    assert imported(root) == ("3", False)


def imported(root: Path) -> tuple[str, bool]:
    """Import `pkg.a`; return its value, and whether Python has used the compiled file."""
    done = subprocess.run(
        [sys.executable, "-v", "-B", "-c", "import pkg.a; print(pkg.a.VALUE, end='')"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout, f"matches {root / 'pkg' / 'a.py'}" in done.stderr

"""The first program of a member on another machine: what it says when the member cannot be started there."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zooid.platforms.programs import agent_program, bootstrap_program
from zooid.platforms.ssh import agent_link

ORDER = {
    "run": "run",
    "title": "000000.m0",
    "zooid": "0" * 64,
    "environment": {},
    "ticket": {"versions": {"python": "3.12", "torch": "2.13.0"}},
}
S3 = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_REGION": "us-east-1",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
}
HOST = os.uname().nodename


def said(folder: Path, changes: str, store: str = "file:///nowhere") -> str:
    """Run the program with these changes, and return what it says when it gives up."""
    program = f"{bootstrap_program()}\n{changes}\nmain_of_order({json.dumps({**ORDER, 'store': store})!r})\n"
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; exec(compile(sys.stdin.read(), 'zooid', 'exec'))"],
        input=program,
        env={**os.environ, **S3, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 3, ran.stderr
    [line] = ran.stderr.splitlines()
    return line


def test_an_interpreter_that_is_too_old_is_told_with_both_versions(tmp_path: Path) -> None:
    assert said(tmp_path, "_OLDEST_PYTHON = (99, 0)") == (
        f"the coordinator has Python 3.12, and {sys.executable} on this machine is Python "
        f"{sys.version_info.major}.{sys.version_info.minor}; give another one as `python` in the file of machines"
    )


def test_packages_that_are_missing_are_told_with_the_command_that_installs_them(tmp_path: Path) -> None:
    changes = "import sys\nsys.path[:] = [path for path in sys.path if not path.endswith('-packages')]"
    assert said(tmp_path, changes) == (
        f"{sys.executable} on {HOST} lacks torch, obstore, msgspec, numpy, safetensors, networkx; install with: "
        f"{sys.executable} -m pip install torch==2.13.0 obstore msgspec numpy safetensors networkx"
    )


def test_a_package_that_does_not_work_is_told(tmp_path: Path) -> None:
    (tmp_path / "zooid").mkdir()
    (tmp_path / "zooid" / "__init__.py").write_text("raise ImportError('libcuda.so.1 is too old')")
    changes = f"_unpacked = lambda *_: {str(tmp_path)!r}"
    assert said(tmp_path, changes).startswith(
        f"{sys.executable} on {HOST} cannot import what zooid needs: libcuda.so.1 is too old; "
    )


def test_a_store_that_does_not_answer_is_told_in_one_line(tmp_path: Path) -> None:
    words = said(tmp_path, "_TRY_S = 0.0", "s3://bucket/run")
    assert words.startswith(f"s3://bucket/run cannot be read on {HOST}: Generic S3 error: ")
    assert words.endswith(f"; check that {HOST} reaches the store, and has credentials with which it may read it")
    assert "error sending request" in words


@pytest.mark.parametrize("program", [agent_program(), bootstrap_program()], ids=["agent", "bootstrap"])
def test_an_old_interpreter_can_compile_the_programs(program: str) -> None:
    ast.parse(program, feature_version=(3, 8))


def test_any_login_shell_takes_the_command_of_an_agent() -> None:
    assert not set("'\\!\n") & set(agent_link._LOAD)
    command = agent_link.ssh_command("far", ["~/my env/bin/python", "-c", "print(1)"])[-1]
    assert command == """"$HOME"/'my env/bin/python' -c 'print(1)'"""

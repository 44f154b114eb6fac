"""The environment of SkyPilot's own parsers, which is made when a test first needs it, and kept beside the checkout's.

SkyPilot pins libraries against ours, so it cannot be installed into the environment of the tests.
"""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.platform_scenes import MachinesLack
from lab.skypilot import parsers

_FOLDER = Path(__file__).parents[2] / ".venv-skypilot"
_REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_ITSELF = "skypilot=="
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1")
_INSTALL_S, _PARSE_S = 600, 120


def skypilot_python() -> Path:
    """Return the interpreter of the environment, which is made first where it is missing or outdated.

    Raises MachinesLack if that fails, as it does without a way to the package index.
    """
    with open(f"{_FOLDER}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = _FOLDER / "installed.txt"
        python = _FOLDER / "bin" / "python"
        wanted = f"{sys.version_info[:2]}\n{_REQUIREMENTS.read_text()}"
        if not mark.exists() or mark.read_text() != wanted:
            _run(sys.executable, "-m", "venv", "--clear", str(_FOLDER))
            lines = _REQUIREMENTS.read_text().splitlines()
            pinned = [line for line in lines if line and not line.startswith("#")]
            _run(str(python), *_PIP, *(line for line in pinned if not line.startswith(_ITSELF)))
            _run(str(python), *_PIP, "--no-deps", *(line for line in pinned if line.startswith(_ITSELF)))
            mark.write_text(wanted)
    return python


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [str(error)])[-1]
        raise MachinesLack(f"SkyPilot's parsers cannot be installed: {last}") from error
    except subprocess.TimeoutExpired as error:
        raise MachinesLack(f"SkyPilot's parsers cannot be installed within {_INSTALL_S} s") from error


def problems(
    machines: Sequence[Mapping[str, Any]],
    tasks: Sequence[str] = (),
    command_lines: Sequence[Sequence[str]] = (),
    answers: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> dict[str, list[str]]:
    """Return what SkyPilot says against each task, command line and answer; an empty text where it accepts one.

    `machines` are all that can be rented. An answer comes with the name of the record that has to read it.
    """
    asked = {"machines": machines, "tasks": tasks, "command_lines": command_lines, "answers": answers}
    python = skypilot_python()
    with tempfile.TemporaryDirectory(prefix="zooid-skypilot-") as home:
        done = subprocess.run(
            [str(python), parsers.__file__],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=_PARSE_S,
            env={"PATH": os.defpath, "HOME": home, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
            check=False,
        )
    assert done.returncode == 0, f"the parsers have failed: {done.stderr}"
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found

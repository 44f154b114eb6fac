"""What the command says about a job that cannot be trained: soon, and without tracebacks of our own code."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.interpreters import run_zooid
from tests.integration.test_cli import ZOOID
from tests.integration.test_docs import job_file
from tests.processes import heed_signals

AT_ONCE_S = 2.0


@pytest.mark.parametrize("command", ["profile", "plan", "train"])
@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("import zooid\n", "import zooid\nclass\n", "job.py, line {line}: invalid syntax\n    class\n         ^"),
        ("epochs=2,", "", "zooid.Job lacks the field epochs"),
        ("epochs=2,", "epoch=2,", "zooid.Job has no field epoch; did you mean epochs?"),
        ("import zooid\n", "import zooid\nimport torchvison_of_nobody\n", "imports torchvison_of_nobody, which is not"),
    ],
    ids=["syntax", "missing field", "unknown field", "missing import"],
)
def test_a_wrong_job_file_is_refused_within_two_seconds(
    command: str, good: str, bad: str, message: str, tmp_path: Path
) -> None:
    text = job_file()
    assert good in text
    changed = text.replace(good, bad)
    (tmp_path / "job.py").write_text(changed)
    begin_s = time.monotonic()
    ended = run_zooid(command, "job.py", cwd=tmp_path)
    took_s = time.monotonic() - begin_s
    print(f"refused after {took_s:.2f} s")
    assert ended.returncode == 2
    line = 1 + changed[: changed.index("class")].count("\n") if "class" in bad else 0
    assert message.format(line=line) in ended.stderr
    assert ended.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["job.py"]
    assert took_s <= AT_ONCE_S


BROKEN_MODEL = """
def build_model():
    return shapes()["width"]


def shapes():
    return {}


import dataclasses

job = dataclasses.replace(job, model=build_model)
"""


def test_an_error_in_the_job_shows_frames_of_its_own_files_and_more_when_asked(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(job_file() + BROKEN_MODEL)
    plain = run_zooid("profile", "job.py", cwd=tmp_path)
    assert plain.returncode == 2
    assert plain.stderr.splitlines()[-1] == "error: job.model() raised KeyError: 'width'"
    assert f'File "{tmp_path}/job.py"' in plain.stderr
    assert "in build_model" in plain.stderr
    assert "/zooid/" not in plain.stderr
    verbose = run_zooid("profile", "job.py", "--verbose", cwd=tmp_path)
    assert verbose.returncode == 2
    assert "/zooid/layers/jobs/job_checks.py" in verbose.stderr
    assert "in build_model" in verbose.stderr


def test_what_fails_while_a_job_is_measured_is_said_without_inner_names(tmp_path: Path) -> None:
    text = job_file().replace("import zooid\n", "import os\nimport zooid\nos.abort()\n")
    (tmp_path / "job.py").write_text(text)
    ended = run_zooid("profile", "job.py", cwd=tmp_path)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last == "error: while the job was being measured, its process was killed by signal 6 (SIGABRT)"


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["INT", "TERM", "HUP"],
)
def test_a_signal_ends_members_first_and_the_status_tells_which_it_was(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    slow = f"import time, pathlib\npathlib.Path({str(started)!r}).touch()\ntime.sleep(600)\n"
    (tmp_path / "job.py").write_text(slow + job_file())
    with subprocess.Popen(
        [*ZOOID, "profile", "job.py"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    ) as process:
        while not started.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(30) == status
    assert said == "interrupted: all members have ended\n"
    assert [pid for pid in os.listdir("/proc") if pid.isdigit() and is_in(pid, tmp_path)] == []


def is_in(pid: str, folder: Path) -> bool:
    """Whether a process runs in this folder."""
    try:
        return Path("/proc", pid, "cwd").resolve() == folder
    except OSError:
        return False

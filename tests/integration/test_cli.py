"""The command line as a user meets it: help, refusals, JSON, and a member killed while it trains."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.interpreters import run_zooid
from tests.integration.jobs import plan_by_hand
from tests.integration.test_docs import job_file
from zooid.core.records import encode_record

ZOOID = [sys.executable, "-m", "zooid.cli.main"]


@pytest.mark.parametrize("command", ["profile", "plan", "train"])
def test_help_shows_an_example(command: str, tmp_path: Path) -> None:
    ended = run_zooid(command, "--help", cwd=tmp_path)
    assert ended.returncode == 0
    assert f"zooid {command} examples/digits.py" in " ".join(ended.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere.py"], "there is no job file nowhere.py"),
        (["train", "job.py", "--layout", "two"], "write REPLICASxSTAGES, for example 2x2"),
        (["train", "job.py", "--layout", "2x2", "--members", "3"], "`max_members` is 3"),
        (["train", "job.py", "--deadline", "soon"], "is not a duration"),
        (["train", "job.py", "--budget", "much"], "is not an amount of money"),
        (["train", "job.py", "--goal", "best"], "give balanced, fastest or cheapest"),
        (["train", "job.py", "--on", "moon"], "members cannot be started on 'moon'"),
        (["train", "job.py", "--on", "local:aws.lamda.1769"], "aws.lambda.1769"),
        (["train", "job.py", "--store", "runs/here"], "file:///"),
        (["train", "job.py", "--plan", "nowhere.json"], "nowhere.json cannot be read"),
        (["train", "job.py", "--plan", "job.py"], "is not a zooid plan file"),
        (["profile", "job.py", "--out", "notes.json"], "is not a zooid profile file"),
        (["profile", "job.py", "--out", "job.py", "--again"], "must be three files"),
    ],
)
def test_bad_input_is_refused_with_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    files = {"job.py": job_file(), "notes.json": '{"by": "hand"}'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ended = run_zooid(*arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


@pytest.mark.timeout(240)
def test_a_profile_is_measured_once_and_then_reused(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(job_file())
    file, page = tmp_path / "job.profile.json", tmp_path / "job.profile.html"
    file.write_text('{"record": "profile", "version": 1}')
    first = run_zooid("profile", "job.py", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "job.profile.json was written by an older zooid: measuring again" in first.stdout
    measured = file.read_bytes()
    date = json.loads(measured)["date"]
    page.unlink()

    second = run_zooid("profile", "job.py", "--json", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert f"nothing has changed since {date}, so the profile is still valid; --again measures again" in second.stderr
    assert second.stdout.encode() == file.read_bytes() == measured
    assert page.exists()

    file.write_bytes(measured[:-20])
    third = run_zooid("profile", "job.py", cwd=tmp_path)
    assert third.returncode == 2
    assert "was it cut short" in third.stderr
    assert file.read_bytes() == measured[:-20]


@pytest.mark.timeout(180)
def test_json_is_for_machines_and_a_killed_member_is_named(tmp_path: Path) -> None:
    endless = tmp_path / "job.py"
    endless.write_text(job_file().replace("epochs=2", "epochs=100000, grain_size=20"))
    (tmp_path / "plan.json").write_bytes(encode_record(plan_by_hand(endless, cuts=2)))
    store = tmp_path / "run"
    with subprocess.Popen(
        [*ZOOID, "train", "job.py", "--plan", "plan.json", "--store", f"file://{store}", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "step_committed":
                break
        pids = members(store)
        assert len(pids) == 2
        killed_s = time.monotonic()
        os.kill(pids["r0s1"], signal.SIGKILL)
        process.stdout.read()
        words = process.stderr.read()
        assert process.wait(15) == 1
    assert time.monotonic() - killed_s < 15
    assert words.splitlines()[-1] == "error: member r0s1 was killed by signal 9 (SIGKILL)"
    assert members(store) == {}
    assert [path.name for path in (store / "checkpoints").iterdir()] == ["00000000"]


def members(store: Path) -> dict[str, int]:
    """Worker processes of this run that are alive, by member."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            for word in words:
                text = word.decode(errors="replace")
                if text.startswith(f"file://{store}/specs/"):
                    found[Path(text).stem] = int(entry.name)
    return found

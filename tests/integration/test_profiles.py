"""Several offers profiled by one command, by real members that are held to their sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_docs import job_file, may_confine

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not may_confine(), reason="this process may not make cgroups"),
]

SMALL, LARGE = "aws.lambda.1024", "aws.lambda.1769"
BIG_FOR_SMALL = """
if "profiler-1" in open("/proc/self/cmdline").read():
    held = bytearray(2**30)
"""
"""A job whose data, say, needs more memory than one of the offers has."""


def profile(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "zooid.cli.main", "profile", "job.py", *options]
    offers = [f"--on=limited:{name}" for name in (SMALL, LARGE)]
    return subprocess.run([*command, *offers], cwd=folder, capture_output=True, text=True, check=False, timeout=200)


def test_offers_are_measured_together_and_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(job_file())
    first = profile(tmp_path)
    assert first.returncode == 0, first.stderr
    files = {name: tmp_path / f"job.{name}.profile.json" for name in (SMALL, LARGE)}
    measured = {name: json.loads(file.read_bytes()) for name, file in files.items()}
    for name, each in measured.items():
        assert f"{name}: measured" in first.stdout.splitlines()
        assert each["links"][0]["from_site"] == f"limited:{name}"
        assert (tmp_path / f"job.{name}.profile.html").exists()
    assert measured[SMALL]["device"]["score"] < measured[LARGE]["device"]["score"]

    held = files[SMALL].read_bytes()
    files[LARGE].unlink()
    second = profile(tmp_path, "--json")
    assert second.returncode == 0, second.stderr
    assert f"{SMALL}: nothing has changed since" in second.stderr
    assert f"{LARGE}: measured" in second.stderr.splitlines()
    assert files[SMALL].read_bytes() == held
    assert list(json.loads(second.stdout)) == [SMALL, LARGE]


def test_a_member_that_fails_ends_all_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(BIG_FOR_SMALL + job_file())
    ended = profile(tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        f"error: while the job was being measured on limited:{SMALL}, its process was ended by the kernel: it used "
        "more than its 1.074 GB of memory, and had up to 1.074 GB"
    )
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.is_file()] == []
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_profiler_of(pid, tmp_path)]


def _is_profiler_of(pid: str, folder: Path) -> bool:
    try:
        return Path("/proc", pid, "cwd").resolve() == folder
    except OSError:
        return False

"""How soon a run begins: without a profile, while weights are being written, and in seconds."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import zooid
from lab.load import ForeignLoad
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform, still_running
from tests.integration.reference import train_composed_layers
from zooid.core.errors import MemberFailed
from zooid.core.plans.plan import Limits
from zooid.core.runs.events import Event, RunStarted
from zooid.platforms import Launch

pytestmark = pytest.mark.timeout(120)

WITH_PROFILE_S = 12.0
WITHOUT_PROFILE_S = 6.0
IMPORT_S = 2.0
"""What importing torch takes on the machine that these limits are for. A slower one may take longer in proportion."""
SLACK = 1.5
"""What a noisy machine may take longer; before members were forked, it was 1.8 and 2 times as long."""

MOST_FOREIGN_CORES = 0.5

COUNTED = """
import pathlib, time

calls = []

def counted(named):
    calls.append(None)
    if "preparer.json" in pathlib.Path("/proc/self/cmdline").read_text() and len(calls) == 2:
        {then}
    return torch.optim.AdamW(named, lr=1e-2)
"""
"""The preparer builds the optimizer twice: to check the job, and between the weights and the manifest."""
WAIT = """
        deadline_s = time.monotonic() + 60
        while not pathlib.Path({go!r}).exists():
            assert time.monotonic() < deadline_s, "nobody started meanwhile"
            time.sleep(0.01)
"""


class Telling(RecordingPlatform):
    """Writes a file when the first member starts that trains."""

    def __init__(self, go: Path) -> None:
        super().__init__()
        self._go = go

    def create(self, launches: Sequence[Launch]) -> None:
        super().create(launches)
        if any(launch.member == "r0s0" for launch in launches):
            self._go.touch()


def job_that(tmp_path: Path, then: str) -> Path:
    extra = COUNTED.format(then=then)
    return write_job(tmp_path / "job.py", extra=extra, fields={"optimizer": "counted", "epochs": "1"})


def test_members_start_while_weights_are_written_and_a_layout_needs_no_profile(tmp_path: Path) -> None:
    """The preparer does not finish before another member was started."""
    go = tmp_path / "go"
    job_file = job_that(tmp_path, WAIT.format(go=str(go)).strip())
    platform = Telling(go)
    events: list[Event] = []
    result = zooid.train(
        job_file,
        store=(tmp_path / "run").as_uri(),
        limits=Limits(num_replicas=1, num_stages=2),
        profile=False,
        platform=platform,
        on_event=events.append,
    )
    assert platform.launched == ["preparer", "r0s0", "r0s1"]
    [started] = [event for event in events if isinstance(event, RunStarted)]
    assert (started.predicted_step_s, started.predicted_run_s, started.predicted_usd) == (None, None, None)
    assert started.num_steps == len(result.losses)
    assert result.plan.predicted is None
    assert result.losses == pytest.approx(train_composed_layers(job_file).losses, rel=1e-9)


def test_weights_that_cannot_be_written_end_members_that_wait_for_them(tmp_path: Path) -> None:
    go = tmp_path / "go"
    then = WAIT.format(go=str(go)).strip() + "\n        raise OSError('the disk is full')"
    platform = Telling(go)
    run = tmp_path / "run"
    job_file = job_that(tmp_path, then)
    with pytest.raises(MemberFailed, match="the disk is full"):
        zooid.train(job_file, store=run.as_uri(), plan=plan_by_hand(job_file), platform=platform)
    assert platform.launched == ["preparer", "r0s0", "r0s1"]
    assert still_running(list(platform.pids.values())) == []
    assert [path for path in run.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("option", "limit_s"), [("--profile", WITH_PROFILE_S), ("--no-profile", WITHOUT_PROFILE_S)], ids=["with", "without"]
)
def test_the_first_step_comes_soon(option: str, limit_s: float, tmp_path: Path) -> None:
    job_file = write_job(tmp_path / "job.py", num_samples=64, fields={"epochs": "1", "grain_size": "None"})
    command = [sys.executable, "-m", "zooid.cli.main", "train", str(job_file), "--layout", "1x1", option, "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "ZOOID_PROFILE_EFFORT"}
    with ForeignLoad() as foreign:
        begin_s = time.monotonic()
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if json.loads(line)["event"] == "step_committed":
                    break
            took_s = time.monotonic() - begin_s
            process.stdout.read()
    print(f"the first step was told after {took_s:.2f} s, while others had {foreign.num_cores:.2f} cores")
    assert process.returncode == 0
    pace = max(1.0, import_s() / IMPORT_S)
    if took_s >= pace * SLACK * limit_s and foreign.num_cores > MOST_FOREIGN_CORES:
        pytest.skip(f"others had {foreign.num_cores:.2f} cores")
    assert took_s < pace * SLACK * limit_s


def import_s() -> float:
    """How long a new process takes here to import torch."""
    begin_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - begin_s

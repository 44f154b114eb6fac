"""A run that goes on in the background, and whoever watches it from its folder alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.waiting import wait_until
from tests.integration.interpreters import run_python, run_zooid, run_zooid_in_terminal
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.reference import Trained
from tests.integration.test_adoption import HOLD, NUM_STEPS, PAUSED_STEP, Scene, ended, paused
from tests.integration.test_cli import members
from tests.processes import heed_signals, is_gone
from zooid.coordinator import observe
from zooid.core.records import encode_record
from zooid.report import snapshot_of
from zooid.report.run_snapshot import RunSnapshot
from zooid.store import open_store
from zooid.store.checkpoint_index import last_step

pytestmark = pytest.mark.timeout(120)

ZOOID = [sys.executable, "-m", "zooid.cli.main"]
UNHURRIED = "lambda event: __import__('time').sleep(0.05)"
ENDLESS = {"epochs": "100_000", "on_event": UNHURRIED}


def look(url: str) -> RunSnapshot:
    """What `zooid watch --once` shows."""
    return snapshot_of(observe(url))


def states(snapshot: RunSnapshot) -> dict[str, str]:
    return {member.name: member.state for member in snapshot.members}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    fields = {"epochs": str(NUM_STEPS // 4), "on_event": "hold"}
    job_file = write_job(tmp_path / "job.py", extra=HOLD, fields=fields)
    with ended(Scene((tmp_path / "run").as_uri(), job_file, Trained((), {}))) as made:
        yield made


def test_a_run_is_seen_from_its_beginning_to_its_interruption(scene: Scene, tmp_path: Path) -> None:
    """With its coordinator, without it, without one member, and without all."""
    assert look(scene.url).state == "not begun"
    with paused(scene):
        coordinator = scene.start(plan_by_hand(scene.job_file, num_replicas=2, cuts=(), transport="tcp"))
        wait_until(coordinator.has_told(PAUSED_STEP))
        training = look(scene.url)
        assert (training.state, training.step, training.num_steps) == ("training", PAUSED_STEP + 1, NUM_STEPS)
        assert (training.layout, training.transport) == ("2x1", "tcp")
        assert states(training) == {"r0s0": "trains", "r1s0": "trains"}
        assert sum(member.share or 0 for member in training.members) == training.num_grains == 7
        assert len(training.loss_curve) == PAUSED_STEP + 1

        coordinator.kill()
        assert look(scene.url).state == "unattended"
        pids = scene.pids()
        os.kill(pids["r1s0"], signal.SIGKILL)
        wait_until(lambda: states(look(scene.url))["r1s0"] == "lost")
        assert look(scene.url).state == "unattended", "one member goes on"
        os.kill(pids["r0s0"], signal.SIGKILL)
        wait_until(lambda: is_gone(pids["r0s0"]))
    assert training.loss is not None
    assert training.samples_per_s is not None
    interrupted = run_zooid("watch", scene.url, cwd=tmp_path)
    assert interrupted.returncode == 0
    assert interrupted.stdout.splitlines()[-1].endswith(
        f"interrupted  step 0/24  loss {training.loss:.4f}  {training.samples_per_s:.4g} samples/s  $0.00  "
        f"to continue: zooid resume {scene.url}"
    )
    nothing = run_zooid("stop", scene.url, cwd=tmp_path)
    assert nothing.returncode == 2
    assert nothing.stderr.splitlines() == [
        f"error: nobody trains the run in {scene.url} any more, so there is nothing to stop: it was interrupted, and "
        f"its last checkpoint has 0 of 24 steps; to continue: zooid resume {scene.url}"
    ]


def test_a_detached_run_outlives_its_terminal_and_is_stopped_from_elsewhere(tmp_path: Path) -> None:
    endless = write_job(tmp_path / "endless.py", fields=ENDLESS)
    (tmp_path / "plan.json").write_bytes(encode_record(plan_by_hand(endless, num_replicas=2, cuts=(), transport="tcp")))
    run = tmp_path / "run"
    words = ["train", "endless.py", "--plan", "plan.json", "--store", run.as_uri(), "--detach"]
    begun = run_zooid_in_terminal(*words, cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    lines = begun.stdout.splitlines()
    log = tmp_path / "runs" / "run.log"
    coordinator = int(lines[-4].partition("as process ")[2].partition(";")[0])
    assert lines[-4:] == [
        f"training goes on in the background, as process {coordinator}; its output is in {log}",
        f"  zooid watch {run.as_uri()}  shows it",
        f"  zooid stop {run.as_uri()}  ends it at its next step boundary",
        f"  zooid resume {run.as_uri()}  continues it after it was stopped or interrupted",
    ]
    try:
        told = json.loads(run_zooid("watch", run.as_uri(), "--once", "--json", cwd=tmp_path).stdout)
        assert told["state"] == "training"
        assert [member["state"] for member in told["members"]] == ["trains", "trains"]
        assert len(members(run)) == 2
        assert not is_gone(coordinator)

        ended = run_zooid("stop", run.as_uri(), cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        step = last_step(open_store(run.as_uri()))
        assert step > told["step"], "it has gone on meanwhile"
        assert ended.stdout.splitlines() == [
            "asked the run to stop at its next step boundary",
            f"stopped after step {step} of 400000",
            f"checkpoint: {run.as_uri()}/checkpoints/{step:08d}",
            f"to continue: zooid resume {run.as_uri()}",
        ]
        wait_until(lambda: is_gone(coordinator))
        assert members(run) == {}
        assert f"stopped after step {step}: zooid stop asked for it" in log.read_text()
        shown = run_zooid("watch", run.as_uri(), "--once", cwd=tmp_path).stdout
        assert "  stopped  ·  2x1  ·  over tcp\n" in shown
        assert shown.splitlines()[-1] == f"to continue: zooid resume {run.as_uri()}"
    finally:
        for pid in (coordinator, *members(run).values()):
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "there is no job file nowhere.py"),
        (["job.py", "--store", "memory://run"], "lives in one process"),
        (["job.py", "--layout", "two"], "write REPLICASxSTAGES, for example 2x2"),
    ],
)
def test_what_is_wrong_before_training_is_said_as_without_detach(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    write_job(tmp_path / "job.py")
    attached = run_zooid("train", *arguments, cwd=tmp_path)
    detached = run_zooid("train", *arguments, "--detach", cwd=tmp_path)
    assert message in detached.stderr
    assert (detached.returncode, detached.stderr, detached.stdout) == (2, attached.stderr, attached.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["job.py"]


def test_where_no_log_can_be_written_nothing_is_started(tmp_path: Path) -> None:
    write_job(tmp_path / "job.py")
    (tmp_path / "runs").write_text("not a folder")
    ended = run_zooid("train", "job.py", "--store", (tmp_path / "run").as_uri(), "--detach", cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == (
        "error: --detach cannot write the log runs/run.log: File exists; call it in a folder that you can write to\n"
    )
    assert not (tmp_path / "run").exists()


def test_ctrl_c_before_training_leaves_nothing_behind(tmp_path: Path) -> None:
    """Members hang in the data set, so that training does not begin."""
    slow = write_job(tmp_path / "slow.py", fields={"data": "lambda: __import__('time').sleep(600)"})
    run = tmp_path / "run"
    command = [*ZOOID, "train", slow.name, "--layout", "1x1", "--no-profile", "--detach", "--store", run.as_uri()]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "writing the initial weights\n"
        wait_until(lambda: members(run))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read().splitlines()[-1] == "interrupted: all members have ended"
    assert members(run) == {}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name not in ("run", "__pycache__")) == ["slow.py"]
    assert not [path for path in run.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("command", "words"), [("watch", "the run is left alone"), ("stop", "the run was not asked to stop")]
)
def test_ctrl_c_leaves_the_run_alone_and_says_so(command: str, words: str, tmp_path: Path) -> None:
    ended = run_python(
        f"""
import sys
from zooid import coordinator
from zooid.cli.main import main

def interrupted(url, **given):
    raise KeyboardInterrupt

coordinator.{command} = interrupted
sys.argv = ["zooid", "{command}", "file:///tmp/run"]
main()
""",
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (130, f"{words}\n")

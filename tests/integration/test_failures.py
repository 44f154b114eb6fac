"""What goes wrong is said in one line, nothing is left behind, and bad input is refused before a worker starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from msgspec import structs

import zooid
from lab.servers import rclone_s3
from tests.integration.jobs import BAD_SAMPLE, TORN, plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform, still_running
from tests.processes import heed_signals
from zooid.core.errors import CheckpointError, InputError, JobError, MemberFailed, PlanError, UnsafeStore, ZooidError
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import Event, StepCommitted
from zooid.layers import build_model
from zooid.store import open_store
from zooid.store.checkpoint_index import last_step, read_manifest

pytestmark = pytest.mark.timeout(120)

ENDLESS = "100_000"
"""Epochs of a job that is still training when it is disturbed."""


@dataclass
class Attempt:
    """A run that is meant to fail, in a folder of its own."""

    folder: Path
    platform: RecordingPlatform = field(default_factory=RecordingPlatform)
    steps: list[StepCommitted] = field(default_factory=list)

    @property
    def url(self) -> str:
        return (self.folder / "run").as_uri()

    @property
    def pids(self) -> dict[str, int]:
        return self.platform.pids

    def train(
        self,
        job_file: Path,
        *,
        plan: Plan | None = None,
        on_step: Callable[[], None] | None = None,
        store: str | None = None,
    ) -> ZooidError:
        """Run it and return the error that it ended with."""

        def watch(event: Event) -> None:
            if isinstance(event, StepCommitted):
                self.steps.append(event)
                if on_step is not None:
                    on_step()

        with pytest.raises(ZooidError) as caught:
            zooid.train(job_file, store=store or self.url, plan=plan, on_event=watch, platform=self.platform)
        return caught.value

    def assert_nothing_is_left(self) -> None:
        """No process, no message between members, no half-written file, and no checkpoint but the first."""
        assert still_running(list(self.pids.values())) == []
        assert open_store(self.url).list(keys.COMM) == []
        assert [path for path in (self.folder / "run").rglob("*") if "#" in path.name] == []
        assert last_step(open_store(self.url)) == 0


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


class TestKilledMember:
    @pytest.mark.parametrize("victim", ["r0s0", "r0s1"], ids=["rank 0", "last stage"])
    def test_without_replicas_is_named_within_seconds_and_takes_the_others_with_it(
        self, attempt: Attempt, victim: str
    ) -> None:
        job_file = write_job(attempt.folder / "endless.py", fields={"epochs": ENDLESS})
        killed_at_s: list[float] = []

        def kill_once() -> None:
            if not killed_at_s:
                killed_at_s.append(time.monotonic())
                os.kill(attempt.pids[victim], signal.SIGKILL)

        plan = plan_by_hand(job_file, num_replicas=1)
        error = attempt.train(job_file, plan=plan, on_step=kill_once)
        noticed_s = time.monotonic() - killed_at_s[0]
        print(f"noticed and cleaned up {noticed_s:.2f} s after the kill")
        assert noticed_s < 15
        assert isinstance(error, MemberFailed)
        assert error.member == victim
        assert str(error) == f"member {victim} was killed by signal 9 (SIGKILL)"
        assert len(attempt.platform.launched) == 1 + plan.num_members
        attempt.assert_nothing_is_left()
        self.assert_an_incomplete_checkpoint_is_invisible(attempt, job_file)

    def assert_an_incomplete_checkpoint_is_invisible(self, attempt: Attempt, job_file: Path) -> None:
        """As a member leaves it that is killed between its shard and the manifest."""
        store = open_store(attempt.url)
        store.put(keys.shard(7, "model", 0, 2, 0), store.get(keys.shard(0, "model", 0, 2, 0)))
        assert last_step(store) == 0
        with pytest.raises(CheckpointError, match=r"no complete checkpoint of step 7"):
            read_manifest(store, 7)
        with pytest.raises(CheckpointError, match=r"no complete checkpoint of step 7"):
            zooid.load_checkpoint(f"{attempt.url}/{keys.checkpoint(7)}")
        initial = build_model(load_job(job_file)).state_dict()
        visible = zooid.load_checkpoint(attempt.url)
        assert visible.keys() == initial.keys()
        assert all(torch.equal(visible[name], tensor) for name, tensor in initial.items())


class TestFailingJob:
    def test_a_sample_that_cannot_be_loaded_is_named(self, attempt: Attempt) -> None:
        fields = {"data": "lambda: Torn(*build_data().tensors)"}
        job_file = write_job(attempt.folder / "torn.py", extra=TORN, fields=fields)
        error = attempt.train(job_file, plan=plan_by_hand(job_file, num_replicas=1, cuts=()))
        assert isinstance(error, MemberFailed)
        assert f"r0s0 exited with status 1: job.data()[{BAD_SAMPLE}] raised OSError: the file is torn" in str(error)
        attempt.assert_nothing_is_left()

    def test_a_member_that_raises_leaves_its_traceback(self, attempt: Attempt) -> None:
        """Only the last stage computes a loss; the first one merely waits for it and is not to be blamed."""
        give_up = """
calls = itertools.count()

def tired_loss(output, target):
    if next(calls) == 60:
        raise RuntimeError("the loss gave up")
    return F.cross_entropy(output, target)

"""
        job_file = write_job(attempt.folder / "tired.py", extra=give_up, fields={"loss": "tired_loss"})
        error = attempt.train(job_file, plan=plan_by_hand(job_file, num_replicas=1))
        assert isinstance(error, MemberFailed)
        assert str(error) == "member r0s1 exited with status 1: RuntimeError: the loss gave up"
        assert "in tired_loss" in error.traceback_text
        assert error.traceback_text.rstrip().endswith("RuntimeError: the loss gave up")
        attempt.assert_nothing_is_left()


class TestCtrlC:
    SCRIPT = """
import sys
from pathlib import Path

import zooid
from tests.integration.recording import RecordingPlatform
from zooid.core.runs.events import StepCommitted
from zooid.core.plans.plan import Plan
from zooid.core.records import decode_record

job_file, store, plan_file = sys.argv[1:]
platform = RecordingPlatform()

def tell(event):
    if isinstance(event, StepCommitted):
        print("training", *platform.pids.values(), flush=True)

plan = decode_record(Path(plan_file).read_bytes(), Plan, plan_file)
zooid.train(job_file, store=store, plan=plan, on_event=tell, platform=platform)
"""

    def test_ends_the_run_and_its_members(self, attempt: Attempt) -> None:
        job_file = write_job(attempt.folder / "endless.py", fields={"epochs": ENDLESS})
        plan_file = attempt.folder / "plan.json"
        plan_file.write_bytes(encode_record(plan_by_hand(job_file, num_replicas=1)))
        pids: list[int] = []
        process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT, str(job_file), attempt.url, str(plan_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_signals,
        )
        with process:
            try:
                assert process.stdout is not None
                told = process.stdout.readline().split()
                assert told[:1] == ["training"], process.communicate()[1]
                pids += [int(pid) for pid in told[1:]]
                assert len(still_running(pids)) == 2, "the preparer is gone, two workers train"
                began_s = time.monotonic()
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
                _, complaint = process.communicate(timeout=30)
                ended_s = time.monotonic() - began_s
            finally:
                process.kill()
                orphans = still_running(pids)
                for pid in orphans:
                    os.killpg(pid, signal.SIGKILL)
        print(f"ended {ended_s:.2f} s after Ctrl-C")
        assert ended_s < 10
        assert process.returncode == -signal.SIGINT
        assert complaint.rstrip().endswith("KeyboardInterrupt")
        assert orphans == []
        attempt.assert_nothing_is_left()


class TestRefusedInput:
    @pytest.mark.parametrize(
        ("fields", "extra", "message"),
        [
            (
                {"batch_size": "151"},
                "",
                "job.batch_size is 151, but job.data() has only 150 samples; give a batch size of at most 150",
            ),
            (
                {"loss": "lambda output, target: F.cross_entropy(output, target, reduction='none')"},
                "",
                "job.loss returned a tensor of shape (2,); a loss is (output, target) -> scalar tensor",
            ),
            (
                {"data": "Stream"},
                "class Stream(IterableDataset):\n    def __iter__(self):\n        return iter(())\n",
                "job.data() returned a Stream, an iterable without a length; give job.num_samples",
            ),
        ],
        ids=["batch size above the data set", "loss of the wrong form", "data set without a length"],
    )
    def test_a_job_that_does_not_fit_together(
        self, attempt: Attempt, fields: dict[str, str], extra: str, message: str
    ) -> None:
        error = attempt.train(write_job(attempt.folder / "wrong.py", extra=extra, fields=fields))
        assert isinstance(error, JobError)
        assert message in str(error)
        assert len(str(error).splitlines()) == 1
        self.assert_only_launched(attempt, ["profiler"])

    def test_a_file_without_a_job(self, attempt: Attempt) -> None:
        file = attempt.folder / "empty.py"
        file.write_text("model = 1\n")
        error = attempt.train(file)
        assert isinstance(error, JobError)
        assert str(error).startswith(f"{file} defines no `job`; define `job = zooid.Job(")
        self.assert_only_launched(attempt, [])

    def test_a_plan_of_another_model(self, attempt: Attempt) -> None:
        job_file = write_job(attempt.folder / "changed.py")
        plan = structs.replace(plan_by_hand(job_file, num_replicas=2), model_fingerprint="of another model")
        error = attempt.train(job_file, plan=plan)
        assert isinstance(error, PlanError)
        assert "the plan was made for another model" in str(error)
        assert "run `zooid plan` again" in str(error)
        self.assert_only_launched(attempt, ["preparer"])

    def test_what_needs_no_member_to_be_seen(self, attempt: Attempt) -> None:
        missing = attempt.folder / "missing.py"
        error = attempt.train(missing)
        assert isinstance(error, JobError)
        assert str(error).startswith(f"there is no job file {missing}; give the path of a Python file")
        job_file = write_job(attempt.folder / "job.py")
        error = attempt.train(job_file, store="memory://run-7")
        assert isinstance(error, InputError)
        assert str(error) == (
            "memory://run-7 lives in one process, but members are several; give file:///folder or s3://bucket/run"
        )
        open_store(attempt.url).put("comm/letter", b"of somebody else")
        error = attempt.train(job_file)
        assert isinstance(error, InputError)
        assert str(error).startswith(f"{attempt.url} is not empty: it holds a run or something else")
        assert open_store(attempt.url).list("") == ["comm/letter"]
        assert attempt.platform.launched == []

    def test_a_store_in_which_two_writers_win(self, attempt: Attempt, rclone_bucket: str) -> None:
        error = attempt.train(write_job(attempt.folder / "job.py"), store=f"{rclone_bucket}/run-7")
        assert isinstance(error, UnsafeStore)
        assert "accepted a second create-only put" in str(error)
        assert "use a store that honours If-None-Match, such as AWS S3" in str(error)
        assert attempt.platform.launched == []

    def assert_only_launched(self, attempt: Attempt, members: list[str]) -> None:
        assert attempt.platform.launched == members
        assert still_running(list(attempt.pids.values())) == []
        assert open_store(attempt.url).is_empty()  # so that the same folder can be given again


@pytest.fixture
def rclone_bucket() -> Iterator[str]:
    with rclone_s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server.bucket_url("refused")

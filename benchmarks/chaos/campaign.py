"""Runs trials one after the other, and says what was wrong with each."""

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from benchmarks.chaos import checks
from benchmarks.chaos.injection import Homes, Injector
from benchmarks.chaos.jobs import CHECKPOINTS, KINDS
from benchmarks.chaos.trials import LAYOUTS, Trial
from lab.attempts import Attempt, left_behind
from lab.footprints import read_footprints
from lab.namespaces import Star, connect_members, star
from lab.nursery import Conditions, Nursery
from lab.prepared import PreparedJob
from lab.servers import moto_s3
from zooid.core.errors import ZooidError
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.store import open_store

LIMIT_S = 60.0
"""A run that has not ended by then hangs."""
_POLL_S = 0.01
_MOST_ATTEMPTS = 4
_MOST_CHARACTERS = 1500


@dataclass
class Outcome:
    """What has become of one trial."""

    trial: Trial
    fired: list[str] = field(default_factory=list)
    """Kinds of the faults that have happened."""
    num_missed: int = 0
    num_resumes: int = 0
    problems: list[str] = field(default_factory=list)
    wall_s: float = 0.0


class Campaign:
    """Everything that trials share; a context that clears the laboratory away."""

    def __init__(self, home: Nursery, folder: Path) -> None:
        self._home = home
        self._folder = folder
        self._jobs: dict[str, PreparedJob] = {}
        self._references: dict[str, checks.Ending] = {}
        self._lab: tuple[Star, str] | None = None
        self._stack = ExitStack()
        self._num_logs = 0

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, trial: Trial) -> Outcome:
        """Carry a trial out, and check everything afterwards."""
        job = self._job(trial.job)
        self._reference(trial.job)
        began_s = time.monotonic()
        outcome = Outcome(trial)
        folder = self._folder / f"trial-{trial.seed}"
        folder.mkdir()
        job_file = folder / "job.py"
        job_file.write_text(job.file.read_text())
        url = f"{folder.as_uri()}/run"
        homes: Homes | None = None
        if trial.needs_namespaces:
            lab, bucket = self._laboratory()
            url = f"{bucket}/trial-{trial.seed}"
            homes = Homes(lab, dict(zip(trial.members, lab.members, strict=False)))
        injector = Injector(trial.faults, folder, self._home, homes)
        try:
            self._carry_out(outcome, job, job_file, url, injector, _conditions(trial, homes))
            if not outcome.problems:
                self._check(outcome, folder, url)
        finally:
            injector.end()
            self._home.end_all()
        outcome.fired = [fault.kind for fault, _ in injector.fired]
        if trial.store_error_rate:
            outcome.fired.append("store")
        outcome.num_missed = len(injector.missed)
        outcome.wall_s = time.monotonic() - began_s
        return outcome

    def _carry_out(
        self, outcome: Outcome, job: PreparedJob, job_file: Path, url: str, injector: Injector, conditions: Conditions
    ) -> None:
        """From the start of the first coordinator to the end of the last."""
        trial = outcome.trial
        plan = structs.replace(
            KINDS[trial.job].options(job.plan(trial.num_replicas, trial.num_stages, trial.transport)),
            insured=trial.is_insured,
        )
        deadline_s = time.monotonic() + LIMIT_S
        attempt = self._start(url, conditions, plan, job_file)
        while True:
            while (status := attempt.status) is None:
                if time.monotonic() > deadline_s:
                    outcome.problems.append(f"the run did not end in {LIMIT_S:.0f} s; {_words(attempt)}")
                    return
                injector.poll(attempt)
                time.sleep(_POLL_S)
            if status == 0 or (status == 2 and "is complete" in attempt.words()):
                return
            was_killed = status == -signal.SIGKILL
            has_enough = len(trial.members) - len(injector.lost(attempt)) >= trial.num_stages
            if status == 2 or (not was_killed and (has_enough or not injector.lost(attempt))):
                outcome.problems.append(f"the run ended with status {status}: {_words(attempt)}")
                return
            if outcome.num_resumes + 1 == _MOST_ATTEMPTS:
                outcome.problems.append(f"the run did not end in {_MOST_ATTEMPTS} attempts: {_words(attempt)}")
                return
            outcome.num_resumes += 1
            injector.end()  # who resumes a run has made sure that its machines can be reached
            attempt = self._start(url, conditions)

    def _check(self, outcome: Outcome, folder: Path, url: str) -> None:
        trial = outcome.trial
        store, batches = open_store(url), self._job(trial.job).batches
        if left := left_behind(store):
            outcome.problems.append(f"left behind: {left}")
        if members := self._home.members():
            outcome.problems.append(f"still running: {members}")
        ending = checks.read_ending(url)
        outcome.problems += [
            *checks.telling_faults(checks.read_told(store), may_repeat=trial.may_tell_twice),
            *checks.sample_faults(ending.steps, batches),
            *checks.reading_faults(read_footprints(folder), batches),
            *checks.difference_faults(ending, self._reference(trial.job), KINDS[trial.job].tolerance),
        ]

    def _start(
        self, url: str, conditions: Conditions, plan: Plan | None = None, job_file: Path | None = None
    ) -> Attempt:
        """Begin a run, or go on with it where no job is given."""
        self._num_logs += 1
        log = self._folder / f"coordinator-{self._num_logs}.log"
        given = (
            {}
            if job_file is None or plan is None
            else {"job_file": str(job_file), "plan": encode_record(plan).decode()}
        )
        return Attempt(self._home, log, conditions, store=url, checkpoints=CHECKPOINTS, **given)

    def _job(self, name: str) -> PreparedJob:
        if name not in self._jobs:
            file = self._folder / f"job-{name}" / "job.py"
            file.parent.mkdir()
            file.write_text(KINDS[name].source())
            self._jobs[name] = PreparedJob(file)
        return self._jobs[name]

    def _reference(self, name: str) -> checks.Ending:
        """The run of one member that nobody disturbs."""
        if name not in self._references:
            job = self._job(name)
            url = f"{job.file.parent.as_uri()}/run"
            attempt = self._start(url, Conditions(), KINDS[name].options(job.plan(1, 1, "store")), job.file)
            if attempt.wait_for_end() != 0:
                raise ZooidError(f"the undisturbed run of the job {name} has failed:\n{attempt.words()}")
            self._references[name] = checks.read_ending(url)
        return self._references[name]

    def _laboratory(self) -> tuple[Star, str]:
        """Namespaces for the largest layout, and the URL of a bucket that all of them reach."""
        if self._lab is None:
            lab = self._stack.enter_context(star(max(replicas * stages for replicas, stages in LAYOUTS)))
            connect_members(lab)
            server = self._stack.enter_context(moto_s3(lab.store.address, lab.store.prefix))
            os.environ.update(server.environment)
            self._lab = lab, server.bucket_url("chaos")
        return self._lab


def _words(attempt: Attempt) -> str:
    """The end of what a coordinator has said, without the many lines about money."""
    lines = [line for line in attempt.words().splitlines() if not line.startswith('{"event":"metered"')]
    return "\n".join(lines)[-_MOST_CHARACTERS:]


def _conditions(trial: Trial, homes: Homes | None) -> Conditions:
    return Conditions(
        namespaces={} if homes is None else {name: member.name for name, member in homes.members.items()},
        store_error_rate=trial.store_error_rate,
        store_delay_s=trial.store_delay_s,
        seed=trial.seed,
    )

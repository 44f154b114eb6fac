"""Kills members and coordinators at random, resumes at once, and compares the end with a run that was left alone.

`python -m benchmarks.kills --kills 60 --seed 7` does so over objects and over TCP, in a folder and on an S3 server.
Weights must be equal, every step told once, nothing left behind, and nobody may wait long. The last line is JSON.
"""

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import zooid
from lab.attempts import Attempt, left_behind
from lab.nursery import Nursery, nursery
from lab.plans import bare_plan
from lab.servers import moto_s3
from zooid.core.errors import ZooidError
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Plan, TransportName
from zooid.core.records import encode_record
from zooid.core.runs.events import StepCommitted
from zooid.layers import check_job, faithful_layers
from zooid.store import ObjectStore, open_store, read_history

NUM_STEPS = 60
LAYOUTS = {"1x1": (1, ()), "2x1": (2, ()), "1x2": (1, (2,))}
TOLERANCE = 1e-9
LONGEST_WAIT_S = 20.0
CHECKPOINTS = {"every_steps": 5, "keep": 2}
_MOST_STEPS = 15
_MOST_START_S = 5.0

JOB = f'''"""A small perceptron in float64, which takes its time."""

import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import zooid


def build_model():
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Dropout(0.1), nn.Linear(12, 2)).double()


def build_data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.rand(80, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.rand(80, 2, generator=generator, dtype=torch.float64))


def pace(event):
    time.sleep(0.03)


job = zooid.Job(
    model=build_model,
    loss=nn.functional.mse_loss,
    data=build_data,
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-2),
    batch_size=8,
    grain_size=2,
    epochs={NUM_STEPS // 10},
    seed=3,
    on_event=pace,
)
'''


@dataclass(frozen=True)
class Scene:
    """Where a run lies, and how its members talk."""

    name: str
    url: str
    transport: TransportName


@dataclass
class Findings:
    """What is counted over all runs."""

    killed: Counter[str] = field(default_factory=Counter)
    num_runs: int = 0
    num_resumes: int = 0
    num_never_begun: int = 0
    longest_wait_s: float = 0.0
    longest_first_step_s: float = 0.0
    largest_difference: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def num_kills(self) -> int:
        return self.killed.total()


class Campaign:
    """Runs with kills, in one scene after the other."""

    def __init__(
        self, home: Nursery, folder: Path, dice: random.Random, findings: Findings, victims: Iterator[str]
    ) -> None:
        self._home = home
        self._folder = folder
        self._dice = dice
        self._victims = victims
        self._findings = findings
        self._job = folder / "job.py"
        self._job.write_text(JOB)
        checked = check_job(load_job(self._job))
        self._layered = faithful_layers(checked)
        self._reference: dict[str, torch.Tensor] = {}
        self._num_logs = 0

    def leave_alone(self, scene: Scene) -> None:
        """The run that the others are compared with."""
        attempt = self._attempt(scene.url, self._plan("1x1", scene.transport), is_new=True)
        if attempt.wait_for_end() != 0:
            raise ZooidError(f"the run that is left alone has failed:\n{attempt.words()}")
        self._reference = zooid.load_checkpoint(scene.url)

    def kill(self, scene: Scene, num_kills: int) -> None:
        """Whole runs, until so many processes were killed."""
        end = self._findings.num_kills + num_kills
        number = 0
        while self._findings.num_kills < end:
            layout = self._dice.choice(list(LAYOUTS))
            url = f"{scene.url}-{number}"
            number += 1
            self._report(f"{scene.name}: a run of {layout}, {end - self._findings.num_kills} kills left")
            if self._run(url, self._plan(layout, scene.transport), end):
                self._check(f"{scene.name}, {layout}, {url}", open_store(url))

    def _run(self, url: str, plan: Plan, end: int) -> bool:
        """One run to its end, however often it is killed; False where it was killed before it had begun."""
        self._findings.num_runs += 1
        attempt = self._attempt(url, plan, is_new=True)
        while True:
            if self._findings.num_kills < end:
                self._disturb(attempt)
            status = attempt.wait_for_end()
            self._note(attempt)
            if status == 0:
                return True
            if status == 2 and "is complete" in attempt.words():
                return True
            if status == 2 and ("holds no run" in attempt.words() or "it never began" in attempt.words()):
                self._findings.num_never_begun += 1
                return False
            if status == 2 or (status == 1 and "was killed by signal 9" not in attempt.words()):
                self._findings.faults.append(f"{url}: {attempt.words()[-600:]}")
                return False
            self._findings.num_resumes += 1
            attempt = self._attempt(url)

    def _disturb(self, attempt: Attempt) -> None:
        """Kill a process of the run at a random moment, by steps or by the clock."""
        if self._dice.random() < 0.7:
            steps = attempt.num_steps() + self._dice.randrange(1, _MOST_STEPS)
            if not attempt.wait(lambda: attempt.num_steps() >= steps):
                return
            time.sleep(self._dice.uniform(0.0, 0.3))
        else:
            moment_s = time.monotonic() + self._dice.uniform(0.0, _MOST_START_S)
            if not attempt.wait(lambda: time.monotonic() >= moment_s):
                return
        members = self._home.members()
        victim = next(self._victims) if members else "coordinator"
        pid = attempt.pid if victim == "coordinator" else self._dice.choice(sorted(members))
        if attempt.status is None:
            os.kill(pid, signal.SIGKILL)
            self._findings.killed[victim] += 1

    def _attempt(self, url: str, plan: Plan | None = None, *, is_new: bool = False) -> Attempt:
        self._num_logs += 1
        log = self._folder / f"coordinator-{self._num_logs}.log"
        given: dict[str, Any] = {"job_file": str(self._job)} if is_new else {}
        text = None if plan is None else encode_record(plan).decode()
        return Attempt(self._home, log, store=url, plan=text, checkpoints=CHECKPOINTS, **given)

    def _note(self, attempt: Attempt) -> None:
        for name, value in (
            ("longest_wait_s", attempt.waited_s()),
            ("longest_first_step_s", attempt.first_step_s()),
        ):
            if value is not None:
                setattr(self._findings, name, max(value, getattr(self._findings, name)))

    def _plan(self, layout: str, transport: TransportName) -> Plan:
        num_replicas, cuts = LAYOUTS[layout]
        return bare_plan(
            job=self._job.stem,
            fingerprint=self._layered.fingerprint,
            why_whole=self._layered.why_whole,
            spans=list(pairwise((0, *cuts, self._layered.num_layers))),
            batch_size=8,
            grain_size=2,
            num_steps=NUM_STEPS,
            num_replicas=num_replicas,
            schedule="gpipe",
            transport=transport,
        )

    def _check(self, name: str, store: ObjectStore) -> None:
        """Weights, told steps, and what is left."""
        state = zooid.load_checkpoint(store.url)
        difference = max(float((state[key] - value).abs().max()) for key, value in self._reference.items())
        self._findings.largest_difference = max(self._findings.largest_difference, difference)
        told = [event.step for event in read_history(store) if isinstance(event, StepCommitted)]
        faults = [f"steps told: {told}"] if sorted(told) != list(range(NUM_STEPS)) else []
        if difference > TOLERANCE:
            faults.append(f"weights differ by {difference}")
        if left := left_behind(store):
            faults.append(f"left behind: {left}")
        if members := self._home.members():
            faults.append(f"still running: {members}")
        self._findings.faults += [f"{name}: {fault}" for fault in faults]

    def _report(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def scenes(folder: Path, names: list[str]) -> Iterator[list[Scene]]:
    """Both transports, in a folder and on an S3 server."""
    with ExitStack() as stack:
        urls = {"file": folder.as_uri()}
        if any(name.startswith("s3") for name in names):
            server = stack.enter_context(moto_s3())
            os.environ.update(server.environment)
            urls["s3"] = server.bucket_url("kills")
        transports: tuple[TransportName, ...] = ("store", "tcp")
        every = [
            Scene(f"{where}, {transport}", f"{url}/{transport}", transport)
            for where, url in urls.items()
            for transport in transports
        ]
        yield [scene for scene in every if scene.name in names]


ALL = ["file, store", "file, tcp", "s3, store", "s3, tcp"]


def campaign(num_kills: int, seed: int, names: list[str], victims: Iterator[str] | None = None) -> dict[str, Any]:
    """Kill so many processes, spread over the scenes, by chance or in the order of `victims`; what was found."""
    began_s = time.monotonic()
    dice = random.Random(seed)
    drawn = (dice.choice(["coordinator", "member"]) for _ in itertools.count())
    findings = Findings()
    with (
        tempfile.TemporaryDirectory(prefix="zooid-kills-") as text,
        scenes(Path(text), names) as found,
        nursery() as home,
    ):
        runs = Campaign(home, Path(text), dice, findings, victims or drawn)
        runs.leave_alone(Scene("alone", f"{Path(text).as_uri()}/alone", "store"))
        for number, scene in enumerate(found):
            share = num_kills * (number + 1) // len(found) - num_kills * number // len(found)
            runs.kill(scene, share)
    return {
        "seed": seed,
        "kills": findings.num_kills,
        "killed": dict(findings.killed),
        "runs": findings.num_runs,
        "resumes": findings.num_resumes,
        "never_begun": findings.num_never_begun,
        "largest_difference": findings.largest_difference,
        "longest_wait_s": round(findings.longest_wait_s, 2),
        "longest_first_step_s": round(findings.longest_first_step_s, 2),
        "faults": findings.faults,
        "wall_s": round(time.monotonic() - began_s, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="kill processes of runs at random, and go on")
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", action="append", choices=ALL, help="a scene; all if not given")
    parser.add_argument("--quick", action="store_true", help="a short form: six kills")
    given = parser.parse_args()
    print(f"seed {given.seed}", file=sys.stderr, flush=True)
    result = campaign(6 if given.quick else given.kills, given.seed, given.only or ALL)
    print(json.dumps(result))
    is_late = result["longest_wait_s"] > LONGEST_WAIT_S
    return 1 if result["faults"] or is_late or result["largest_difference"] > TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())

"""One command that trains on rented members, and what its run has come to."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lab.platform_scenes import Scene
from lab.waiting import wait_until
from tests.processes import heed_signals
from zooid.core.errors import StoreError
from zooid.core.runs.events import Event, RunStarted, StepCommitted
from zooid.core.runs.ticket import title_of
from zooid.store import open_store, read_history

Kind = TypeVar("Kind")

_IMPORTING_S = 1.6
"""What the imports of a member take on a core of its own."""
_BESIDE_PREDECESSORS = 1.5
"""How much longer the start of a member takes on a core that its predecessor uses, too."""
_ZOOID = (sys.executable, "-m", "zooid.cli.main")
_TIMEOUT_S = 400.0
_PROFILE_EFFORT = "0.02"
"""A rough profile is enough for a plan whose layout is fixed."""


@dataclass(frozen=True)
class RentedRun:
    """A run that has ended."""

    url: str
    output: str
    """What the command has printed."""
    events: Sequence[Event]

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def run(self) -> str:
        return self.of_kind(RunStarted)[0].run

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(event.loss for event in self.of_kind(StepCommitted))

    def page(self, folder: Path) -> str:
        """Let `zooid timeline` write the page of a step, and return its text."""
        page = folder / "timeline.html"
        subprocess.run([*_ZOOID, "timeline", self.url, "--out", str(page)], check=True, capture_output=True)
        return page.read_text()


def slowness(num_members: int) -> float:
    """How much longer members take to start here, all at once, than with a core for each; at least 1.

    Members that share cores share them with their predecessors, too, who train meanwhile.
    """
    begin_s = time.monotonic()
    importing = [subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(num_members)]
    assert [process.wait() for process in importing] == [0] * num_members
    num_per_core = max(num_members / len(os.sched_getaffinity(0)), (time.monotonic() - begin_s) / _IMPORTING_S)
    return 1.0 if num_per_core <= 1.0 else _BESIDE_PREDECESSORS * num_per_core


def train_and_lose_a_member(scene: Scene, job_file: Path, *options: str, victim: str, after_step: int) -> RentedRun:
    """Run `zooid train` on the scene's first offer, and let a member vanish after a step."""
    assert scene.url is not None
    assert scene.lose is not None
    url = scene.url(f"{job_file.parent.name}-on-{scene.name}")
    command = [*_ZOOID, "train", str(job_file), "--on", scene.offers[0].name, "--store", url, *options]
    output = job_file.parent / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=job_file.parent,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ZOOID_PROFILE_EFFORT": _PROFILE_EFFORT},
            start_new_session=True,
            preexec_fn=heed_signals,
        )
    try:

        def has_come() -> bool:
            assert process.poll() is None, output.read_text()
            return any(isinstance(event, StepCommitted) and event.step >= after_step for event in _history(url))

        wait_until(has_come, timeout_s=_TIMEOUT_S)
        [run] = {event.run for event in _history(url) if isinstance(event, RunStarted)}
        scene.lose(run, title_of(victim, 0))
        assert process.wait(_TIMEOUT_S) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()
    return RentedRun(url, output.read_text(), _history(url))


def _history(url: str) -> list[Event]:
    try:
        return read_history(open_store(url))
    except StoreError:  # the run has not begun
        return []

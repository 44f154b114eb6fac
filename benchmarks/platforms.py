"""From the launch of a member to its first instruction, on every platform, and how often a platform is asked.

Every launch is measured beside one on this machine, at about the same moment and with the same store, and `more_s` is
the median difference. The other machines are the laboratory's: real sshd, Slurm and Ray on machines of their own, all
on this computer. `launch_s` is that of a platform that is connected already, and `first_s` is that of a new one, which
connects and brings zooid. `archive_s` is what the first member of a run on a machine takes longer if the job's folder
has 1 MB more, and `again_s` the same for the second member. `calls_per_s` counts what the platform is asked while its
members run, `num_members` of them.
"""

import contextlib
import dataclasses
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, run_benchmark
from lab.members import Members
from lab.platform_scenes import SCENES, MachinesLack, Scene, running
from lab.waiting import wait_until
from zooid.platforms.line_link import LineLink
from zooid.platforms.local import LocalPlatform
from zooid.platforms.slurm.cluster_commands import ClusterCommands

MORE_LIMITS_S = {"ssh": 0.5, "slurm": 1.5, "ray": 4.0}
ARCHIVE_LIMIT_S = 0.3
CALL_LIMIT = 1.0
ARCHIVE_BYTES = 1_000_000
NUM_LAUNCHES, NUM_FIRST_LAUNCHES, NUM_MEMBERS = 9, 5, 32
WATCH_S = 10.0
START_LIMIT_S = 240.0
TELL_TIME = "import time; print(time.time(), flush=True)"
SLEEP = "import time; print('here', flush=True); time.sleep(600)"


def measure(quick: bool) -> Iterator[Row]:
    for name, scene in SCENES.items():
        try:
            with scene() as made, tempfile.TemporaryDirectory() as folder:
                yield _Measured(made, Path(folder), quick).row()
        except MachinesLack as error:
            yield {"platform": name, "skipped": str(error)}


class _Measured:
    """What is measured on one platform."""

    def __init__(self, scene: Scene, folder: Path, quick: bool) -> None:
        self._scene = scene
        self._folder = folder
        self._quick = quick

    def row(self) -> Row:
        repeats = 3 if self._quick else NUM_LAUNCHES
        own, local = self._new_run(), self._new_local_run()
        first_s = self._launch_s(own)
        self._launch_s(local)
        pairs = [(self._launch_s(own), self._launch_s(local)) for _ in range(repeats)]
        own.end()
        own.platform.release()
        row: Row = {
            "platform": self._scene.name,
            "launch_s": statistics.median(launch_s for launch_s, _ in pairs),
            "more_s": statistics.median(launch_s - local_s for launch_s, local_s in pairs),
            "first_s": first_s,
        }
        if self._scene.machines:
            row |= self._archive()
        row |= self._calls()
        return row | {"is_within_limits": self._is_within_limits(row)}

    def _is_within_limits(self, row: Row) -> bool:
        limits = {
            "more_s": MORE_LIMITS_S.get(self._scene.name, float("inf")),
            "archive_s": ARCHIVE_LIMIT_S,
            "again_s": ARCHIVE_LIMIT_S,
            "calls_per_s": CALL_LIMIT,
        }
        return all(_number(row.get(name, 0.0)) <= limit for name, limit in limits.items())

    def _archive(self) -> Row:
        """Compare the first and the second members of new runs, with and without a large file in the job's folder."""
        differences: list[list[float]] = [[], []]
        platform = self._scene.make()
        for _ in range(2 if self._quick else NUM_FIRST_LAUNCHES):
            taken: dict[bool, list[float]] = {}
            for is_large in (False, True):
                data = os.urandom(ARCHIVE_BYTES) if is_large else b""  # the same for both members
                members = self._new_run(platform)
                members.offers = members.offers[:1]
                taken[is_large] = [self._launch_s(members, data, holds=True), self._launch_s(members, data)]
                members.end()
            for number, found in enumerate(differences):
                found.append(taken[True][number] - taken[False][number])
        platform.release()
        return {"archive_s": statistics.median(differences[0]), "again_s": statistics.median(differences[1])}

    def _calls(self) -> Row:
        """Count what the platform is asked while many members run, and a coordinator looks at them at its pace."""
        num_members = 4 if self._quick else NUM_MEMBERS
        members = self._new_run()
        launches = [members.launch(f"m{number}", "") for number in range(num_members)]
        members.create([running(SLEEP, self._scene, launch) for launch in launches])
        wait_until(lambda: all(members.log(launch.member) for launch in launches), timeout_s=START_LIMIT_S)
        with _counted_calls() as calls:
            begin_s = time.monotonic()
            while time.monotonic() < begin_s + WATCH_S:
                assert len(members.platform.members(members.run)) == num_members
                time.sleep(members.platform.look_s)
        members.end()
        members.platform.release()
        return {"calls_per_s": len(calls) / WATCH_S, "num_members": num_members}

    def _launch_s(self, members: Members, data: bytes = b"", *, holds: bool = False) -> float:
        """Start a member, and return the seconds from the launch to its first instruction.

        With `holds` it goes on, so that the run's folder stays on its machine.
        """
        program = f"{TELL_TIME}; time.sleep(600)" if holds else TELL_TIME
        scene = self._scene if members.offers else dataclasses.replace(self._scene, python=sys.executable)
        launch = running(program, scene, members.launch(f"m{len(members.launched)}", "", data=data))
        begin_s = time.time()
        members.create([launch])
        wait_until(lambda: "\n" in members.log(launch.member), timeout_s=START_LIMIT_S)
        return float(members.log(launch.member)) - begin_s

    def _new_run(self, platform: Any = None) -> Members:
        run = secrets.token_hex(4)
        url = "" if self._scene.url is None else self._scene.url(run)
        return Members(platform or self._scene.make(), self._folder, run, url, self._scene.offers)

    def _new_local_run(self) -> Members:
        """A run of members on this machine, with the same kind of store."""
        run = secrets.token_hex(4)
        return Members(LocalPlatform(forks=False), self._folder, run, self._scene.url(run) if self._scene.url else "")


@contextlib.contextmanager
def _counted_calls() -> Iterator[list[str]]:
    """Note everything that any platform is asked while the block runs."""
    calls: list[str] = []
    ask, give = LineLink.ask, ClusterCommands.give

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(own: object, what: str | Sequence[str], *more: Any, **named: Any) -> Any:
            calls.append(str(what))
            return method(own, what, *more, **named)

        return call

    LineLink.ask, ClusterCommands.give = counted(ask), counted(give)  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        LineLink.ask, ClusterCommands.give = ask, give  # type: ignore[method-assign]


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


if __name__ == "__main__":
    run_benchmark("Launches on every platform", measure, lambda quick: len(SCENES))

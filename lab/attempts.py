"""Coordinators in processes of their own, and what a run must not leave behind."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.nursery import Conditions, Nursery
from zooid.core.errors import ZooidError
from zooid.core.runs import keys
from zooid.store import ObjectStore
from zooid.store.checkpoint_index import complete_steps, read_manifest

_POLL_S = 0.02
_PHASE_LIMIT_S = 120.0
"""A process that has not come to what is waited for by then hangs."""


class Attempt:
    """One coordinator, from its start until it ends or is killed."""

    def __init__(self, home: Nursery, log: Path, conditions: Conditions | None = None, **arguments: Any) -> None:
        self._home = home
        self._log = log
        self.began_s = time.time()
        self.pid = home.start_coordinator(log, conditions, **arguments)

    @property
    def status(self) -> int | None:
        return self._home.status_of(self.pid)

    def events(self) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        found = []
        for line in lines:
            with suppress(json.JSONDecodeError):  # it was killed in the middle of a line, or says why it failed
                found.append(json.loads(line))
        return [event for event in found if isinstance(event, dict)]

    def num_steps(self) -> int:
        return sum(event["event"] == "step_committed" for event in self.events())

    def wait(self, is_so: Callable[[], bool]) -> bool:
        """Until something is so; False where the coordinator ended before."""
        deadline_s = time.monotonic() + _PHASE_LIMIT_S
        while not is_so():
            if self.status is not None:
                return is_so()
            if time.monotonic() > deadline_s:
                raise ZooidError(f"a coordinator hangs; it said:\n{self._log.read_text()[-3000:]}")
            time.sleep(_POLL_S)
        return True

    def wait_for_end(self) -> int:
        self.wait(lambda: self.status is not None)
        status = self.status
        assert status is not None
        return status

    def words(self) -> str:
        return self._log.read_text()[-3000:]

    def waited_s(self) -> float | None:
        """How long it waited before it began its own work; None where it was killed before that."""
        return self._after(lambda event: str(event.get("phase", "")).startswith("checking"))

    def first_step_s(self) -> float | None:
        return self._after(lambda event: event["event"] == "step_committed")

    def _after(self, is_it: Callable[[dict[str, Any]], bool]) -> float | None:
        times = [event["at_s"] for event in self.events() if is_it(event)]
        return times[0] - self.began_s if times else None


def left_behind(store: ObjectStore) -> list[str]:
    """Objects, and files of a folder, that a finished run should not have."""
    folders = (keys.ANSWERS, keys.COMM, keys.PROBES, keys.LEASES, keys.HANDLES, keys.FAILURES)
    left = [key for key in store.list("") if key.startswith(tuple(f"{folder}/" for folder in folders))]
    steps = complete_steps(store)
    named = {keys.checkpoint_manifest(step) for step in steps}
    for step in steps:
        manifest = read_manifest(store, step)
        named |= {shard.key for shard in (*manifest.shards, *manifest.optimizer, *manifest.constants)}
    left += [key for key in store.list(keys.CHECKPOINTS) if key not in named]
    if store.url.startswith("file://"):
        left += [str(path) for path in Path(store.url.removeprefix("file://")).rglob("*#*")]
    return left

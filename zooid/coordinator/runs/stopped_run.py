"""The request to stop a run, from any machine, and the wait until it has ended."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from zooid.coordinator.measurements.scratch_folder import reject_memory_store
from zooid.coordinator.runs.observer import RunObserver
from zooid.core.errors import CheckpointError, InputError, ObjectExists
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.observed_run import ENDED, ObservedRun
from zooid.core.runs.stop_request import StopRequest
from zooid.store import open_store
from zooid.store.checkpoint_index import last_step, read_manifest
from zooid.store.claims import last_claim, no_run


@dataclass(frozen=True)
class StoppedRun:
    """A run that has ended after a request to stop it."""

    store: str
    step: int
    """Number of steps that its last checkpoint contains."""
    num_steps: int
    """Number of steps of the whole run; `step` if the run was complete before it could be stopped."""
    checkpoint: str
    """URL of the last checkpoint's folder."""
    reason: str
    """Why the run ended before its last step, in words; empty if it is complete."""
    can_resume: bool
    """Whether `zooid.resume` continues the run."""


def stop(store: str, *, on_look: Callable[[ObservedRun], None] = lambda observed: None) -> StoppedRun:
    """Ask a run to end at its next step boundary with a checkpoint, and wait until it has. `resume` continues it.

    The run's first member finds the request in the store, so that no coordinator is needed. `on_look` is called with
    the state of the run now and then while it ends.
    """
    reject_memory_store(store)
    folder = open_store(store)
    observer = RunObserver(folder)
    observed = observer.settled()
    if observed.state == "not begun":
        raise no_run(folder)
    if observed.state in ENDED:
        raise InputError(_why_nothing_stops(observed))
    number = observer.number
    request = StopRequest(run=last_claim(folder)[1].run, asked_at_s=time.time(), asked_from=socket.gethostname())
    with suppress(ObjectExists):  # somebody else has asked already
        folder.create(keys.stop_request(number), encode_record(request))
    while (observed := observer.settled()).state not in ENDED:
        if observer.number != number:
            raise InputError(
                f"somebody has resumed the run in {folder.url} after it was asked to stop; to stop it again: "
                f"zooid stop {folder.url}"
            )
        on_look(observed)
        time.sleep(observer.interval_s)
    folder.delete([keys.stop_request(number)])  # in case that the run had ended before it was asked
    return _result(observed)


def _result(observed: ObservedRun) -> StoppedRun:
    folder = open_store(observed.store)
    manifest = read_manifest(folder, last_step(folder))
    assert observed.num_steps is not None
    if observed.state == "interrupted":
        raise CheckpointError(
            f"the run in {folder.url} has ended before it could stop; its last checkpoint has {manifest.step} of "
            f"{observed.num_steps} steps; to continue: zooid resume {folder.url}"
        )
    return StoppedRun(
        store=folder.url,
        step=manifest.step,
        num_steps=observed.num_steps,
        checkpoint=f"{folder.url}/{keys.checkpoint(manifest.step)}",
        reason=manifest.ledger.stopped,
        can_resume=observed.state == "stopped",
    )


def _why_nothing_stops(observed: ObservedRun) -> str:
    url, done = observed.store, f"{observed.saved_step} of {observed.num_steps} steps"
    if observed.state == "complete":
        return f"the run in {url} is complete after {done}, so there is nothing to stop"
    if observed.state == "stopped":
        return f"the run in {url} is stopped already, after {done}; to continue: zooid resume {url}"
    return (
        f"nobody trains the run in {url} any more, so there is nothing to stop: it was interrupted, and its last "
        f"checkpoint has {done}; to continue: zooid resume {url}"
    )

"""Measures the steps of one member under one roster, and writes the result to the store now and then.

A step costs almost nothing: of some steps, the recording is kept that the executor has made anyway. Times are summed up
only when they are written, in a thread of its own. All members keep the same steps.
"""

import logging
import statistics
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from zooid.core.errors import ZooidError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.step_measurements import (
    FIRST_WRITE_STEPS,
    MessageTiming,
    ReduceTiming,
    StepMeasurements,
    is_write_due,
    step_means,
    timing,
)
from zooid.schedule.actions import MESSAGES, Kind, Lane
from zooid.store import ObjectStore
from zooid.worker.member.seat import Seat
from zooid.worker.peers.roster_groups import DISTANCES
from zooid.worker.step.executor import Recording

logger = logging.getLogger(__name__)

_WARM_UP_STEPS = 2
"""Number of first steps that are not measured, because memory and connections are made in them."""
_MAX_KEPT = 64
"""Number of steps whose recordings are kept at most. Beyond it, every second one is dropped."""


@dataclass(frozen=True)
class _KeptStep:
    step: int
    recording: Recording
    vote_s: float
    between_s: float | None
    """Time since the end of the step before; None if that was not a full step."""


class StepMeter:
    """The measurements of one member that computes grains."""

    def __init__(self, store: ObjectStore, seat: Seat, pauses_s: Sequence[float] = ()) -> None:
        """`pauses_s` are the pauses in which checkpoints were copied; the list may grow."""
        self._store = store
        self._seat = seat
        self._pauses_s = pauses_s
        self._kept: list[_KeptStep] = []
        self._stride = 1
        self._num_steps = 0
        self._last_end: tuple[int, float] | None = None
        """The last full step, and when it ended."""
        self._writing: threading.Thread | None = None

    def note(self, step: int, recording: Recording) -> None:
        """Note a step with a full batch that has just ended."""
        last, end_s = self._last_end, recording.end_s
        self._last_end = (step, end_s)
        self._num_steps += 1
        if self._num_steps > _WARM_UP_STEPS and step % self._stride == 0:
            between_s = recording.start_s - last[1] if last is not None and last[0] == step - 1 else None
            self._kept.append(_KeptStep(step, recording, self._seat.sum_clock.last_s, between_s))
            if len(self._kept) > _MAX_KEPT:
                self._stride *= 2
                self._kept = [kept for kept in self._kept if kept.step % self._stride == 0]
        is_busy = self._writing is not None and self._writing.is_alive()
        if is_write_due(self._num_steps) and not is_busy:
            self._begin_write()

    def finish(self) -> None:
        """Write everything that was measured, and wait for it."""
        if self._writing is not None:
            self._writing.join()
        self._begin_write()
        if self._writing is not None:
            self._writing.join()

    def turn_away(self) -> None:
        """Write what was measured when a planned change ends the roster, without waiting for it.

        A roster of few steps says less than the one before it, and nothing is written.
        """
        is_busy = self._writing is not None and self._writing.is_alive()
        if self._num_steps >= FIRST_WRITE_STEPS and not is_busy:
            self._begin_write()

    def _begin_write(self) -> None:
        if not self._kept or not any(run.action.kind is Kind.FORWARD for run in self._kept[-1].recording.runs):
            return
        arguments = (tuple(self._kept), self._num_steps, tuple(self._pauses_s))
        self._writing = threading.Thread(target=self._write, args=arguments, name="measurements", daemon=True)
        self._writing.start()

    def _write(self, kept: Sequence[_KeptStep], num_steps: int, pauses_s: Sequence[float]) -> None:
        roster = self._seat.roster
        key = keys.measurements(self._seat.name, roster.number, roster.change)
        try:
            self._store.put(key, encode_record(measurements_of(self._seat, kept, num_steps, pauses_s)))
        except ZooidError as error:  # training does not depend on it
            logger.warning("the measurements of %s were not written: %s", self._seat.name, error)


def measurements_of(
    seat: Seat, kept: Sequence[_KeptStep], num_steps: int, pauses_s: Sequence[float]
) -> StepMeasurements:
    """Sum up some steps of a member."""
    assert seat.replica is not None, "copies compute no grains"
    means: defaultdict[str, list[float]] = defaultdict(list)
    starts: defaultdict[str, list[float]] = defaultdict(list)
    for step in kept:
        runs = ((run.action.kind.value, run.action.number, run.end_s - run.start_s) for run in step.recording.runs)
        for name, mean_s in step_means(runs).items():
            means[name].append(mean_s)
        for run in step.recording.runs:
            if run.action.lane is Lane.COMPUTE:
                starts[str(run.action)].append(run.start_s - step.recording.start_s)
        means["update"].append(max(0.0, means[Kind.COMMIT.value][-1] - step.vote_s))
        if step.between_s is not None:
            means["between"].append(step.between_s)
    last = kept[-1].recording
    sizes = {f"{run.action.kind.value}{run.action.number}": run.num_bytes for run in last.runs}
    pipeline = seat.roster.pipeline(seat.replica)
    return StepMeasurements(
        member=seat.name,
        replica=seat.replica,
        stage=seat.stage,
        num_grains=sum(run.action.kind is Kind.FORWARD for run in last.runs),
        num_steps=num_steps,
        num_sampled=len(kept),
        step=timing([step.recording.end_s - step.recording.start_s for step in kept]),
        between=timing(means["between"] or [0.0]),
        forward=timing(means[Kind.FORWARD.value]),
        backward=timing(means[Kind.BACKWARD.value]),
        update=timing(means["update"]),
        vote=timing([step.vote_s for step in kept]),
        starts_s={action: statistics.median(seconds) for action, seconds in starts.items()},
        messages=tuple(
            MessageTiming(
                kind=kind.value,
                peer=pipeline[seat.stage + DISTANCES[kind]],
                num_bytes=round(statistics.fmean(run.num_bytes for run in last.runs if run.action.kind is kind)),
                time=timing(means[kind.value]),
            )
            for kind in MESSAGES
            if kind.value in means
        ),
        reduces=tuple(
            ReduceTiming(
                number=number,
                num_bytes=sizes[f"{Kind.REDUCE.value}{number}"],
                num_ranks=seat.roster.num_replicas,
                time=timing(means[f"{Kind.REDUCE.value}{number}"]),
            )
            for number in sorted(run.action.number or 0 for run in last.runs if run.action.kind is Kind.REDUCE)
            if seat.groups.stage is not None
        ),
        checkpoint=timing(pauses_s) if pauses_s else None,
    )

"""When a run's checkpoints are written, and when they are complete.

The first member says when one is due. All members then copy their state after the same step, and write it while they
train. Each says in its votes when its part is written. When all parts are, the first member writes the manifest.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec import structs

from zooid.core.abort import Abort
from zooid.core.runs.checkpoint import CheckpointRule, Division, Ledger
from zooid.core.runs.events import CheckpointSaved
from zooid.schedule.checkpoint_interval import interval_of
from zooid.store import EventWriter, Fence, ObjectStore
from zooid.store.checkpoint_index import prune, remove_strays
from zooid.worker.checkpoints.optimizer_state import optimizer_tensors
from zooid.worker.checkpoints.writer import CheckpointWriter, replace_ledger, write_manifest
from zooid.worker.member.seat import Seat
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.stage_state import StageState


class CheckpointKeeper:
    """One member's part in the checkpoints of its roster."""

    def __init__(
        self,
        store: ObjectStore,
        rule: CheckpointRule,
        division: Division,
        state: StageState,
        seat: Seat,
        events: EventWriter,
        abort: Abort,
        *,
        measures_first: bool = False,
    ) -> None:
        """With `measures_first`, a checkpoint is written after the first step, to learn how long one takes."""
        self._store = store
        self._measures_first = measures_first
        self._fence = Fence(store, division.roster)
        self._rule = rule
        self._division = division
        self._state = state
        self._seat = seat
        self._events = events
        self._writer = CheckpointWriter(store, division, seat.stage, seat.replica, abort)
        self._last = state.saved
        """Step of the last checkpoint that was begun, and when."""
        self._pending: tuple[int, LossScale, Ledger] | None = None
        self._is_wished = False
        self.pauses_s: list[float] = []
        """The pauses in which states were copied."""
        self._manifests = ThreadPoolExecutor(1, thread_name_prefix="manifest")
        self._written: Future[None] | None = None

    @property
    def owes_checkpoint(self) -> bool:
        """Whether a checkpoint that the job has wished for is still being written."""
        return self._pending is not None and self._is_wished

    @property
    def is_pending(self) -> bool:
        """Whether a checkpoint is being written; equal on all members between two steps."""
        return self._pending is not None

    def settle(self) -> None:
        """Wait until the pending checkpoint is complete; all members do so after the same step."""
        self._catch_up()

    def close(self) -> None:
        """Wait until the manifest of the last complete checkpoint is written."""
        if self._written is not None:
            self._written.result()

    @property
    def checkpoint_s(self) -> float:
        """Time that the last checkpoint took, from its copy to the vote that all parts are written."""
        if self._state.checkpoint_s is not None:
            return self._state.checkpoint_s
        return 0.0 if self._pending is None else time.monotonic() - self._last[1]

    def is_due(self, num_steps: int) -> bool:
        """Whether this member finds that a checkpoint is due after so many steps. Only the first member does."""
        if self._seat.rank != 0 or self._pending is not None:
            return False
        if self._measures_first and self._state.checkpoint_s is None:
            return True
        step, at_s = self._last
        rule = structs.replace(self._rule, every_s=interval_of(self._rule, self._state.pause_s))
        return rule.is_due(num_steps - step, time.monotonic() - at_s)

    def is_written(self) -> bool:
        """Whether this member has written its part of the pending checkpoint. Raises what went wrong with it."""
        if self._written is not None and self._written.done():
            self._written.result()
            self._written = None
        return self._pending is not None and self._writer.poll() == self._pending[0]

    def begin(self, num_steps: int, scale: LossScale, ledger: Ledger) -> None:
        """Copy the state after so many steps, and write it in the background; no checkpoint may be pending."""
        start_s = time.monotonic()
        training = self._state.training
        tensors = {} if training.optimizer is None else optimizer_tensors(training.optimizer, training.named_parameters)
        self._writer.begin(num_steps, self._state.model_tensors(), tensors)
        self._pending = (num_steps, scale, ledger)
        self._last = (num_steps, time.monotonic())
        self._note_pause(self._last[1] - start_s)
        self._is_wished = False

    def _note_pause(self, seconds: float) -> None:
        """Follow the pauses of checkpoints, each half as much as the one after it."""
        self.pauses_s.append(seconds)
        before_s = self._state.pause_s
        self._state.pause_s = seconds if before_s is None else (before_s + seconds) / 2

    def complete(self) -> None:
        """Note that all members have written their parts. The first member then writes the manifest."""
        pending, self._pending = self._pending, None
        self._state.saved = self._last
        self._state.checkpoint_s = time.monotonic() - self._last[1]
        if self._seat.rank == 0 and pending is not None:
            if self._written is not None:
                self._written.result()
            self._written = self._manifests.submit(self._complete, *pending)

    def save(self, num_steps: int, scale: LossScale, ledger: Ledger) -> None:
        """Wait for a pending checkpoint, then begin one of this state, unless that is done already."""
        if self._last[0] != num_steps:
            self._catch_up()
            self.begin(num_steps, scale, ledger)
            self._is_wished = True

    def finish(self, num_steps: int, scale: LossScale, ledger: Ledger) -> None:
        """Write the final state, and wait until it is complete."""
        self.save(num_steps, scale, ledger)
        self._catch_up()
        if self._written is not None:
            self._written.result()
        manifest = self._state.manifest
        if manifest.step == num_steps and self._seat.rank == 0:  # stopped before any step: no tensor is new
            ledger_only = structs.replace(manifest, ledger=ledger)
            url = replace_ledger(self._store, ledger_only, self._division.roster)
            self._tell(num_steps, url, ledger)
        self._seat.barrier()  # nobody leaves before the manifest is written, so that others can replace a lost writer

    def _catch_up(self) -> None:
        """Wait until the pending checkpoint is complete."""
        if self._pending is not None:
            self._writer.wait()
            self.is_written()
            self._seat.barrier()
            self.complete()

    def _complete(self, num_steps: int, scale: LossScale, ledger: Ledger) -> None:
        self._events.flush()  # nobody who resumes from this checkpoint runs, and so tells, its steps again
        url = write_manifest(self._store, self._state.manifest, self._division, num_steps, scale, ledger)
        self._fence.check()
        if self._division.change > 0:
            remove_strays(self._store, num_steps)
        prune(self._store, self._rule.keep, ledger.best_step)
        self._tell(num_steps, url, ledger)

    def _tell(self, num_steps: int, url: str, ledger: Ledger) -> None:
        pause_s, is_chosen = self._state.pause_s, self._rule.between_rollbacks_s is not None
        self._events.write(
            CheckpointSaved(
                at_s=time.time(),
                step=num_steps,
                url=url,
                is_best=ledger.best_step == num_steps,
                pause_s=pause_s,
                next_in_s=interval_of(self._rule, pause_s) if is_chosen else None,
            )
        )

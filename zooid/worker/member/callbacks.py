"""The job's own functions that a member calls while it trains."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.jobs.run_requests import NO_WISH, Wish
from zooid.core.runs.events import BatchChanged, Evaluated, Event, StepCommitted, StoppedEarly
from zooid.core.runs.stop_request import STOPPED_BY_REQUEST
from zooid.worker.member.step_log import StepLog
from zooid.worker.member.stop_listener import StopListener


@dataclass(frozen=True)
class Callbacks:
    """Passes events on, and asks the job for its wishes. The first member speaks for all."""

    job: Job
    emit: Callable[[Event], None]
    model_tensors: Callable[[], Mapping[str, torch.Tensor]]
    is_first: bool
    recent: deque[StepCommitted | Evaluated | BatchChanged]
    """All events, so that another member can write them if the first one is lost before it does."""
    log: StepLog
    """The steps that the job's scaling policy learns about."""
    stop: StopListener | None = None
    """Looks for reasons to stop the run; None if nobody can ask for that."""

    def is_stop_asked(self) -> bool:
        """Whether the first member has found a reason to stop the run; asked once for every step."""
        return self.stop is not None and self.stop.is_stop_asked()

    @property
    def stop_reason(self) -> str:
        """Why the run stops, as far as this member knows. The first member's reason is kept with the checkpoint."""
        return STOPPED_BY_REQUEST if self.stop is None else self.stop.reason

    @property
    def may_wish(self) -> bool:
        """Whether the first member must share what the job wants after an evaluation; equal on every member."""
        return self.job.on_event is not None or self.job.scaling is not None

    def tell(self, event: StepCommitted | Evaluated) -> Wish:
        """Pass an event on, and return the wish with which the job answers."""
        self.recent.append(event)
        self.log.add(event)
        if not self.is_first:
            return NO_WISH
        self.emit(event)
        if self.job.on_event is None:
            return NO_WISH
        try:
            answer = self.job.on_event(event)
        except Exception as error:
            raise JobError(f"job.on_event raised {type(error).__name__}: {error}") from error
        if answer is None:
            return NO_WISH
        if not isinstance(answer, Wish):
            raise JobError(
                f"job.on_event returned {answer!r}; return None, or zooid.Wish.SAVE, zooid.Wish.KEEP_BEST or "
                "zooid.Wish.STOP, several of them joined by |"
            )
        return answer

    def tell_change(self, event: BatchChanged) -> None:
        self.recent.append(event)
        if self.is_first:
            self.emit(event)

    def tell_stop(self, event: StoppedEarly) -> None:
        if self.is_first:
            self.emit(event)

    def show_weights(self, num_steps: int) -> None:
        """Pass this stage's part of the state dict after so many steps to the job."""
        if self.job.on_weights is None:
            return
        try:
            self.job.on_weights(num_steps, self.model_tensors())
        except Exception as error:
            raise JobError(f"job.on_weights raised {type(error).__name__}: {error}") from error

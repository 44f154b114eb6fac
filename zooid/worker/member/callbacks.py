"""The job's own functions that a member calls while it trains."""

from collections import deque
from collections.abc import Callable, Mapping

import torch

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.jobs.run_requests import NO_WISH, Wish
from zooid.core.runs.events import Evaluated, Event, StepCommitted, StoppedEarly


class Callbacks:
    """Passes events on, and asks the job for its wishes. The first member speaks for all."""

    def __init__(
        self,
        job: Job,
        emit: Callable[[Event], None],
        model_tensors: Callable[[], Mapping[str, torch.Tensor]],
        *,
        is_first: bool,
        recent: deque[StepCommitted | Evaluated],
    ) -> None:
        """`recent` gets every event, so that another member can write it if the first one is lost before it does."""
        self._on_event = job.on_event
        self._on_weights = job.on_weights
        self._emit = emit
        self._model_tensors = model_tensors
        self._is_first = is_first
        self._recent = recent

    @property
    def may_wish(self) -> bool:
        """Whether the first member must share its wishes; equal on every member."""
        return self._on_event is not None

    def tell(self, event: StepCommitted | Evaluated) -> Wish:
        """Pass an event on, and return the wish with which the job answers."""
        self._recent.append(event)
        if not self._is_first:
            return NO_WISH
        self._emit(event)
        if self._on_event is None:
            return NO_WISH
        try:
            answer = self._on_event(event)
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

    def tell_stop(self, event: StoppedEarly) -> None:
        if self._is_first:
            self._emit(event)

    def show_weights(self, num_steps: int) -> None:
        """Pass this stage's part of the state dict after so many steps to the job."""
        if self._on_weights is None:
            return
        try:
            self._on_weights(num_steps, self._model_tensors())
        except Exception as error:
            raise JobError(f"job.on_weights raised {type(error).__name__}: {error}") from error

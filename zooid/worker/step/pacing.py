"""Computing that takes its planned time: the real stage of a small model computes, and the member sleeps the rest.

So gradients, votes and checkpoints of a rehearsed run are real ones, and its steps take as long as those of the plan.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from zooid.core.abort import Abort
from zooid.core.plans.stage import StageTimes
from zooid.layers import Objective, Stage
from zooid.schedule.actions import Action, Kind
from zooid.schedule.buckets import reduces_early
from zooid.worker.member.seat import Seat
from zooid.worker.samples.sample_reader import ReadGrain
from zooid.worker.state.training_state import TrainingState
from zooid.worker.step.stage_runner import StageRunner

_TOLERATED_FRACTION = 0.05
"""A member that is late by more than this fraction of a step's computing does not make up for more."""
_MOST_LATE_STEPS = 3
"""Number of late steps in succession after which a member says that it cannot keep the pace."""


class Pacer:
    """Lets computing take its planned time. An action that ends late is made up for by the next ones.

    Sleeps end a little late, too, and with many actions in a step these delays would add up.
    """

    def __init__(
        self, stages: Sequence[StageTimes], abort: Abort, on_late: Callable[[float, float], None] = lambda *_: None
    ) -> None:
        """`on_late` is called once with the planned and the real time of a step's computing, if it cannot be kept."""
        self.stages = tuple(stages)
        self._abort = abort
        self._on_late = on_late
        self._late_s = 0.0
        self._planned_s = 0.0
        """Planned time of the actions in the present step so far."""
        self._num_late_steps = 0

    @contextmanager
    def taking(self, planned_s: float) -> Iterator[Callable[[float], None]]:
        """Let what is computed inside take so long. Yields a function that sleeps until a fraction of it has passed."""
        begin_s = time.perf_counter() - self._late_s
        """When the action would have begun if those before it had not been late."""

        def sleep_until(fraction: float) -> None:
            left_s = begin_s + fraction * planned_s - time.perf_counter()
            if left_s > 0:
                self._abort.sleep(left_s)

        yield sleep_until
        sleep_until(1.0)
        self._planned_s += planned_s
        self._late_s = max(0.0, time.perf_counter() - begin_s - planned_s)

    def end_step(self) -> None:
        """Note whether the step's computing took longer than planned."""
        tolerated_s = _TOLERATED_FRACTION * self._planned_s
        self._num_late_steps = self._num_late_steps + 1 if self._late_s > tolerated_s else 0
        if self._num_late_steps == _MOST_LATE_STEPS:
            self._on_late(self._planned_s, self._planned_s + self._late_s)
            self._on_late = lambda *_: None
        self._late_s = min(self._late_s, tolerated_s)
        self._planned_s = 0.0


class PacedStageRunner(StageRunner):
    """A stage whose forwards, backwards and updates take their planned times."""

    def __init__(
        self,
        objective: Objective,
        read: ReadGrain,
        stage: Stage,
        state: TrainingState,
        seat: Seat,
        device: torch.device,
        pacer: Pacer,
    ) -> None:
        super().__init__(objective, read, stage, state, seat, device)
        self._pacer = pacer
        self._times = pacer.stages[seat.stage]

    def compute(self, action: Action) -> None:
        if action.kind is Kind.FORWARD:
            with self._pacer.taking(self._times.forward_s):
                super().compute(action)
            return
        with self._pacer.taking(self._times.backward_s) as sleep_until:
            super().compute(action)
            if self._num_backwards_left == 0:
                reduce_early(
                    self._seat.stage,
                    self._times,
                    self._state.num_buckets,
                    sleep_until,
                    lambda number: self._state.reduce(number, self._losses),
                )

    def apply(self, factor: float | torch.Tensor) -> None:
        with self._pacer.taking(self._times.update_s):
            super().apply(factor)
        if self._seat.replica is not None:  # a copy computes nothing but updates
            self._pacer.end_step()


def reduce_early(
    stage: int,
    times: StageTimes,
    num_buckets: int,
    sleep_until: Callable[[float], None],
    reduce: Callable[[int], object],
) -> None:
    """Begin to reduce each bucket at its planned moment of the last backward, on a stage that reduces early."""
    if reduces_early(stage):
        for number, fraction in enumerate(early_moments(times, num_buckets)):
            sleep_until(fraction)
            reduce(number)


def early_moments(times: StageTimes, num_buckets: int) -> list[float]:
    """Moments of the last backward, as fractions of it, at which each bucket is reduced, without the last bucket.

    The plan may have another number of buckets, if its profile is of a larger model.

    >>> from zooid.core.plans.stage import Bucket
    >>> buckets = tuple(Bucket(num_bytes=8, at_share=share) for share in (0.25, 0.5, 0.75, 1.0))
    >>> times = StageTimes(forward_s=0, backward_s=1, out_bytes=0, buckets=buckets, reduce_s=0, update_s=0)
    >>> early_moments(times, 4), early_moments(times, 2), early_moments(times, 1)
    ([0.25, 0.5, 0.75], [0.5], [])
    """
    planned = times.buckets
    return [planned[-(-(number + 1) * len(planned) // num_buckets) - 1].at_share for number in range(num_buckets - 1)]

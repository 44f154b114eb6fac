"""Evaluation: the data set goes forward through the same pipeline, in the model's evaluation mode."""

import math
import time

import torch

from zooid.core.abort import Abort
from zooid.core.errors import JobError
from zooid.core.runs.events import Evaluated
from zooid.layers import Objective, Stage, autocasting, sum_and_weight
from zooid.schedule.actions import Action, Kind
from zooid.schedule.checks import check_schedule
from zooid.schedule.pipelines import StepShape
from zooid.schedule.samples import split_grains
from zooid.worker.member.seat import Seat
from zooid.worker.samples.sample_reader import ReadGrain
from zooid.worker.samples.sample_supply import EvaluationSizes
from zooid.worker.step.cut_messages import CutMessages
from zooid.worker.step.executor import Executor
from zooid.worker.step.pending import Pending

_LOSS = ""
"""Stands for the loss among the names of metrics."""


class Evaluator:
    """Evaluates one batch of grains after the other, and adds the results of all members at the end."""

    def __init__(
        self,
        objective: Objective,
        stage: Stage,
        seat: Seat,
        read: ReadGrain,
        sizes: EvaluationSizes,
        device: torch.device,
    ) -> None:
        self._job = objective.job
        self._objective = objective
        self._stage = stage
        self._seat = seat
        self._read = read
        self._sizes = sizes
        self._device = device
        self._messages = CutMessages(stage, seat, device, "eval")
        self._batch = 0
        self._outputs: dict[int, list[torch.Tensor]] = {}
        self._num_grains_before = 0
        """Number of grains of all batches before the present one."""
        self._sums: dict[str, dict[int, tuple[float, float]]] = {}
        """A sum and a weight for each metric and each of this member's grains."""

    def run(self, shape: StepShape, abort: Abort, epoch: int, step: int) -> Evaluated:
        start_s = time.perf_counter()
        self._sums = {name: {} for name in (_LOSS, *self._job.metrics)}
        executor = Executor(self._seat.name, self, abort)
        self._batch = self._num_grains_before = 0
        while num_samples := [len(grain) for grain in self._sizes.grains(self._batch)]:
            self._messages.begin_step(num_samples)
            schedule = shape.evaluation(split_grains(len(num_samples), self._seat.roster.shares))
            if self._batch == 0:
                check_schedule(schedule)
            replica, stage = self._seat.replica, self._seat.stage
            if replica is not None:
                executor.run(schedule.lists[replica][stage], schedule.needs[replica][stage])
            self._batch += 1
            self._num_grains_before += len(num_samples)
        means = self._means(self._num_grains_before)
        return Evaluated(
            at_s=time.time(),
            epoch=epoch,
            step=step,
            loss=means.pop(_LOSS),
            metrics=means,
            num_samples=self._sizes.num_samples,
            wall_s=time.perf_counter() - start_s,
        )

    def _means(self, num_grains: int) -> dict[str, float]:
        """The means over all grains. Every grain has its own slot, so that the layout makes no difference."""
        nothing = (0.0, 0.0)
        slots = [x for sums in self._sums.values() for grain in range(num_grains) for x in sums.get(grain, nothing)]
        totals = self._seat.add_up(slots)
        means = {}
        for number, name in enumerate(self._sums):
            pairs = totals[2 * num_grains * number : 2 * num_grains * (number + 1)]
            total, weight = math.fsum(pairs[::2]), math.fsum(pairs[1::2])
            means[name] = total / weight if weight else float("nan")
        return means

    def compute(self, action: Action) -> None:
        assert action.kind is Kind.FORWARD
        assert action.number is not None
        grain = action.number
        is_first, is_last = self._stage.first_layer == 0, self._stage.is_last
        samples = self._read(self._batch, grain) if is_first or is_last else None
        batch = samples.to(self._device) if samples is not None else None
        with torch.no_grad(), autocasting(self._job.autocast, self._device):
            if is_first:
                assert batch is not None
                inputs = self._stage.inputs_of(batch)
            else:
                inputs = self._messages.take(Kind.RECEIVE_FORWARD, grain)
            outputs = list(self._stage.run(*inputs))
            if not is_last:
                self._outputs[grain] = outputs
                return
            assert samples is not None
            assert batch is not None
            output = self._stage.model_output(tuple(outputs))
            weight = self._objective.weight(samples, self._sizes.num_samples)
            self._put(_LOSS, grain, self._objective.sum_and_weight(output, batch.target, weight))
            for name, metric in self._job.metrics.items():
                try:
                    value = metric(output, batch.target)
                    self._put(name, grain, sum_and_weight(f"job.metrics[{name!r}]", value, batch.num_samples))
                except JobError:
                    raise
                except Exception as error:
                    raise JobError(f"job.metrics[{name!r}] raised {type(error).__name__}: {error}") from error

    def begin(self, action: Action) -> Pending:
        assert action.number is not None
        if action.kind is Kind.SEND_FORWARD:
            return self._messages.send(action.kind, action.number, self._outputs.pop(action.number))
        assert action.kind is Kind.RECEIVE_FORWARD
        return self._messages.receive(action.kind, action.number)

    def _put(self, name: str, grain: int, sum_and_weight: tuple[torch.Tensor, float]) -> None:
        total, weight = sum_and_weight
        self._sums[name][self._num_grains_before + grain] = float(total), weight

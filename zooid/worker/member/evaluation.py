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
from zooid.worker.member.seat import Messenger, Seat
from zooid.worker.samples.sample_supply import EvaluationSizes
from zooid.worker.step.cut_messages import Boundary
from zooid.worker.step.executor import Executor
from zooid.worker.step.pending import Underway
from zooid.worker.step.stage_runner import Read


class Evaluator:
    """Works through the evaluation data, a batch of grains at a time, and adds up over all members at the end."""

    def __init__(
        self,
        objective: Objective,
        stage: Stage,
        seat: Seat,
        read: Read,
        sizes: EvaluationSizes,
        device: torch.device,
    ) -> None:
        """`read` and `sizes` speak of (batch, grain) and of the grains of a batch; an empty one ends the data."""
        self._job = objective.job
        self._objective = objective
        self._stage = stage
        self._seat = seat
        self._read = read
        self._sizes = sizes
        self._device = device
        self._messenger = Messenger(seat)
        first, end = stage.first_layer, stage.end_layer
        self._into = Boundary(stage.model.values_into(first, "eval") if first > 0 else (), device)
        self._out_of = Boundary(() if stage.is_last else stage.model.values_into(end, "eval"), device)
        self._batch = 0
        self._num_samples: list[int] = []
        self._messages: dict[int, torch.Tensor] = {}
        self._outputs: dict[int, list[torch.Tensor]] = {}
        self._first_grain = 0
        """Number of grains of all batches before the present one."""
        self._found: dict[str, dict[int, tuple[float, float]]] = {}
        """A sum and a weight for each metric and each of this member's grains. The loss stands under an empty name."""

    def run(self, shape: StepShape, abort: Abort, epoch: int, step: int) -> Evaluated:
        start_s = time.perf_counter()
        self._found = {name: {} for name in ("", *self._job.metrics)}
        executor = Executor(self._seat.name, self, abort)
        num_samples = 0
        self._batch = self._first_grain = 0
        while self._num_samples_of_next():
            schedule = shape.evaluation(split_grains(len(self._num_samples), self._seat.roster.shares))
            if self._batch == 0:
                check_schedule(schedule)
            replica, stage = self._seat.replica, self._seat.stage
            if replica is not None:
                executor.run(schedule.lists[replica][stage], schedule.needs[replica][stage])
            num_samples += sum(self._num_samples)
            self._batch += 1
            self._first_grain += len(self._num_samples)
        means = self._means(self._first_grain)
        return Evaluated(
            at_s=time.time(),
            epoch=epoch,
            step=step,
            loss=means.pop(""),
            metrics=means,
            num_samples=num_samples,
            wall_s=time.perf_counter() - start_s,
        )

    def _means(self, num_grains: int) -> dict[str, float]:
        """The means over all grains. Every grain has a place of its own, so that the layout makes no difference."""
        nothing = (0.0, 0.0)
        own = [number for of in self._found.values() for at in range(num_grains) for number in of.get(at, nothing)]
        numbers = self._seat.add_up(own)
        means = {}
        for at, name in enumerate(self._found):
            pairs = numbers[2 * num_grains * at : 2 * num_grains * (at + 1)]
            total, weight = math.fsum(pairs[::2]), math.fsum(pairs[1::2])
            means[name] = total / weight if weight else float("nan")
        return means

    def _num_samples_of_next(self) -> int:
        self._num_samples = self._sizes(self._batch)
        return sum(self._num_samples)

    def compute(self, action: Action) -> None:
        assert action.kind is Kind.FORWARD
        assert action.number is not None
        grain = action.number
        is_first, is_last = self._stage.first_layer == 0, self._stage.is_last
        read = self._read(self._batch, grain) if is_first or is_last else None
        batch = read.to(self._device) if read is not None else None
        with torch.no_grad(), autocasting(self._job.autocast, self._device):
            if is_first:
                assert batch is not None
                inputs = self._stage.inputs_of(batch)
            else:
                inputs = self._into.unpack(self._messages.pop(grain), self._num_samples[grain])
            outputs = list(self._stage.run(*inputs))
            if not is_last:
                self._outputs[grain] = outputs
                return
            assert read is not None
            assert batch is not None
            output = self._stage.model_output(tuple(outputs))
            weight = self._objective.weight(read, self._sizes.num_samples)
            self._add("", grain, self._objective.sum_and_weight(output, batch.target, weight))
            for name, metric in self._job.metrics.items():
                try:
                    value = metric(output, batch.target)
                    self._add(name, grain, sum_and_weight(f"job.metrics[{name!r}]", value, batch.num_samples))
                except Exception as error:
                    if isinstance(error, JobError):
                        raise
                    raise JobError(f"job.metrics[{name!r}] raised {type(error).__name__}: {error}") from error

    def begin(self, action: Action) -> Underway:
        assert action.number is not None
        if action.kind is Kind.SEND_FORWARD:
            message = self._out_of.pack(self._outputs.pop(action.number))
            return self._messenger.send(action.kind, action.number, message)
        assert action.kind is Kind.RECEIVE_FORWARD
        message = self._into.empty(self._num_samples[action.number])
        self._messages[action.number] = message
        return self._messenger.receive(action.kind, action.number, message)

    def _add(self, name: str, grain: int, found: tuple[torch.Tensor, float]) -> None:
        self._found[name][self._first_grain + grain] = float(found[0]), found[1]

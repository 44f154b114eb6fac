"""The actions of a step on a member that sleeps: messages have the planned sizes, and computing takes its time."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from zooid.schedule.actions import Action, Kind
from zooid.worker.gradients.loss_sums import NUM_SUMS
from zooid.worker.member.seat import Seat
from zooid.worker.rehearsed.zero_gradients import ZeroGradients
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.step.cut_messages import Messenger
from zooid.worker.step.pacing import Pacer, reduce_early
from zooid.worker.step.pending import Pending
from zooid.worker.step.stage_runner import FinishedGrains


class SleepingRunner:
    """Behaves towards other members as a stage does, without computing."""

    def __init__(self, state: ZeroGradients, seat: Seat, pacer: Pacer) -> None:
        self._state = state
        self._seat = seat
        self._pacer = pacer
        self._times = pacer.stages[seat.stage]
        self._messenger = Messenger(seat)
        bytes_in = round(pacer.stages[seat.stage - 1].out_bytes) if seat.stage > 0 else 0
        bytes_out = round(self._times.out_bytes)
        self._message_bytes = {
            Kind.SEND_FORWARD: bytes_out,
            Kind.RECEIVE_BACKWARD: bytes_out,
            Kind.RECEIVE_FORWARD: bytes_in,
            Kind.SEND_BACKWARD: bytes_in,
        }
        self._step = 0
        self._sizes: list[int] = []
        """Number of samples of each grain of the step."""
        self._own_grains: tuple[int, ...] = ()
        self._num_backwards_left = 0

    def begin_step(
        self,
        step: int,
        indices: Sequence[npt.NDArray[np.int64]],
        grains: Sequence[Sequence[int]],
        scale: LossScale,
        *,
        finished: FinishedGrains | None = None,
        num_finished: int = 0,
    ) -> None:
        assert self._seat.replica is not None, "copies run no grains"
        self._step = step
        self._sizes = [len(samples) for samples in indices]
        self._own_grains = tuple(grains[self._seat.replica])
        self._num_backwards_left = len(self._own_grains) - num_finished
        self._state.begin(grains)

    @property
    def nominal_weight(self) -> float:
        return self.nominal_weight_of(sum(self._sizes))

    def nominal_weight_of(self, num_samples: int) -> float:
        return float(num_samples)

    @property
    def weight(self) -> float:
        return float(sum(self._sizes[grain] for grain in self._own_grains))

    def count(self) -> torch.Tensor:
        is_last = self._seat.stage == self._seat.roster.num_stages - 1
        return torch.tensor([0.0, 0.0, 0.0, self.nominal_weight if is_last else 0.0], dtype=torch.float64)

    def finished(self) -> FinishedGrains:
        losses = torch.zeros(len(self._sizes), NUM_SUMS, dtype=torch.float64)
        return FinishedGrains(self._step, self._own_grains, losses, tuple(map(float, self._sizes)))

    def drop(self) -> None:
        self._state.drop()

    def compute(self, action: Action) -> None:
        if action.kind is Kind.FORWARD:
            with self._pacer.taking(self._times.forward_s):
                return
        self._num_backwards_left -= 1
        with self._pacer.taking(self._times.backward_s) as sleep_until:
            if self._num_backwards_left == 0:
                reduce_early(self._seat.stage, self._times, self._state.num_buckets, sleep_until, self._state.reduce)

    def apply(self, factor: float | torch.Tensor) -> None:
        with self._pacer.taking(self._times.update_s):
            pass
        if self._seat.replica is not None:  # a copy computes nothing but updates
            self._pacer.end_step()

    def begin(self, action: Action) -> Pending:
        assert action.number is not None
        match action.kind:
            case Kind.SEND_FORWARD | Kind.SEND_BACKWARD:
                message = torch.zeros(self._message_bytes[action.kind], dtype=torch.uint8)
                return self._messenger.send(action.kind, action.number, message)
            case Kind.RECEIVE_FORWARD | Kind.RECEIVE_BACKWARD:
                message = torch.empty(self._message_bytes[action.kind], dtype=torch.uint8)
                return self._messenger.receive(action.kind, action.number, message)
            case Kind.REDUCE:
                return Pending(self._state.reduce(action.number))
            case _:
                return Pending(self._state.sum_tied(action.number))

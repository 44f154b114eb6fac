"""What a member has counted of a step when its gradients are reduced; a GPU may still be computing it."""

import torch

from zooid.core.jobs.job import Job
from zooid.schedule.step_state import StepState
from zooid.worker.step.verdict import clip_factor
from zooid.worker.step.vote_numbers import StageNumbers


class Counted:
    """Σg² of the gradients of scaled losses, and the summed losses, which are read when they are there."""

    def __init__(
        self,
        step: StepState,
        numbers: torch.Tensor,
        weight: float,
        nominal_weight: float,
        learning_rate: float | None,
        start_s: float,
    ) -> None:
        self.step = step
        self.weight = weight
        self.nominal_weight = nominal_weight
        self.learning_rate = learning_rate
        self.start_s = start_s
        self._device_numbers = numbers
        self._numbers = numbers
        self._event: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self, loss_scale: float) -> StageNumbers:
        """The numbers of this member's stage; waits until a GPU has computed them."""
        if self._event is not None:
            self._event.synchronize()
        square_sum, own_loss_sum, loss_sum, weight = self._numbers.tolist()
        return StageNumbers(square_sum / loss_scale**2, own_loss_sum, loss_sum, weight)

    def scale(self, job: Job) -> float | torch.Tensor:
        """The same as a verdict's, of a member that is alone and scales no losses, without waiting for the numbers."""
        scale = self.nominal_weight / self.weight
        if job.clip_norm is None:
            return scale
        norm = self._device_numbers[0].sqrt() * self.nominal_weight / self.weight
        return torch.where(norm > job.clip_norm, clip_factor(job.clip_norm, norm) * scale, scale)

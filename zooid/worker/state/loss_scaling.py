"""The scaling of losses that fp16 needs."""

from dataclasses import dataclass, replace

from zooid.core.jobs.job import AutocastName

_FIRST_SCALE = 2.0**16
_GROWTH_INTERVAL = 2000
"""Steps without overflow after which the scale is doubled, as torch.amp.GradScaler has it."""


@dataclass(frozen=True)
class LossScale:
    """Losses are multiplied by `factor` and gradients divided by it, so that fp16 does not lose the small ones."""

    factor: float = 1.0
    num_good_steps: int = 0

    @staticmethod
    def for_job(name: AutocastName | None) -> "LossScale":
        return LossScale(_FIRST_SCALE) if name == "fp16" else LossScale()

    def after(self, is_finite: bool) -> "LossScale":
        """A step that overflows is left out, and the next ones are scaled by half; long success doubles the scale."""
        if not is_finite:
            return LossScale(self.factor / 2)
        if self.num_good_steps + 1 == _GROWTH_INTERVAL:
            return LossScale(self.factor * 2)
        return replace(self, num_good_steps=self.num_good_steps + 1)

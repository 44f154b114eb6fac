"""Loss scaling, which training in fp16 needs."""

from dataclasses import dataclass, replace

from zooid.core.jobs.job import AutocastName

_FIRST_SCALE = 2.0**16
_GROWTH_INTERVAL = 2000
"""Number of steps without overflow after which the scale doubles, as in torch.amp.GradScaler."""


@dataclass(frozen=True)
class LossScale:
    """A factor on losses, by which gradients are divided again, so that small gradients do not vanish in fp16."""

    factor: float = 1.0
    num_good_steps: int = 0

    @staticmethod
    def for_job(name: AutocastName | None) -> "LossScale":
        return LossScale(_FIRST_SCALE) if name == "fp16" else LossScale()

    def after(self, is_finite: bool) -> "LossScale":
        """The scale after a step: half of it after an overflow, and twice after many steps without one."""
        if not is_finite:
            return LossScale(self.factor / 2)
        if self.num_good_steps + 1 == _GROWTH_INTERVAL:
            return LossScale(self.factor * 2)
        return replace(self, num_good_steps=self.num_good_steps + 1)

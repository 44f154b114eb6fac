"""Requests of a job to its run while it trains: save, keep the best checkpoint, stop."""

import math
from dataclasses import dataclass
from enum import Flag, auto
from typing import Literal, get_args

from zooid.core.errors import JobError

LOSS = "loss"
"""Name of the loss among the numbers of an evaluation."""

Mode = Literal["min", "max"]


class Wish(Flag):
    """A request that `job.on_event` may return; several are joined by `|`."""

    SAVE = auto()
    """Write a checkpoint now."""
    KEEP_BEST = auto()
    """Write a checkpoint now, and keep it as the best one until another replaces it."""
    STOP = auto()
    """Write a checkpoint and end the run."""


NO_WISH = Wish(0)


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """The metric that selects the best checkpoint and may stop a run early."""

    metric: str = LOSS
    """`loss`, or a name in `job.metrics`."""
    mode: Mode = "min"
    """Whether a smaller or a larger number is better."""
    min_change: float = 0.0
    """Minimum improvement: a number is better only if it differs from the best one by more than this."""
    patience: int | None = None
    """Number of consecutive evaluations without improvement after which the run stops; None never stops it."""

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise JobError(f"`metric` of zooid.Monitor is {self.metric!r}; give 'loss' or a name in job.metrics")
        if self.mode not in get_args(Mode):
            raise JobError(f"`mode` of zooid.Monitor is {self.mode!r}; give 'min' or 'max'")
        if isinstance(self.min_change, bool) or not isinstance(self.min_change, int | float) or self.min_change < 0:
            raise JobError(f"`min_change` of zooid.Monitor is {self.min_change!r}; give a number of at least 0")
        whole = isinstance(self.patience, int) and not isinstance(self.patience, bool)
        if self.patience is not None and not (whole and self.patience >= 1):
            raise JobError(
                f"`patience` of zooid.Monitor is {self.patience!r}; give a whole number of at least 1, or None"
            )

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether `value` improves on `best`; a number that is not finite never does.

        >>> Monitor(mode="max", min_change=0.1).is_better(0.75, 0.7)
        False
        """
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        gain = best - value if self.mode == "min" else value - best
        return gain > self.min_change

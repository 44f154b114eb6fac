"""The input and the output of a fit of step times: probes and predictions."""

from typing import Annotated, TypeAlias

import msgspec

from zooid.core.records import Record, require

Placement: TypeAlias = tuple[int, ...]
"""Number of members on each node: (3, 1) is three members on one node and one on another."""


class StepProbe(Record, frozen=True, kw_only=True):
    """One measured step of data-parallel training."""

    placement: Placement
    local_batch: int
    """Number of samples of one member in the step."""
    step_s: float
    sync_s: float | None = None
    """The part of `step_s` in which members only waited for gradients; None where it was not measured."""

    def __post_init__(self) -> None:
        check_placement(self.placement, self.local_batch)
        require(0 < self.step_s < float("inf"), f"`step_s` is {self.step_s}; it must be finite and above 0")
        require(
            self.sync_s is None or 0 <= self.sync_s <= self.step_s,
            f"`sync_s` is {self.sync_s}; it is a part of the step and must be from 0 to `step_s`, {self.step_s}",
        )


class StepTime(Record, frozen=True, kw_only=True):
    """The predicted time of a step."""

    step_s: Annotated[float, msgspec.Meta(gt=0)]
    spread: float
    """Standard deviation of the logarithm of the time. About two thirds of measured steps are within
    step_s × e^±spread."""
    compute_s: float
    """The time of the step if members exchanged nothing and never waited for one another."""
    beyond: tuple[str, ...] = ()
    """How the setting lies outside the measured range, in words; empty where it lies inside."""


def check_placement(placement: Placement, local_batch: int) -> None:
    """Raise an error for a placement or a batch that no step can have."""
    require(
        len(placement) > 0 and min(placement) > 0,
        f"`placement` is {placement}; it is the number of members on each node, at least one node and 1 on each",
    )
    require(local_batch > 0, f"`local_batch` is {local_batch}; it must be at least 1")

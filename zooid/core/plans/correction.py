"""What a run has corrected in a profile and in links, for people to read."""

from typing import Literal

from zooid.core.records import Record

CorrectedPart = Literal["forward", "backward", "update", "bandwidth", "round trip", "step"]


class Correction(Record, frozen=True, kw_only=True):
    """One number of a prediction, and what a run says about it."""

    run: str
    """URL of the run's folder; empty if the measurements are not from a folder."""
    part: CorrectedPart
    where: str
    """The stage and its offer, a link, or a member."""
    predicted: float
    """The predicted number: bytes per second for a bandwidth, otherwise seconds."""
    measured: float

    @property
    def factor(self) -> float | None:
        """The measured number over the predicted one; None if nothing was predicted."""
        return self.measured / self.predicted if self.predicted > 0 else None

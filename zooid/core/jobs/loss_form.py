"""The form of a job's loss: how the losses of a step's grains add up to the loss of the whole step."""

from typing import Literal

from zooid.core.records import Record, require_positive

LossKind = Literal["mean", "label_mean", "sum", "weighted"]


class LossForm(Record, frozen=True, kw_only=True):
    """The form of a loss, which is found when a job is checked and is the same for all members of a run."""

    kind: LossKind = "mean"
    """Mean over samples, mean over labels that are not ignored, sum, or a sum that the loss returns with its weight."""
    labels: str = ""
    """Name of the input that holds the labels of a mean over labels; empty if they are the target."""
    ignored: int = -100
    """Label that a mean over labels ignores."""
    is_shifted: bool = False
    """Whether the first label of each sample is ignored too, as in a model that predicts the next token."""
    weight_per_sample: float = 1.0
    """Weight of a typical sample, by which gradients are divided before the true weight of the step is known."""

    def __post_init__(self) -> None:
        require_positive(self, "weight_per_sample")

    def nominal_weight(self, num_samples: int) -> float:
        """Return the expected total weight of some samples; it is exact for sums and means over samples."""
        return 1.0 if self.kind == "sum" else self.weight_per_sample * num_samples

    @property
    def meaning(self) -> str:
        """Description of the form in words."""
        if self.kind == "label_mean":
            labels = f"the input {self.labels!r}" if self.labels else "the target"
            return f"a mean over the labels in {labels} other than {self.ignored}" + (
                ", without the first of each sample" if self.is_shifted else ""
            )
        return {"mean": "a mean over the samples", "sum": "a sum", "weighted": "a sum with its weight"}[self.kind]

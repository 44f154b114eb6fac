"""What a job's loss is of a grain, so that the grains of a step add up to what the loss is of the whole step."""

from typing import Literal

from zooid.core.records import Record, require

LossKind = Literal["mean", "label_mean", "sum", "weighted"]


class LossForm(Record, frozen=True, kw_only=True):
    """Found when a job is checked, and the same for all members of a run."""

    kind: LossKind = "mean"
    """Mean over samples, mean over labels that are not ignored, sum, or a sum that the loss returns with its weight."""
    labels: str = ""
    """Name of the input that holds the labels; empty where they are the target. For means over labels."""
    ignored: int = -100
    """Label that does not count. For means over labels."""
    is_shifted: bool = False
    """Whether the first label of each sample does not count either, as where a model predicts the next token."""
    weight_per_sample: float = 1.0
    """Weight of a typical sample. Gradients are divided by it before the true weight of the step is known."""

    def __post_init__(self) -> None:
        require(
            self.weight_per_sample > 0, f"`weight_per_sample` is {self.weight_per_sample}; it must be a number above 0"
        )

    def nominal_weight(self, num_samples: int) -> float:
        """What so many samples of a step are expected to weigh together; exact for sums and means over samples."""
        return 1.0 if self.kind == "sum" else self.weight_per_sample * num_samples

    @property
    def meaning(self) -> str:
        """The form in words."""
        if self.kind == "label_mean":
            labels = f"the input {self.labels!r}" if self.labels else "the target"
            return f"a mean over the labels in {labels} other than {self.ignored}" + (
                ", without the first of each sample" if self.is_shifted else ""
            )
        return {"mean": "a mean over the samples", "sum": "a sum", "weighted": "a sum with its weight"}[self.kind]

"""What is expected of each model: that it is cut and exact, or one stage and exact, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.fidelity import models
from tests.fidelity.models import CLASSES, WIDTH
from zooid.core.jobs.job import Job

NUM_SAMPLES = 16
BATCH_SIZE = 8
GRAIN_SIZE = 2

Outcome = Literal["cut", "whole"]


@dataclass(frozen=True)
class Case:
    """One model, and what becomes of it."""

    model: Callable[[], nn.Module]
    outcome: Outcome = "cut"
    why: str = ""
    """Words that the reason has, where the model is not cut."""
    loss: Callable[[Any, Any], Any] | None = F.cross_entropy
    grain_by_grain: bool = False
    """True where the plain loop has to run grain by grain as well: statistics and random numbers belong to a grain."""
    grain_size: int = GRAIN_SIZE
    is_repeatable: bool = True
    """False where Python state counts forwards, so that a single member and one grain a step are compared."""

    @property
    def name(self) -> str:
        return getattr(self.model, "__name__", str(self.model))

    def job(self) -> Job:
        return Job(
            model=lambda: self.model().double(),
            loss=self.loss,
            data=self._data,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.05, momentum=0.9),
            batch_size=BATCH_SIZE,
            grain_size=self.grain_size,
            epochs=2,
            seed=3,
        )

    def _data(self) -> Any:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(NUM_SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
        target = torch.randint(CLASSES, (NUM_SAMPLES,), generator=generator)
        if self.loss is not None:
            return TensorDataset(inputs, target)
        return [({"x": x, "labels": label}, None) for x, label in zip(inputs, target, strict=True)]


def of_logits(output: Any, target: Tensor) -> Tensor:
    """The loss of a model that returns more than its logits."""
    logits = output["logits"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output.logits
    return F.cross_entropy(logits, target)


def contrastive(output: Tensor, target: Tensor) -> Tensor:
    """Compares every sample with every other one of its batch."""
    return F.cross_entropy(output @ output.t(), torch.arange(len(output)))


CASES = [
    Case(models.Plain),
    Case(models.OwnBackward),
    Case(models.ReversedGradient),
    Case(models.TwoResults),
    Case(models.OwnWeight),
    Case(models.InputGradient),
    Case(models.BackwardHook),
    Case(models.BackwardPreHook),
    Case(models.ParameterHook),
    Case(models.ClampingHook),
    Case(models.AccumulationHook),
    Case(models.TensorHook),
    Case(models.TensorHookOfModel, "whole", "hook on gradients"),
    Case(models.ForwardHook),
    Case(models.ForwardPreHook),
    Case(models.ForwardHookWithGradient),
    Case(models.Recomputed),
    Case(models.RecomputedReentrant),
    Case(models.RecomputedDropout, grain_by_grain=True),
    Case(models.RecomputedInSegments, "whole", "recomputed in backward"),
    Case(models.RecomputedCall),
    Case(models.Counter, "whole", "attribute calls changes", grain_size=BATCH_SIZE, is_repeatable=False),
    Case(models.Collects, "whole", "attribute seen changes", grain_size=BATCH_SIZE, is_repeatable=False),
    Case(models.Remembers, "whole", "Python state", grain_size=BATCH_SIZE, is_repeatable=False),
    Case(models.PythonRandom, grain_by_grain=True),
    Case(models.NumpyRandom, grain_by_grain=True),
    Case(models.PythonRandomOfModel, "whole", "Python or numpy", grain_by_grain=True),
    Case(models.Dropout, grain_by_grain=True),
    Case(models.SkippedLayers, grain_by_grain=True),
    Case(models.NeverSkippedLayers, grain_by_grain=True),
    Case(models.StochasticDepth, grain_by_grain=True),
    Case(models.TensorMadeInForward),
    Case(models.TensorAttribute),
    Case(models.Branches, grain_by_grain=True),
    Case(models.Loops, grain_by_grain=True),
    Case(models.BranchOfModel, "whole", "depends on the values of tensors (models.py", grain_by_grain=True),
    Case(models.ChecksValues),
    Case(models.ManySamples, "whole", "number of samples", grain_by_grain=True),
    Case(models.FixedSamples, "whole", "number of samples", grain_by_grain=True),
    Case(models.MixtureOfExperts),
    Case(models.Ragged, "whole", "depends on the values of tensors"),
    Case(models.DenseMixture),
    Case(models.MovingCodebook, grain_by_grain=True),
    Case(models.SpectralNorm, grain_by_grain=True),
    Case(models.SpectralParametrization, grain_by_grain=True),
    Case(models.WeightNorm),
    Case(models.Orthogonal),
    Case(models.TiedWeights),
    Case(models.CalledTwice),
    Case(models.Frozen),
    Case(models.Stops),
    Case(models.InPlace),
    Case(models.BatchNorm, grain_by_grain=True),
    Case(models.Recurrent),
    Case(models.Autocasts, grain_by_grain=True),
    Case(models.Fourier),
    Case(models.Mapped, "whole", "cut into layers it fails"),
    Case(models.Scripted, "whole"),
    Case(models.DictOutput, loss=of_logits),
    Case(models.TupleOutput, loss=of_logits),
    Case(models.ObjectOutput, loss=of_logits),
    Case(models.OpinionOutput, "whole", "no tensor can be found", loss=of_logits),
    Case(models.OwnLoss, loss=None),
    Case(models.PassesObjects),
    Case(models.EncoderDecoder),
    Case(models.Squeezes),
]

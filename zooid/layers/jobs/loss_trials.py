"""Finds the form of a job's loss by trying it on samples alone and together.

The losses of grains have to add up to the loss of their step. Whether a loss is a mean over samples, a mean over labels
or a sum shows in its values. With samples a and b, a sum has L(ab) = L(a) + L(b). A mean has
L(ab) = (w(a) L(a) + w(b) L(b)) / (w(a) + w(b)), where the weights w are numbers of samples or of labels.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec import structs
from torch import nn

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.jobs.loss_form import LossForm
from zooid.layers.jobs.batches import Batch
from zooid.layers.jobs.loss_pairs import NotTried, SamplePair, model_pair, noisy_pair, output_pair
from zooid.layers.jobs.objective import count_labels, labels_of

_IGNORED_BY_LOSSES = (-100, 0, -1, 255)
"""Labels that commonly mark padding."""
_IGNORED_BY_MODELS = (-100, 255)
"""Labels ignored by models that compute their own loss: transformers uses 255 for segmentation, otherwise -100."""
_LABEL_NAMES = ("labels", "label", "targets", "target")
_TOLERANCE = 1e-5
"""Largest relative difference that rounding explains, for single precision and sums over thousands of labels."""
_MIN_EVIDENCE = 1e-6
"""A smaller difference between two forms may be due to rounding, too."""


@dataclass(frozen=True)
class _Trial:
    """Losses of the first and the second sample of a pair, of both together, and of the first one twice."""

    batch: Batch
    first: float
    second: float
    both: float
    first_twice: float

    @property
    def is_constant(self) -> bool:
        return self.first == self.second == self.both == self.first_twice

    def fits(self, form: LossForm) -> bool:
        """Whether a loss of this form has these values, up to rounding."""
        return self.error(form) <= _TOLERANCE

    def error(self, form: LossForm) -> float:
        """Return the distance of the values from a loss of this form, relative to the largest value."""
        if form.kind == "sum":
            return self._relative(self.both - self.first - self.second, self.first_twice - 2 * self.first)
        weights = [_weight(form, self.batch, row) for row in (0, 1)]
        if sum(weights) == 0:
            return 0.0  # the mean over nothing can be anything
        terms = zip(weights, (self.first, self.second), strict=True)
        mean = sum(weight * loss for weight, loss in terms if weight) / sum(weights)
        return self._relative(self.both - mean, self.first_twice - self.first if weights[0] else 0.0)

    def _relative(self, *differences: float) -> float:
        losses = (self.first, self.second, self.both)
        scale = max((abs(loss) for loss in losses if math.isfinite(loss)), default=0.0)
        if any(map(math.isnan, differences)):
            return math.inf
        return max(map(abs, differences)) / scale if scale else 0.0


def find_form(job: Job, model: nn.Module, pairs: Sequence[tuple[Batch, Any]]) -> LossForm:
    """Return the form of a job's loss, given pairs of samples with the model's output in training mode.

    A loss that fits no form is rejected, since it would depend on the grain.
    """
    if job.loss is None:
        return _form_of_pairs(job, [model_pair(job, pairs[-1][0], model)])
    noisy = noisy_pair(job, *pairs[0])
    plain = [output_pair(job, batch, output) for batch, output in pairs]
    try:
        return _form_of_pairs(job, [noisy, *plain] if noisy is not None else plain)
    except NotTried:
        return _form_of_pairs(job, [model_pair(job, batch, model) for batch, _ in pairs])


def _form_of_pairs(job: Job, pairs: Sequence[SamplePair]) -> LossForm:
    first = pairs[0]
    value = first.loss((0, 1))
    if isinstance(value, tuple) and len(value) == 2:
        return _weighted_form(job, pairs)
    if first.is_random():  # its values say nothing, so that it is taken to be a mean, as documented
        return LossForm()
    trials = [_trial(pair, pair.batch) for pair in pairs]
    if not first.is_model_run and all(trial.is_constant for trial in trials):
        raise NotTried("the loss does not depend on the rows of the output, as where the output contains a loss")
    for forms in _label_forms(job, first.batch):
        fitting = [form for form in forms if all(trial.fits(form) for trial in trials)]
        form = _ignoring_form(fitting, first)
        if form is not None:
            count = sum(count_labels(form, labels_of(form, pair.batch)) for pair in pairs)
            return structs.replace(form, weight_per_sample=max(1, count) / (2 * len(pairs)))
    for form in (LossForm(), LossForm(kind="sum")):
        if all(trial.fits(form) for trial in trials):
            return form
    if job.grain_size == job.batch_size:  # one grain a step: nothing has to add up
        return LossForm()
    trial = next(trial for trial in trials if not trial.fits(LossForm()))
    what = "job.loss" if job.loss is not None else "the model's own loss"
    raise JobError(
        f"{what} is {trial.first:.6g} for one sample, {trial.second:.6g} for another and {trial.both:.6g} for both: "
        "neither a sum nor a mean over samples or labels, so that it would depend on how a step is cut into grains; "
        "give a job.loss that returns (sum, weight), or set job.grain_size to job.batch_size "
        f"({job.batch_size}), so that every step is one grain"
    )


def _trial(pair: SamplePair, batch: Batch) -> _Trial:
    # A loss may squeeze a batch of one, so that it gets every sample at least twice; a model takes any batch.
    once = 1 if pair.is_model_run else 2
    first, second = (0,) * once, (1,) * once
    losses = [float(pair.loss(rows, batch)) for rows in (first, second, first + second, first + first)]
    return _Trial(batch, *losses)


def _label_forms(job: Job, batch: Batch) -> Iterator[list[LossForm]]:
    """Yield the means over labels that this loss might be, for one ignored label after the other."""
    named = {"": batch.target, **{name: batch.kwargs.get(name) for name in _LABEL_NAMES}}
    name = next((name for name, labels in named.items() if _is_labels(labels)), None)
    if name is None:
        return
    labels = named[name]
    declared = getattr(job.loss, "ignore_index", None)
    common = _IGNORED_BY_LOSSES if job.loss is not None else _IGNORED_BY_MODELS
    for ignored in dict.fromkeys((*([declared] if isinstance(declared, int) else []), *common)):
        shifts = (False, True) if labels.dim() == 2 and labels.shape[-1] > 1 else (False,)
        yield [
            LossForm(kind="label_mean", labels=name, ignored=ignored, is_shifted=is_shifted) for is_shifted in shifts
        ]


def _is_labels(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32) and value.dim() > 0


def _ignoring_form(forms: Sequence[LossForm], pair: SamplePair) -> LossForm | None:
    """Return the form that fits best when some labels are set to the ignored one; None where they still count."""
    if not forms:
        return None
    form = forms[0]
    labels = _partly_ignored(form, labels_of(form, pair.batch))
    if labels is None:
        return None
    kwargs = {**pair.batch.kwargs, form.labels: labels} if form.labels else pair.batch.kwargs
    target = pair.batch.target if form.labels else labels
    batch = Batch(pair.batch.args, kwargs, target, pair.batch.num_samples)
    try:
        trial = _trial(pair, batch)
    except JobError:  # this loss does not take such a label
        return None
    best = min(forms, key=trial.error)
    # Where all losses are about equal, a mean over samples fits them as well, and is right more often.
    is_clear = trial.error(LossForm()) > max(_MIN_EVIDENCE, 4 * trial.error(best))
    return best if trial.fits(best) and is_clear else None


def _partly_ignored(form: LossForm, labels: torch.Tensor) -> torch.Tensor | None:
    """Return valid labels for two samples, of which some are set to the ignored one; None without valid labels.

    The first sample keeps its first half, and the second its last label. So the numbers of samples, of labels and of
    labels without the first are in three different proportions.
    """
    valid = labels[labels != form.ignored]
    if not len(valid):
        return None
    changed = torch.where(labels == form.ignored, valid[0], labels)
    length = labels.shape[-1] if labels.dim() > 1 else 1
    if length == 1:
        changed[1] = form.ignored
    else:
        changed[0, ..., -(-length // 2) :] = form.ignored
        changed[1, ..., :-1] = form.ignored
    return changed


def _weight(form: LossForm, batch: Batch, row: int) -> int:
    return count_labels(form, labels_of(form, batch)[row : row + 1]) if form.kind == "label_mean" else 1


def _weighted_form(job: Job, pairs: Sequence[SamplePair]) -> LossForm:
    """Return the form of a loss that returns a sum and its weight, which must both add up over samples."""
    total_weight = 0.0
    for pair in pairs:
        (first, first_weight), (second, second_weight), (both, both_weight) = (
            tuple(map(float, pair.loss(rows))) for rows in ((0, 0), (1, 1), (0, 0, 1, 1))
        )
        total_weight += both_weight / 2
        sum_error = abs(first + second - both)
        weight_error = abs(first_weight + second_weight - both_weight)
        sums_add_up = sum_error <= _TOLERANCE * max(abs(first), abs(second), abs(both))
        adds_up = sums_add_up and weight_error <= _TOLERANCE * abs(both_weight)
        if not adds_up and job.grain_size != job.batch_size and not pair.is_random():
            raise JobError(
                f"job.loss returns ({first:.6g}, {first_weight:.6g}) for some samples, ({second:.6g}, "
                f"{second_weight:.6g}) for others and ({both:.6g}, {both_weight:.6g}) for all of them, which does not "
                "add up; return the sum of the losses, not their mean, and the number to divide the sum by"
            )
    return LossForm(kind="weighted", weight_per_sample=max(1.0, total_weight) / (2 * len(pairs)))

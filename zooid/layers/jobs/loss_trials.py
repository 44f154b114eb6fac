"""Finds the form of a job's loss by trying it on samples alone and together.

A loss of grains has to add up to the loss of their step. Whether it is a mean over samples, a mean over labels or a sum
cannot be read from a function, but shows in its values: with samples a and b, a sum has L(ab) = L(a) + L(b), and a mean
has L(ab) = (w(a) L(a) + w(b) L(b)) / (w(a) + w(b)), where the weights w are numbers of samples or of labels.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from msgspec import structs
from torch import nn
from torch.utils._pytree import tree_map

from zooid.core.errors import JobError, ZooidError
from zooid.core.jobs.job import Job
from zooid.core.jobs.loss_form import LossForm
from zooid.layers.disk_tensors import is_on_disk, to_disk
from zooid.layers.jobs.batches import Batch
from zooid.layers.jobs.objective import count_labels, labels_of, loss_value

_IGNORED_BY_LOSSES = (-100, 0, -1, 255)
"""Labels by which padding is commonly marked."""
_IGNORED_BY_MODELS = (-100, 255)
"""Those of models that compute their own loss: transformers has 255 for segmentation, and -100 otherwise."""
_LABEL_NAMES = ("labels", "label", "targets", "target")
_TOLERANCE = 1e-5
"""Largest relative difference that rounding explains, for single precision and sums over thousands of labels."""
_LEAST_EVIDENCE = 1e-6
"""A smaller difference between two forms may be due to rounding, too."""

Rows = Sequence[int]
Evaluate = Callable[[Rows, Batch], Any]
"""(rows of the pair, its batch, of which labels may have been changed) -> what the loss returns."""


@dataclass(frozen=True)
class _Pair:
    """Two samples of which any rows, with repetition, can be given to the loss."""

    batch: Batch
    evaluate: Evaluate
    is_model_run: bool
    """Whether each evaluation runs the model, which may take long."""


@dataclass(frozen=True)
class _Probe:
    """Losses of the first and the second sample of a pair, of both together, and of the first one twice."""

    batch: Batch
    first: float
    second: float
    both: float
    first_twice: float

    @property
    def is_constant(self) -> bool:
        return self.first == self.second == self.both == self.first_twice

    def is_explained(self, form: LossForm) -> bool:
        """Whether a loss of this form has these values, up to rounding."""
        return self.error(form) <= _TOLERANCE

    def error(self, form: LossForm) -> float:
        """How far the values are from those of a loss of this form, in parts of the largest."""
        if form.kind == "sum":
            return self._relative(self.both - self.first - self.second, self.first_twice - 2 * self.first)
        weights = [_weight(form, self.batch, row) for row in (0, 1)]
        if sum(weights) == 0:
            return 0.0  # the mean over nothing can be anything
        parts = zip(weights, (self.first, self.second), strict=True)
        mean = sum(weight * loss for weight, loss in parts if weight) / sum(weights)
        return self._relative(self.both - mean, self.first_twice - self.first if weights[0] else 0.0)

    def _relative(self, *differences: float) -> float:
        losses = (self.first, self.second, self.both)
        size = max((abs(loss) for loss in losses if math.isfinite(loss)), default=0.0)
        largest = max((abs(difference) for difference in differences), key=lambda value: (math.isnan(value), value))
        if math.isnan(largest):
            return math.inf
        return largest / size if size else 0.0


class _NotTried(JobError):
    """The loss does not take the rows that it was to be tried on."""


def find_form(job: Job, model: nn.Module, pairs: Sequence[tuple[Batch, Any]]) -> LossForm:
    """The form of a job's loss, from pairs of samples and what the model has made of each pair in training.

    A loss that no form explains is refused, since it would depend on the grain.
    """
    if job.loss is None:
        return _form_of_pairs(job, [_model_pair(job, pairs[-1][0], model)])
    noisy = _with_noise(job, *pairs[0])
    try:
        return _form_of_pairs(job, [*noisy, *(_output_pair(job, batch, output) for batch, output in pairs)])
    except _NotTried:
        return _form_of_pairs(job, [_model_pair(job, batch, model) for batch, _ in pairs])


def _form_of_pairs(job: Job, pairs: Sequence[_Pair]) -> LossForm:
    first = pairs[0]
    value = _evaluated(first, (0, 1), first.batch)
    if isinstance(value, tuple) and len(value) == 2:
        return _weighted_form(job, pairs)
    if _is_random(first):  # its values say nothing; it is taken at its word
        return LossForm()
    probes = [_probe(pair, pair.batch) for pair in pairs]
    if not first.is_model_run and all(probe.is_constant for probe in probes):
        raise _NotTried("the loss does not depend on the rows of the output, as where the output carries a loss")
    for forms in _label_forms(job, first.batch):
        explaining = [form for form in forms if all(probe.is_explained(form) for probe in probes)]
        form = _ignoring_form(explaining, first)
        if form is not None:
            count = sum(count_labels(form, labels_of(form, pair.batch)) for pair in pairs)
            return structs.replace(form, weight_per_sample=max(1, count) / (2 * len(pairs)))
    for form in (LossForm(), LossForm(kind="sum")):
        if all(probe.is_explained(form) for probe in probes):
            return form
    if job.grain_size == job.batch_size:  # one grain a step: nothing has to add up
        return LossForm()
    raise _unexplained(job, probes)


def _output_pair(job: Job, batch: Batch, output: Any) -> _Pair:
    """Rows of what the model has made of two samples; where batch statistics matter, they stay those of the two."""

    def evaluate(rows: Rows, changed: Batch) -> Any:
        return loss_value(job, _rows(_exact(output), rows), _rows(changed.target, rows))

    return _Pair(batch, evaluate, is_model_run=False)


def _with_noise(job: Job, batch: Batch, output: Any) -> list[_Pair]:
    """The first pair with other outputs; none where the loss does not take them, as of what is no probability.

    All losses may be equal with initial weights, and say nothing about what samples weigh.
    """
    generator = torch.Generator().manual_seed(0)

    def disturbed(leaf: Any) -> Any:
        is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf + torch.randn(leaf.shape, generator=generator).to(leaf.dtype) if is_real else leaf

    pair = _output_pair(job, batch, tree_map(disturbed, output))
    try:
        value = pair.evaluate((0, 1), batch)
    except Exception:  # noqa: BLE001  # whatever it is, this loss is tried without noise
        return []
    numbers = value if isinstance(value, tuple) else (value,)
    return [pair] if all(math.isfinite(float(number)) for number in numbers) else []


def _model_pair(job: Job, batch: Batch, model: nn.Module) -> _Pair:
    """Rows of two samples, run through the model in evaluation, where no sample depends on the others."""

    def evaluate(rows: Rows, changed: Batch) -> Any:
        args, kwargs, target = _rows((changed.args, changed.kwargs, changed.target), rows)
        torch.manual_seed(0)
        with _in_evaluation(model), _in_single_precision(model):
            output = model(*args, **kwargs)
        if job.loss is None and getattr(output, "loss", None) is None:  # some models compute none in evaluation
            torch.manual_seed(0)
            output = model(*args, **kwargs)
        return loss_value(job, output, target)

    return _Pair(batch, evaluate, is_model_run=True)


def _probe(pair: _Pair, batch: Batch) -> _Probe:
    # A loss may squeeze a batch of one, which no model that is run for this minds.
    once = 1 if pair.is_model_run else 2
    first, second = (0,) * once, (1,) * once
    losses = [_number(pair, rows, batch) for rows in (first, second, first + second, first + first)]
    return _Probe(batch, *losses)


def _number(pair: _Pair, rows: Rows, batch: Batch) -> float:
    return float(_evaluated(pair, rows, batch))


def _evaluated(pair: _Pair, rows: Rows, batch: Batch) -> Any:
    try:
        return pair.evaluate(rows, batch)
    except ZooidError:
        raise
    except Exception as error:
        raise _NotTried(
            f"job.loss fails on {len(rows)} samples, although not on two: {type(error).__name__}: {error}; grains may "
            "have any number of samples"
        ) from error


def _is_random(pair: _Pair) -> bool:
    if pair.is_model_run:
        return False
    values = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        values.append(_number(pair, (0, 1), pair.batch))
    return values[0] != values[1]


def _label_forms(job: Job, batch: Batch) -> Iterator[list[LossForm]]:
    """The means over labels that this loss might be, by the label that is ignored."""
    named = {"": batch.target, **{name: batch.kwargs.get(name) for name in _LABEL_NAMES}}
    name = next((name for name, labels in named.items() if _is_labels(labels)), None)
    if name is None:
        return
    labels = named[name]
    own = getattr(job.loss, "ignore_index", None)
    commonly = _IGNORED_BY_LOSSES if job.loss is not None else _IGNORED_BY_MODELS
    for ignored in dict.fromkeys((*([own] if isinstance(own, int) else []), *commonly)):
        shifts = (False, True) if labels.dim() == 2 and labels.shape[-1] > 1 else (False,)
        yield [
            LossForm(kind="label_mean", labels=name, ignored=ignored, is_shifted=is_shifted) for is_shifted in shifts
        ]


def _is_labels(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32) and value.dim() > 0


def _ignoring_form(forms: Sequence[LossForm], pair: _Pair) -> LossForm | None:
    """The form that explains best what happens when labels are set to the ignored one; None where they still count."""
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
        probe = _probe(pair, batch)
    except JobError:  # this loss does not take such a label
        return None
    best = min(forms, key=probe.error)
    # Where all losses are about equal, a mean over samples explains them as well, and is right more often.
    is_clear = probe.error(LossForm()) > max(_LEAST_EVIDENCE, 4 * probe.error(best))
    return best if probe.is_explained(best) and is_clear else None


def _partly_ignored(form: LossForm, labels: torch.Tensor) -> torch.Tensor | None:
    """Labels of two samples that are all valid, but for some that are ignored: more of the second sample's.

    Of the first sample the first half remains, of the second the last label. So the numbers of samples, of labels and
    of labels without the first are in three different proportions.
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


def _weighted_form(job: Job, pairs: Sequence[_Pair]) -> LossForm:
    """The form of a loss that returns a sum and its weight; both have to add up over samples."""
    total_weight = 0.0
    for pair in pairs:
        (one, one_weight), (other, other_weight), (both, weight) = (
            tuple(map(float, _evaluated(pair, rows, pair.batch))) for rows in ((0, 0), (1, 1), (0, 0, 1, 1))
        )
        total_weight += weight / 2
        size = max(abs(one), abs(other), abs(both))
        adds_up = abs(one + other - both) <= _TOLERANCE * size and abs(one_weight + other_weight - weight) <= (
            _TOLERANCE * abs(weight)
        )
        if not adds_up and job.grain_size != job.batch_size and not _is_random_pair(pair):
            raise JobError(
                f"job.loss returns ({one:.6g}, {one_weight:.6g}) for some samples, ({other:.6g}, {other_weight:.6g}) "
                f"for others and ({both:.6g}, {weight:.6g}) for all of them, which does not add up; return the sum of "
                "the losses, not their mean, and the number that the sum is to be divided by"
            )
    return LossForm(kind="weighted", weight_per_sample=max(1.0, total_weight) / (2 * len(pairs)))


def _is_random_pair(pair: _Pair) -> bool:
    values = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        values.append(tuple(map(float, _evaluated(pair, (0, 1), pair.batch))))
    return values[0] != values[1]


def _unexplained(job: Job, probes: Sequence[_Probe]) -> JobError:
    probe = next(probe for probe in probes if not probe.is_explained(LossForm()))
    what = "job.loss" if job.loss is not None else "the model's own loss"
    return JobError(
        f"{what} is {probe.first:.6g} for one sample, {probe.second:.6g} for another and {probe.both:.6g} for both: "
        "neither a sum nor a mean over samples or labels, so that it would depend on how a step is cut into grains; "
        "give a job.loss that returns (sum, weight), or set job.grain_size to job.batch_size "
        f"({job.batch_size}), so that every step is one grain"
    )


def _rows(value: Any, rows: Rows) -> Any:
    """These rows of everything that has one for each of the two samples."""

    def taken(leaf: Any) -> Any:
        is_of_samples = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) == 2
        return leaf[list(rows)] if is_of_samples else leaf

    return tree_map(taken, value)


def _exact(output: Any) -> Any:
    """In single precision at least: rounding must not hide what samples weigh."""

    def widened(leaf: Any) -> Any:
        is_short = isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)
        return leaf.float() if is_short else leaf

    return tree_map(widened, output)


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():
            module.training = is_training


@contextmanager
def _in_single_precision(model: nn.Module) -> Iterator[None]:
    """Short types are widened for a while; what was on disk is there in its wide form, too."""
    short = {
        tensor: tensor.data
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.dtype in (torch.float16, torch.bfloat16)
    }
    for tensor, values in short.items():
        tensor.data = to_disk(values.float()) if is_on_disk(values) else values.float()
    try:
        yield
    finally:
        for tensor, values in short.items():
            tensor.data = values

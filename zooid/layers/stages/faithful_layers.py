"""Layers that are known to compute what the model computes, or the model itself as one layer."""

import logging
from collections.abc import Sequence

from zooid.core.errors import LayerError
from zooid.layers.jobs.batches import Batch, collate, varying_sizes
from zooid.layers.jobs.job_checks import EXAMPLE_SIZE, CheckedJob, check_evaluation
from zooid.layers.jobs.model_builder import buffers_restored
from zooid.layers.stages.comparison import Difference, find_difference, run_model
from zooid.layers.stages.layered_model import LayeredModel
from zooid.layers.stages.whole_model import whole_model
from zooid.layers.tracing.job_trace import trace_job
from zooid.layers.tracing.python_state import changed_attribute, python_state

_LATER_SAMPLES = 3
"""Another number of samples than the example has, so that a fixed one shows."""

_log = logging.getLogger(__name__)


def faithful_layers(checked: CheckedJob) -> LayeredModel:
    """The layers of a checked job, compared with the untouched model on real samples.

    Where the model cannot be cut, or its layers compute something else, it is one layer, and `why_whole` says why.
    """
    job, model, example = checked.job, checked.model, checked.example
    if job.whole:
        return whole_model(model, example, "job.whole is True")
    if reason := varying_sizes(job, checked.data, check_evaluation(job)):
        return whole_model(model, example, reason)
    before = python_state(model)
    with buffers_restored(model):
        run_model(job, model, example)  # the second forward: what it changes is no cache that the first has filled
    if attribute := changed_attribute(before, python_state(model)):
        return whole_model(
            model,
            example,
            f"its attribute {attribute} changes from one forward to the next, so that a step that is run again need "
            "not be the same step; keep such state in buffers",
        )
    layered = trace_job(job, example)
    if layered.whole is not None:
        return whole_model(model, example, layered.why_whole)
    batches = [example, *_other_batches(checked)]
    try:
        difference = find_difference(job, model, layered, batches)
    except LayerError as error:
        return whole_model(model, example, str(error))
    if difference is None:
        return layered
    _log.warning("the layers of the model were not used: %s", difference)
    return whole_model(model, example, _in_words(difference))


def _other_batches(checked: CheckedJob) -> Sequence[Batch]:
    """Further samples, in another number."""
    indices = [(EXAMPLE_SIZE + number) % checked.num_samples for number in range(_LATER_SAMPLES)]
    return [collate(checked.data, indices, checked.job)]


def _in_words(difference: Difference) -> str:
    if difference.is_in_forward:
        cause = "code that looks at Python state, values or the number of samples, or that draws outside torch"
    else:
        cause = "a backward of its own, or a hook on gradients"
    return f"cut into layers, {difference}; the likely cause is {cause}"

"""Layers that compute the same as the model, as a comparison has shown, or the model itself as one layer."""

import logging
from typing import Any

from torch import nn

from zooid.core.errors import LayerError
from zooid.layers.jobs.batches import collate, varying_sizes
from zooid.layers.jobs.job_checks import EXAMPLE_SIZE, CheckedJob, check_evaluation
from zooid.layers.jobs.model_builder import buffers_restored
from zooid.layers.stages.comparison import Difference, find_difference, run_model
from zooid.layers.stages.layered_model import LayeredModel
from zooid.layers.stages.whole_model import whole_model
from zooid.layers.tracing.tracer import trace_job

_LATER_SAMPLES = 3
"""Number of samples in the second batch; it differs from the example's, so that a fixed number shows."""

_log = logging.getLogger(__name__)


def faithful_layers(checked: CheckedJob) -> LayeredModel:
    """Return the layers of a checked job, which were compared with the untouched model on real samples.

    A model that cannot be cut, or whose layers compute something else, is one layer, and `why_whole` says why.
    """
    job, model, example = checked.job, checked.model, checked.example
    if job.whole:
        return whole_model(model, example, "job.whole is True")
    if reason := varying_sizes(job, checked.data, check_evaluation(job)):
        return whole_model(model, example, reason)
    before = python_state(model)
    with buffers_restored(model):
        run_model(job, model, example)  # the second forward, so that caches which the first has filled do not count
    if attribute := changed_attribute(before, python_state(model)):
        return whole_model(
            model,
            example,
            f"its attribute {attribute} changes from one forward to the next, so that a step that is run again may "
            "differ; keep such state in buffers",
        )
    layered = trace_job(job, example)
    if layered.whole is not None:
        return whole_model(model, example, layered.why_whole)
    later_indices = [(EXAMPLE_SIZE + number) % checked.num_samples for number in range(_LATER_SAMPLES)]
    try:
        difference = find_difference(job, model, layered, [example, collate(checked.data, later_indices, job)])
    except LayerError as error:
        return whole_model(model, example, str(error))
    if difference is None:
        return layered
    _log.warning("the layers of the model were not used: %s", difference)
    return whole_model(model, example, _explain(difference))


def python_state(model: nn.Module) -> dict[str, Any]:
    """Return the numbers and texts in attributes of modules, and the lengths of their lists, by full name.

    No checkpoint holds such state, and no trace sees it.
    """
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name == "training" or name.startswith("_"):
                continue
            if isinstance(value, (bool, int, float, complex, str)):
                state[f"{path}.{name}".lstrip(".")] = value
            elif isinstance(value, (list, dict, set)):
                state[f"{path}.{name}".lstrip(".")] = f"{len(value)} entries"
    return state


def changed_attribute(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the full name of the first attribute that has changed; empty where none has."""
    return next((name for name, value in after.items() if before.get(name, value) != value), "")


def _explain(difference: Difference) -> str:
    if difference.is_in_forward:
        cause = "code that depends on Python state, values or the number of samples, or that draws outside torch"
    else:
        cause = "a custom backward, or a hook on gradients"
    return f"cut into layers, {difference}; the likely cause is {cause}"

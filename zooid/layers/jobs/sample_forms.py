"""Converts every form of a sample or collated batch into one: inputs for the model and a target for the loss."""

from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from zooid.core.errors import JobError

TARGET_NAME = "labels"
"""Name of the dict entry that is the target of a job's loss; where the model computes the loss, it is an input."""

_FORMS = (
    "give a pair (inputs, target), a dict of inputs by name, or a tensor as the only input; inputs of a pair are a "
    "tensor, a tuple (positional) or a dict (by name)"
)


def inputs_and_target(value: Any, what: str, *, has_loss: bool) -> tuple[Any, Any]:
    """Split a sample or batch into the model's inputs and the loss's target, which may be None."""
    if isinstance(value, Mapping):
        inputs = dict(value)
        target = inputs.pop(TARGET_NAME, None) if has_loss else None
        return inputs, target
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value, None
    if isinstance(value, (tuple, list)) and len(value) == 1:
        return value[0], None
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    reject_text(what, value)
    size = f" of {len(value)} values" if isinstance(value, (tuple, list)) else ""
    raise JobError(f"{what} is a {type(value).__name__}{size}; {_FORMS}")


def stack(what: str, values: list[Any]) -> Any:
    """Stack the same part of all samples along a new dimension 0, as a DataLoader does."""
    reject_text(f"{what} of samples of job.data()", values[0])
    try:
        return default_collate([_with_tensors(value) for value in values])
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise JobError(
            f"{what} of {len(values)} samples of job.data() cannot be stacked into a batch: "
            f"{type(error).__name__}: {first_line}; give tensors, numbers or arrays of the same shape in every sample, "
            "or a job.collate that turns a list of samples into a batch, for example by padding"
        ) from error


def reject_text(what: str, value: Any) -> None:
    """Raise JobError if a value contains text, since a model computes with numbers."""
    text = next((leaf for leaf in tree_leaves(value) if isinstance(leaf, (str, bytes))), None)
    if text is not None:
        names = [name for name, entry in value.items() if entry is text] if isinstance(value, Mapping) else []
        quoted = f"{names[0]!r}: {text[:40]!r}" if names else repr(text[:40])
        raise JobError(
            f"{what}: found text ({quoted}), but a model takes numbers; convert it to tokens in job.data or "
            "job.collate, and leave out the text itself"
        )


def _with_tensors(value: Any) -> Any:
    """Convert lists of numbers to tensors, which a DataLoader would treat as separate values of a sample."""
    if isinstance(value, Mapping):
        return {name: _with_tensors(entry) for name, entry in value.items()}
    if isinstance(value, list) and value and _is_numbers(value):
        return torch.tensor(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_with_tensors(entry) for entry in value) if type(value) in (tuple, list) else value
    return value


def _is_numbers(value: Any) -> bool:
    return all(_is_numbers(entry) for entry in value) if isinstance(value, list) else isinstance(value, Number)

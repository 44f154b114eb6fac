"""The forms that a sample or a collated batch may have, brought into one: inputs for the model, target for the loss."""

from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from zooid.core.errors import JobError

TARGET_NAME = "labels"
"""The entry of a dict that is the target of a job's loss; where the model computes the loss, it is an input."""

_FORMS = (
    "give a pair (inputs, target), a dict of inputs by name, or a tensor as the only input; inputs of a pair are a "
    "tensor, a tuple (positional) or a dict (by name)"
)


def inputs_and_target(value: Any, what: str, *, has_loss: bool) -> tuple[Any, Any]:
    """What goes to the model and what goes to the loss; the target is None where there is none."""
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
    refuse_text(what, value)
    size = f" of {len(value)} values" if isinstance(value, (tuple, list)) else ""
    raise JobError(f"{what} is a {type(value).__name__}{size}; {_FORMS}")


def stack(what: str, values: list[Any]) -> Any:
    """One batch of equal parts of samples, along a new dimension 0, as a DataLoader does it."""
    refuse_text(f"{what} of samples of job.data()", values[0])
    try:
        return default_collate([_with_tensors(value) for value in values])
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise JobError(
            f"{what} of {len(values)} samples of job.data() cannot be stacked into a batch: "
            f"{type(error).__name__}: {first_line}; give tensors, numbers or arrays of the same shape in every sample, "
            "or a job.collate that makes a batch of a list of samples, as by padding"
        ) from error


def refuse_text(what: str, value: Any) -> None:
    """A model computes with numbers."""
    text = next((leaf for leaf in tree_leaves(value) if isinstance(leaf, (str, bytes))), None)
    if text is not None:
        names = [name for name, entry in value.items() if entry is text] if isinstance(value, Mapping) else []
        quoted = f"{names[0]!r}: {text[:40]!r}" if names else repr(text[:40])
        raise JobError(
            f"{what}: this is text ({quoted}); make tokens of it in job.data or in job.collate, and leave the text "
            "itself out"
        )


def _with_tensors(value: Any) -> Any:
    """A list of numbers is one tensor; a DataLoader would take it for so many values of a sample."""
    if isinstance(value, Mapping):
        return {name: _with_tensors(entry) for name, entry in value.items()}
    if isinstance(value, list) and value and _is_numbers(value):
        return torch.tensor(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_with_tensors(entry) for entry in value) if type(value) in (tuple, list) else value
    return value


def _is_numbers(value: Any) -> bool:
    return all(_is_numbers(entry) for entry in value) if isinstance(value, list) else isinstance(value, Number)

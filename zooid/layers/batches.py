"""Samples of a data set as the tensors that a model takes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import default_collate

from zooid.core.errors import JobError, ZooidError


@dataclass(frozen=True)
class Batch:
    """Collated samples: `args` and `kwargs` for the model, `target` for the loss."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    num_samples: int

    def to(self, device: torch.device | str) -> "Batch":
        """On a device; a copy from pinned memory to a GPU goes on while the caller does. Samples are read into the
        processor's memory, where they can stay."""
        kind = torch.device(device).type
        if kind == "cpu":
            return self
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=kind == "cuda"))

    def resized(self, num_samples: int) -> "Batch":
        """The same samples, cut off or repeated to this number."""
        at = torch.arange(num_samples) % self.num_samples
        resized = self._with_each(lambda tensor: tensor[at] if tensor.dim() else tensor)
        return replace(resized, num_samples=num_samples)

    def with_values(self) -> "Batch":
        """The same, with zeros where tensors are on `meta`."""
        return self._with_each(lambda tensor: torch.zeros_like(tensor, device="cpu") if tensor.is_meta else tensor)

    def pin_memory(self) -> "Batch":
        """In memory from which a GPU reads by itself; under the name by which a DataLoader asks for that."""
        return self._with_each(lambda tensor: tensor.pin_memory())

    def _with_each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        def changed(value: Any) -> Any:
            return change(value) if isinstance(value, torch.Tensor) else value

        args, kwargs, target = tree_map(changed, (self.args, self.kwargs, self.target))
        return Batch(args, kwargs, target, self.num_samples)


def collate(data: Any, indices: Iterable[int]) -> Batch:
    """The samples at these indices, stacked along dimension 0 as a DataLoader would."""
    samples = [_load(data, int(index)) for index in indices]
    inputs = _stack("inputs", [sample[0] for sample in samples])
    has_target = samples[0][1] is not None
    target = _stack("targets", [sample[1] for sample in samples]) if has_target else None
    if isinstance(inputs, dict):
        return Batch((), inputs, target, len(samples))
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return Batch(args, {}, target, len(samples))


def flatten_inputs(batch: Batch) -> list[Any]:
    """The model's inputs in the order in which a trace numbers them."""
    return tree_flatten((batch.args, batch.kwargs))[0]


def _stack(what: str, values: list[Any]) -> Any:
    try:
        return default_collate(values)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise JobError(
            f"the {what} of {len(values)} samples of job.data() cannot be stacked into a batch: "
            f"{type(error).__name__}: {first_line}; give tensors, numbers or arrays of the same shape in every sample"
        ) from error


def _load(data: Any, index: int) -> tuple[Any, Any]:
    try:
        sample = data[index]
    except ZooidError:
        raise  # it says itself what to do, as those of shards do
    except Exception as error:
        raise JobError(
            f"job.data()[{index}] raised {type(error).__name__}: {error}; mend or leave out this sample"
        ) from error
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise JobError(
            f"job.data()[{index}] is a {type(sample).__name__}; each sample must be a pair (inputs, target), "
            "inputs a tensor, tuple or dict; give None as target where the model's output carries .loss"
        )
    return sample[0], sample[1]

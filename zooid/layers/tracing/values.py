"""What a value of a trace is for any number of samples: its shape, its bytes, its type."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class LinearSize:
    """One dimension: so much, and so much more for every sample."""

    fixed: int
    per_sample: int = 0

    def of(self, num_samples: int) -> int:
        return self.fixed + self.per_sample * num_samples


@dataclass(frozen=True)
class Value:
    """A tensor that can cross a cut: at most one of its dimensions depends on the number of samples."""

    dtype: torch.dtype
    sizes: tuple[LinearSize, ...]

    @property
    def batch_dimension(self) -> int | None:
        """The one that depends on the number of samples; None where none does."""
        return next((number for number, size in enumerate(self.sizes) if size.per_sample), None)

    def shape(self, num_samples: int) -> tuple[int, ...]:
        return tuple(size.of(num_samples) for size in self.sizes)

    def num_bytes(self, num_samples: int) -> int:
        return math.prod(self.shape(num_samples)) * self.dtype.itemsize


@dataclass(frozen=True)
class Facts:
    """What layers need to know of a node of a trace; tensors without data are not kept."""

    value: Value | None = None
    """The tensor that the node stands for. None for other results, and for sizes that are not linear in the samples."""
    is_floating: bool = False
    """True for a tensor of real or complex numbers."""
    requires_grad: bool = False
    """True for a parameter that is trained."""
    is_number: bool = False
    """True for the number of samples, and for what is computed from nothing else."""
    is_sample_count: bool = False
    literal: Any = None
    """The value of a model's input that is not a tensor."""


NO_FACTS = Facts()


def facts_of(node: fx.Node) -> Facts:
    """The facts that the trace, or its record, has noted at a node."""
    facts: Facts = node.meta.get("facts", NO_FACTS)
    return facts


def note_facts(node: fx.Node, facts: Facts) -> None:
    node.meta["facts"] = facts


def value_of(node: fx.Node) -> Value | None:
    """The tensor that a node stands for; None where there is none that can cross a cut."""
    return facts_of(node).value


def is_number(node: fx.Node) -> bool:
    """True where a value is the number of samples, or computed from nothing else."""
    return facts_of(node).is_number


def is_sample_count(node: fx.Node) -> bool:
    """True where a value is the number of samples itself."""
    return facts_of(node).is_sample_count


def state_value(node: fx.Node) -> Value:
    """The tensor of a parameter or buffer, whose size never depends on the samples."""
    value = facts_of(node).value
    assert value is not None, f"{node} is a parameter or buffer of a fixed size"
    return value


def tensor_facts(tensor: torch.Tensor, *, num_samples_first: bool = False) -> Facts:
    """The facts about a real tensor; its first dimension is that of the samples where that is said."""
    sizes = [LinearSize(size) for size in tensor.shape]
    if num_samples_first:
        sizes[0] = LinearSize(0, 1)
    return Facts(Value(tensor.dtype, tuple(sizes)), is_floating(tensor), tensor.requires_grad)


def is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()

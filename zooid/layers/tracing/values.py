"""The shape, bytes and type of a value in a trace, for any number of samples."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class LinearSize:
    """The size of one dimension: fixed + per_sample × samples."""

    fixed: int
    per_sample: int = 0

    def of(self, num_samples: int) -> int:
        return self.fixed + self.per_sample * num_samples


@dataclass(frozen=True)
class Value:
    """A tensor that can cross a cut; at most one of its dimensions depends on the number of samples."""

    dtype: torch.dtype
    sizes: tuple[LinearSize, ...]

    @property
    def batch_dimension(self) -> int | None:
        """The dimension that depends on the number of samples; None where none does."""
        return next((number for number, size in enumerate(self.sizes) if size.per_sample), None)

    def shape(self, num_samples: int) -> tuple[int, ...]:
        return tuple(size.of(num_samples) for size in self.sizes)

    def num_bytes(self, num_samples: int) -> int:
        return math.prod(self.shape(num_samples)) * self.dtype.itemsize


@dataclass(frozen=True)
class Facts:
    """The facts about a node of a trace that layers need, without any tensor."""

    value: Value | None = None
    """The tensor of the node; None for other results, and for sizes that are not linear in the number of samples."""
    is_floating: bool = False
    """Whether the node is a tensor of real or complex numbers."""
    requires_grad: bool = False
    """Whether the node is a trained parameter."""
    is_number: bool = False
    """Whether the node is the number of samples or computed from nothing else."""
    is_sample_count: bool = False
    """Whether the node is the number of samples itself."""
    literal: Any = None
    """The value of a model's input that is not a tensor."""


NO_FACTS = Facts()


def facts_of(node: fx.Node) -> Facts:
    """Return the facts that a trace, or its record, has noted at a node."""
    facts: Facts = node.meta.get("facts", NO_FACTS)
    return facts


def note_facts(node: fx.Node, facts: Facts) -> None:
    node.meta["facts"] = facts


def value_of(node: fx.Node) -> Value | None:
    """Return the tensor of a node; None where it cannot cross a cut."""
    return facts_of(node).value


def is_number(node: fx.Node) -> bool:
    """Whether a node is the number of samples or computed from nothing else."""
    return facts_of(node).is_number


def state_value(node: fx.Node) -> Value:
    """Return the tensor of a parameter or buffer, whose size never depends on the number of samples."""
    value = facts_of(node).value
    assert value is not None, f"{node} is a parameter or buffer of a fixed size"
    return value


def tensor_facts(tensor: torch.Tensor, *, num_samples_first: bool = False) -> Facts:
    """Return the facts about a real tensor; with `num_samples_first`, its first dimension is the number of samples."""
    sizes = [LinearSize(size) for size in tensor.shape]
    if num_samples_first:
        sizes[0] = LinearSize(0, 1)
    return Facts(Value(tensor.dtype, tuple(sizes)), is_floating(tensor), tensor.requires_grad)


def is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()

"""What a value of a trace is for any number of samples: its shape, its bytes, its type."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class Size:
    """One dimension: so much, and so much more for every sample."""

    fixed: int
    per_sample: int = 0

    def of(self, num_samples: int) -> int:
        return self.fixed + self.per_sample * num_samples


@dataclass(frozen=True)
class Value:
    """A tensor that can cross a cut: at most one of its dimensions depends on the number of samples."""

    dtype: torch.dtype
    sizes: tuple[Size, ...]

    @property
    def batch_dimension(self) -> int | None:
        """The one that depends on the number of samples; None where none does."""
        return next((number for number, size in enumerate(self.sizes) if size.per_sample), None)

    def shape(self, num_samples: int) -> tuple[int, ...]:
        return tuple(size.of(num_samples) for size in self.sizes)

    def num_bytes(self, num_samples: int) -> int:
        return math.prod(self.shape(num_samples)) * self.dtype.itemsize


def value_of(node: fx.Node) -> Value | None:
    """None where it is no tensor, or one whose size is no straight line over the number of samples."""
    if "value" not in node.meta:
        node.meta["value"] = _read_value(node)
    known: Value | None = node.meta["value"]
    return known


def _read_value(node: fx.Node) -> Value | None:
    tensor = node.meta.get("val")
    if not isinstance(tensor, torch.Tensor):
        return None
    sizes = [_size_of(size) for size in tensor.shape]
    if None in sizes or sum(1 for size in sizes if size is not None and size.per_sample) > 1:
        return None
    return Value(tensor.dtype, tuple(size for size in sizes if size is not None))


def is_number(node: fx.Node) -> bool:
    """Whether a value is the number of samples, or computed from nothing else."""
    value = node.meta.get("val")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _follows_from_samples(value.node.expr)
    return isinstance(value, (int, float))


def is_sample_count(node: fx.Node) -> bool:
    """Whether a value is the number of samples itself."""
    if "is_sample_count" in node.meta:
        return bool(node.meta["is_sample_count"])
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt) and bool(value.node.expr.is_symbol) and is_number(node)


def _size_of(size: Any) -> Size | None:
    if isinstance(size, int):
        return Size(size)
    if not _follows_from_samples(size.node.expr):
        return None
    at = [_evaluate(size.node.expr, num_samples) for num_samples in (0, 1, 7)]
    line = Size(at[0], at[1] - at[0])
    return line if line.of(7) == at[2] and line.per_sample > 0 else None


def _follows_from_samples(expression: Any) -> bool:
    """True where all symbols are first dimensions of inputs: numbers of samples. Torch calls these s0, s1 and so on;
    sizes that depend on values of tensors have other names."""
    return all(str(symbol).startswith("s") for symbol in expression.free_symbols)


def _evaluate(expression: Any, num_samples: int) -> int:
    """The size for so many samples."""
    return int(expression.subs(dict.fromkeys(expression.free_symbols, num_samples)))

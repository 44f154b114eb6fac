"""The facts of a trace, read from the tensors without data that torch.export leaves at its nodes."""

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from zooid.layers.tracing.values import Facts, LinearSize, Value, is_floating, note_facts


def note_traced_facts(graph: fx.Graph) -> None:
    """Note at every node what layers need to know of it, in place of the tensors without data."""
    for node in graph.nodes:
        result = node.meta.pop("val", None)
        facts = _facts(result)
        if node.op == "placeholder" and not isinstance(result, torch.Tensor):
            facts = replace(facts, literal=result)
        note_facts(node, facts)


def _facts(result: Any) -> Facts:
    if isinstance(result, torch.Tensor):
        return Facts(_value(result), is_floating(result), result.requires_grad)
    if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        follows = _follows_from_samples(result.node.expr)
        is_count = isinstance(result, torch.SymInt) and bool(result.node.expr.is_symbol) and follows
        return Facts(is_number=follows, is_sample_count=is_count)
    return Facts(is_number=isinstance(result, (int, float)))


def _value(tensor: torch.Tensor) -> Value | None:
    sizes = [_size_of(size) for size in tensor.shape]
    if None in sizes or sum(1 for size in sizes if size is not None and size.per_sample) > 1:
        return None
    return Value(tensor.dtype, tuple(size for size in sizes if size is not None))


def _size_of(size: Any) -> LinearSize | None:
    if isinstance(size, int):
        return LinearSize(size)
    if not _follows_from_samples(size.node.expr):
        return None
    at = [_evaluate(size.node.expr, num_samples) for num_samples in (0, 1, 7)]
    line = LinearSize(at[0], at[1] - at[0])
    return line if line.of(7) == at[2] and line.per_sample > 0 else None


def _follows_from_samples(expression: Any) -> bool:
    """True where all symbols are first dimensions of inputs: numbers of samples. Torch calls these s0, s1 and so on;
    sizes that depend on values of tensors have other names."""
    return all(str(symbol).startswith("s") for symbol in expression.free_symbols)


def _evaluate(expression: Any, num_samples: int) -> int:
    """The size for so many samples."""
    return int(expression.subs(dict.fromkeys(expression.free_symbols, num_samples)))

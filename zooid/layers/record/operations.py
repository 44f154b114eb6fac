"""The operations that a record may name; a record never causes an import or runs other code."""

import inspect
import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from zooid.core.errors import RecordError

_NAMESPACES = ("aten", "prims")
"""Namespaces of torch's own operations on tensors."""
_NEEDS_FILES = ("aten::from_file", "aten::save")
"""Operations in these namespaces that read or write files."""
_HIGHER_ORDER = ("cond", "map_impl", "scan", "while_loop", "wrap_with_autocast", "wrap_with_set_grad_enabled")
"""Operations that call sub-graphs of the record."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        f"operator.{name}": getattr(operator, name)
        for name in (
            "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lshift", "lt", "mod", "mul", "ne",
            "neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv",
        )
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "sqrt", "trunc")},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not")
    },
    "round": round,
}  # fmt: skip
"""Functions on numbers, and on tuples that operations return."""
_FUNCTION_NAMES = {function: name for name, function in _FUNCTIONS.items()}


class NotRecorded(Exception):
    """A trace contains something that a record cannot hold; the message says what."""


def operation_name(target: Any) -> str:
    """Return the name of an operation in records."""
    if isinstance(target, OpOverload):
        if _is_allowed(target):
            return str(target)
        raise NotRecorded(f"it uses the operation {target}, which is not torch's own")
    if isinstance(target, HigherOrderOperator) and str(target) in _HIGHER_ORDER:
        return f"higher_order.{target}"
    if target in _FUNCTION_NAMES:
        return _FUNCTION_NAMES[target]
    raise NotRecorded(f"it uses the operation {target}")


@cache
def named_operation(name: str) -> Callable[..., Any]:
    """Return the operation with this name; raise RecordError if records may not name it."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    namespace, _, rest = name.partition(".")
    if namespace == "higher_order" and rest in _HIGHER_ORDER:
        higher_order: Callable[..., Any] = getattr(torch.ops.higher_order, rest)
        return higher_order
    packet_name, _, overload = rest.partition(".")
    if namespace in _NAMESPACES and packet_name.isidentifier() and overload.isidentifier():
        packet = getattr(getattr(torch.ops, namespace), packet_name, None)
        operation = getattr(packet, overload, None)
        if isinstance(operation, OpOverload) and _is_allowed(operation):
            return operation
    raise RecordError(
        f"the trace names the operation {name!r}, which this version of torch does not have or a trace may not use; "
        "was it altered, or written by another version?"
    )


def takes_arguments(operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function on numbers can be called with these arguments; torch checks its own operations."""
    if operation not in _FUNCTION_NAMES:
        return True
    try:
        inspect.signature(operation).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _is_allowed(operation: OpOverload[..., Any]) -> bool:
    """Whether an operation is torch's own and computes only from tensors and numbers."""
    return operation.namespace in _NAMESPACES and operation._schema.name not in _NEEDS_FILES

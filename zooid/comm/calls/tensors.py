"""Tensors as bytes on the wire, and the sums of tensors that arrived."""

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import ReduceOp

from zooid.core.errors import CommError

Array: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = Array | torch.Tensor
"""Values in the form that a Reduction works on."""

_OPERATIONS: tuple[tuple[Any, str, str], ...] = (
    (ReduceOp.SUM, "add", "add"),
    (ReduceOp.AVG, "add", "add"),
    (ReduceOp.PRODUCT, "multiply", "mul"),
    (ReduceOp.MIN, "minimum", "minimum"),
    (ReduceOp.MAX, "maximum", "maximum"),
    (ReduceOp.BAND, "bitwise_and", "bitwise_and"),
    (ReduceOp.BOR, "bitwise_or", "bitwise_or"),
    (ReduceOp.BXOR, "bitwise_xor", "bitwise_xor"),
)
"""Each operation, with its name in numpy and its name in torch."""
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_IN_TORCH = (torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
"""Types that numpy lacks, handles slowly, or orders differently."""


def wire_view(tensor: Numbers) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, or of a flat array, without a copy."""
    if isinstance(tensor, np.ndarray):
        return tensor.view(np.uint8).data
    if tensor.dtype is torch.uint8 and tensor.dim() == 1:  # as the messages of a pipeline are
        return tensor.numpy().data
    flat = tensor.detach() if tensor.dim() == 1 else tensor.detach().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def flat_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's values as a flat contiguous tensor: the same memory where possible, else a copy."""
    if tensor.dim() == 1 and tensor.is_contiguous():
        return tensor.detach()
    return tensor.detach().contiguous().reshape(-1)


def copy_into(target: torch.Tensor, values: torch.Tensor) -> None:
    target.detach().copy_(values.detach().view_as(target))


def copy_bytes(target: memoryview, data: memoryview) -> None:
    """Copy bytes without holding the GIL."""
    if target.nbytes != data.nbytes:
        raise CommError(f"a message of {data.nbytes} bytes arrived where {target.nbytes} were expected")
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))


@functools.cache
def reduction_of(operation: Any, dtype: torch.dtype) -> "Reduction":
    """Return the Reduction of a ReduceOp and a type, cached because its checks take longer than a small sum."""
    return Reduction(operation, dtype)


class Reduction:
    """One ReduceOp on one type, which combines parts in rank order, in place where it can."""

    def __init__(self, operation: Any, dtype: torch.dtype) -> None:
        names = next(((in_numpy, in_torch) for known, in_numpy, in_torch in _OPERATIONS if operation == known), None)
        if names is None:
            raise CommError(
                f"the backend zooid cannot reduce with {getattr(operation, 'op', operation)}; it can with SUM, AVG, "
                "PRODUCT, MIN, MAX, BAND, BOR and BXOR"
            )
        self.is_average = operation == ReduceOp.AVG
        if self.is_average and not (dtype.is_floating_point or dtype.is_complex):
            raise CommError(f"{dtype} cannot be averaged; reduce with SUM, or convert to float first")
        if dtype.is_complex and (operation == ReduceOp.MIN or operation == ReduceOp.MAX):
            raise CommError(f"{dtype} has no order, and so no MIN and MAX; reduce real numbers instead")
        if dtype.itemsize == 1 and dtype.is_floating_point:
            raise CommError(f"{dtype} cannot be added up; convert to a wider type first")
        is_bitwise = any(operation == known for known in _BITWISE)
        if is_bitwise and (dtype.is_floating_point or dtype.is_complex):
            raise CommError(f"{dtype} has no bitwise reductions; those are for integers and booleans")
        self._dtype = dtype
        self._ufunc: np.ufunc = getattr(np, names[0])
        self._function: Callable[..., torch.Tensor] = getattr(torch, names[1])

    @property
    def takes_any_memory(self) -> bool:
        """Whether parts may lie in read-only memory."""
        return self._dtype not in _IN_TORCH

    def numbers(self, flat: torch.Tensor) -> Numbers:
        """Return the same memory in the form `combine` takes: numpy stays on this thread; torch would wake others."""
        return flat if self._dtype in _IN_TORCH else flat.numpy()

    def combine(self, values: Numbers, parts: Sequence[tuple[int, memoryview]], rank: int) -> None:
        """Combine the parts into this rank's values, in rank order."""
        if len(values) == 0:
            return
        if isinstance(values, torch.Tensor):
            dtype = values.dtype
            self._add(self._function, values, [(n, torch.frombuffer(data, dtype=dtype)) for n, data in parts], rank)
        else:
            self._add(self._ufunc, values, [(n, np.frombuffer(data, values.dtype)) for n, data in parts], rank)

    def add(self, left: Numbers, right: Numbers, out: Numbers) -> Numbers:
        """Write the sum of two parts to `out`, and return it."""
        if isinstance(left, torch.Tensor):
            return self._function(left, right, out=out)
        return cast(Array, self._ufunc(left, right, out=out))

    @staticmethod
    def _add(add: Callable[..., Any], values: Any, parts: list[tuple[int, Any]], rank: int) -> None:
        ordered = [part for _, part in sorted([(rank, values), *parts], key=itemgetter(0))]
        total = ordered[0]
        memory = values if total is values else None
        """The memory of the sum so far, if it may be written to; `values` once it is part of the sum."""
        for part in ordered[1:]:
            memory = values if part is values else memory
            total = add(total, part, out=memory)
            memory = total

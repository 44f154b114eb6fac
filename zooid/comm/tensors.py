"""Tensors as the bytes on the wire, and the sums of what arrived."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed import ReduceOp

from zooid.core.errors import CommError

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def wire_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def fill(tensor: torch.Tensor, data: memoryview) -> None:
    """Write received bytes into a contiguous CPU tensor of the same size."""
    target = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    if target.nbytes != data.nbytes:
        raise CommError(f"a message of {data.nbytes} bytes arrived where {target.nbytes} were expected")
    np.copyto(target, np.frombuffer(data, dtype=np.uint8))


def received(data: memoryview, like: torch.Tensor) -> torch.Tensor:
    """Received bytes as a new tensor of the same type and number of elements."""
    tensor = torch.empty(like.numel(), dtype=like.dtype)
    fill(tensor, data)
    return tensor


def combine_in_order(parts: Sequence[torch.Tensor], operation: Any) -> torch.Tensor:
    """Reduce parts one after the other, so that the order of arrival never changes a bit of the result."""
    combine = _combine_function(operation)
    if operation == ReduceOp.AVG and not (parts[0].is_floating_point() or parts[0].is_complex()):
        raise CommError(f"{parts[0].dtype} cannot be averaged; reduce with SUM, or convert to float first")
    total = parts[0].clone()
    for part in parts[1:]:
        total = combine(total, part)
    return total.div_(len(parts)) if operation == ReduceOp.AVG else total


def _combine_function(operation: Any) -> Combine:
    known: list[tuple[Any, Combine]] = [
        (ReduceOp.SUM, torch.Tensor.add_),
        (ReduceOp.AVG, torch.Tensor.add_),
        (ReduceOp.PRODUCT, torch.Tensor.mul_),
        (ReduceOp.MIN, torch.minimum),
        (ReduceOp.MAX, torch.maximum),
    ]
    for candidate, combine in known:
        if operation == candidate:
            return combine
    name = getattr(operation, "op", operation)
    raise CommError(f"the backend zooid cannot reduce with {name}; it can with SUM, AVG, PRODUCT, MIN and MAX")

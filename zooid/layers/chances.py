"""Comparisons of random numbers whose outcome is certain.

Models that can skip layers at random draw a uniform number and compare it with a probability, also where that is 0. No
trace can follow a branch on a random value, but this one has a single course.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_BELOW = (torch.Tensor.__lt__, torch.Tensor.lt, torch.lt)
_AT_LEAST = (torch.Tensor.__ge__, torch.Tensor.ge, torch.ge)
_MARK = "_zooid_is_uniform"


class CertainChances(TorchFunctionMode):
    """While active, `rand < p` is False for p ≤ 0 and True for p ≥ 1, and `rand >= p` the opposite."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (*_BELOW, *_AT_LEAST) and len(args) == 2 and _is_uniform(args[0]):
            probability = args[1]
            if isinstance(probability, (int, float)) and not 0 < probability < 1:
                return (probability >= 1) == (func in _BELOW)
        result = func(*args, **(kwargs or {}))
        if func is torch.rand and isinstance(result, torch.Tensor) and result.dim() == 0:
            setattr(result, _MARK, True)
        return result


def _is_uniform(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(getattr(value, _MARK, False))

"""Functions of torch that a trace cannot follow, although their results, or the sizes of these, are fixed.

Models that can skip layers at random compare a uniform random number with a probability, even where that is 0. No trace
can follow a branch on a random value, but this branch has only one outcome. The loss of connectionist temporal
classification keeps tensors whose sizes depend on values, but returns a single number.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from zooid.layers.tracing.watch import Watch

_BELOW = (torch.Tensor.__lt__, torch.Tensor.lt, torch.lt)
_AT_LEAST = (torch.Tensor.__ge__, torch.Tensor.ge, torch.ge)
_CTC = (torch.ctc_loss, F.ctc_loss)
_MARK = "_zooid_is_uniform"


class FixedResults(TorchFunctionMode):
    """While active, `rand < p` is False for p ≤ 0 and True for p ≥ 1, and `rand >= p` is the opposite.

    `ctc_loss` becomes one opaque operation, and its reduction determines the size of the result.
    """

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (*_BELOW, *_AT_LEAST) and len(args) == 2 and _is_uniform(args[0]):
            probability = args[1]
            if isinstance(probability, (int, float)) and not 0 < probability < 1:
                return (probability >= 1) == (func in _BELOW)
        if func in _CTC and not self._watch.is_paused:
            return self._ctc_loss(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if func is torch.rand and isinstance(result, torch.Tensor) and result.dim() == 0:
            setattr(result, _MARK, True)
        return result

    def _ctc_loss(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reduction = args[5] if len(args) > 5 else kwargs.get("reduction", "mean")
        log_probabilities = args[0] if args else kwargs["log_probs"]
        size = (log_probabilities.shape[1],) if reduction in ("none", 0) else ()
        return self._watch.stand_in_for(function, args, kwargs, log_probabilities.new_empty(size))


def _is_uniform(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(getattr(value, _MARK, False))

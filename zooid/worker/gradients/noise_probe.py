"""Squared norms of gradients for the gradient noise scale: of a member's first grain, and of the whole step."""

from collections.abc import Mapping

import torch
from torch import nn


class NoiseProbe:
    """Looks at the gradients of one stage. Both norms are over the same parameters."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._own: torch.Tensor | None = None

    def begin(self) -> None:
        """Forget the step before."""
        self._own = None

    def take_first(self) -> None:
        """Measure what the first backward of a step has left in the parameters."""
        if self._own is None and self._parameters:
            self._own = _square_sum({name: parameter.grad for name, parameter in self._parameters.items()})

    def squares(self, held: Mapping[str, torch.Tensor | None]) -> tuple[float, float]:
        """Σg² of the first grain of this member, and of the reduced gradients."""
        reduced = _square_sum({name: held.get(name) for name in self._parameters})
        return 0.0 if self._own is None else float(self._own), float(reduced)


def _square_sum(gradients: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    present = [gradient for gradient in gradients.values() if gradient is not None]
    if not present:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack([norm.double() for norm in torch._foreach_norm(present)]).square().sum()

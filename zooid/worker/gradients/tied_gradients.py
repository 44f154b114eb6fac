"""Gradients of parameters that several stages share, summed between these stages."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch import nn

from zooid.worker.gradients.flat_bucket import FlatBucket
from zooid.worker.step.pending import begin_all_reduce


@dataclass(frozen=True)
class TiedParameters:
    """Parameters that several stages share. Each stage has its own copy, and all copies get the same updates."""

    names: tuple[str, ...]
    group: dist.ProcessGroup
    """The members of one replica whose stages share the parameters."""
    counts_here: bool
    """Whether this stage counts them in the norm of all gradients, which only one stage does."""


class TiedSum:
    """A sum of tied gradients in flight, with one message for each dtype."""

    def __init__(
        self,
        tied: TiedParameters,
        held: dict[str, torch.Tensor | None],
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        in_order: bool = False,
    ) -> None:
        """`in_order` adds in the order of the stages, which an all-reduce of three or more members does not."""
        parameters = {name: parameter for name, parameter in named if name in tied.names and name in held}
        self._names = sorted(parameters)
        self._held = held
        self._flat = FlatBucket([parameters[name].detach() for name in self._names], ())
        self._flat.fill([held[name] for name in self._names])
        self._gathered: dict[torch.dtype, torch.Tensor] = {}
        num_stages = tied.group.size()
        if in_order and num_stages > 2:
            buffers = self._flat.buffers.items()
            self._gathered = {dtype: buffer.new_empty(num_stages, len(buffer)) for dtype, buffer in buffers}
            self.works = [tied.group.allgather([[*self._gathered[dtype]]], [buffer]) for dtype, buffer in buffers]
        else:
            self.works = [begin_all_reduce(buffer, tied.group) for buffer in self._flat.buffers.values()]

    def finish(self) -> None:
        """Replace the held gradients by the sums. The tensors that were held keep their values."""
        for dtype, rows in self._gathered.items():
            total = self._flat.buffers[dtype].copy_(rows[0])
            for row in rows[1:]:
                total += row
        self._held.update(zip(self._names, self._flat.gradients(), strict=True))

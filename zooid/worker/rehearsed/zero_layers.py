"""Layers without a model: zeros of the planned sizes in the places of a stage's parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from zooid.core.plans.stage import StageTimes

_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class ZeroLayers:
    """As much of a `LayeredModel` as a member without a model is asked for."""

    pace: tuple[StageTimes, ...]
    persistent_names: frozenset[str] = frozenset()
    """No tensor is written to checkpoints."""

    def state_of(self, first_layer: int, end_layer: int) -> frozenset[str]:
        """Names of all tensors: guests of a rehearsal take over whole stages."""
        return frozenset(_names(max(len(stage.buckets) for stage in self.pace)))


@dataclass(frozen=True)
class ZeroStage:
    """As much of a `Stage` as a member without a model is asked for."""

    model: ZeroLayers
    first_layer: int
    end_layer: int
    is_last: bool
    module: nn.Module


def zero_stage(layers: ZeroLayers, spans: Sequence[tuple[int, int]], number: int) -> ZeroStage:
    """The stage of this number. Each of its buckets of gradients has a parameter of the same size."""
    module = nn.Module()
    buckets = layers.pace[number].buckets
    for name, bucket in zip(_names(len(buckets)), buckets, strict=True):
        zeros = torch.zeros(-(-bucket.num_bytes // _ELEMENT_BYTES))
        module.register_parameter(name, nn.Parameter(zeros, requires_grad=False))
    return ZeroStage(layers, *spans[number], number == len(spans) - 1, module)


def _names(num_buckets: int) -> list[str]:
    return [f"bucket_{number}" for number in range(num_buckets)]

"""The stages of a chain and the partial partitions of the search, as arrays."""

from dataclasses import dataclass, fields

import numpy as np

from zooid.planner.front import Ints, Mask
from zooid.planner.partition.problem import StageTable
from zooid.predictor.equations.array_checks import Array


class ChainArrays:
    """What a stage with forward f and backward b, and the cut behind it with message c, add to a partial partition.

    All arrays are by [first, end].
    """

    def __init__(self, table: StageTable) -> None:
        cut_s = table.cut_s
        self.num_layers = table.num_layers
        self.later_grains = table.num_grains - 1
        """Number of grains after the first: M − 1."""
        self.fits = table.fits
        self.longest_forward_s = np.maximum(table.forward_s, cut_s)
        self.longest_backward_s = np.maximum(table.backward_s, cut_s)
        self.forward_sum_s = table.forward_s + cut_s
        self.backward_sum_s = table.backward_s + cut_s
        self.grain_s = np.where(table.fits, self.backward_sum_s + self.forward_sum_s, np.inf)
        self.reduce_s = table.reduce_s
        self.has_reduces = bool(table.reduce_s.any())


@dataclass(frozen=True)
class SuffixLabels:
    """Partitions of the last layers of the chain. Each belongs to a case, which is one total number of stages."""

    case: Ints
    first: Ints
    """The first layer that has a stage."""
    parent: Ints
    """Index of the label in the previous level that this one extends by a stage."""
    grain_s: Array
    """W: Σ (f + b + 2c), the time of one grain through the stages."""
    forward_s: Array
    """T: the largest max(f, c)."""
    backward_s: Array
    """R: the largest max(b, c)."""
    after_s: Array
    """Z: how long after the first stage's Σ (b + c) the last all-reduce ends."""

    def __getitem__(self, chosen: Ints | Mask) -> "SuffixLabels":
        return SuffixLabels(*(getattr(self, field.name)[chosen] for field in fields(self)))

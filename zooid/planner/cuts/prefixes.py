"""What the part of a chain that is not placed yet takes at least, for every number of stages: bounds for the search."""

import numpy as np
from numpy.typing import NDArray

from zooid.planner.cuts.table import StageTable


class Stages:
    """A table in the terms of the search: what a stage and the cut behind it do to a label."""

    def __init__(self, table: StageTable) -> None:
        cut_s = table.cut_s
        self.num_layers = table.num_layers
        self.others = table.num_grains - 1
        """Grains after the first: M − 1."""
        self.fits = table.fits
        self.forward_s = np.maximum(table.forward_s, cut_s)
        self.backward_s = np.maximum(table.backward_s, cut_s)
        self.passing_s = table.backward_s + cut_s
        self.sending_s = table.forward_s + cut_s
        self.reduce_s = table.reduce_s
        self.has_reduces = bool(table.reduce_s.any())
        self.grain_s = np.where(table.fits, self.passing_s + self.sending_s, np.inf)


class Prefixes:
    """For [num_stages, end]: the least, over all partitions of the layers before `end` into so many stages, of

    - `grain_s`: Σ (f + b + 2c), and the first stage's reduce
    - `sending_s`, `passing_s`: Σ (f + c), Σ (b + c)
    - `forward_s`, `backward_s`, `both_s`: the largest max(f, c), max(b, c), and sum of these two
    - `reduced_s`: when the last of the reduces ends, counted like `grain_s`: what all stages take from the one that
      reduces on, Σ (f + c) of those before it, and its reduce; `later_s`: with its own (M − 1) max(b, c) besides

    each by itself; where nothing fits, sums are infinite and the slowest are 0.
    """

    def __init__(self, stages: Stages, most_stages: int) -> None:
        absent = np.where(stages.fits, 0.0, np.inf)
        both_s = stages.forward_s + stages.backward_s
        sums = absent + np.stack([stages.grain_s, stages.sending_s, stages.passing_s])
        maxima = absent + np.stack([stages.forward_s, stages.backward_s, both_s])
        num_ends = stages.num_layers + 1
        found = np.full((most_stages + 1, 8, num_ends), np.inf)
        found[0, :, 0] = 0.0
        ends_s = np.stack([stages.reduce_s, stages.reduce_s + stages.others * stages.backward_s]) + stages.grain_s
        chosen = np.zeros((most_stages + 1, num_ends), np.int64)
        for count in range(1, most_stages + 1):
            before = found[count - 1, :, :, None]
            added = before[:3] + sums
            if count == 1:
                added[0] += stages.reduce_s
            added.min(axis=1, out=found[count, :3])
            longest = np.maximum(before[3:6], maxima)
            longest.min(axis=1, out=found[count, 3:6])
            chosen[count] = longest[2].argmin(axis=0)
            np.maximum(before[6:] + stages.grain_s, before[1] + ends_s).min(axis=1, out=found[count, 6:])
        self.grain_s, self.sending_s, self.passing_s = found[:, 0], found[:, 1], found[:, 2]
        slowest_s = np.where(np.isfinite(found[:, 3:6]), found[:, 3:6], 0.0)  # no infinity that M − 1 = 0 multiplies
        self.forward_s, self.backward_s, self.both_s = slowest_s[:, 0], slowest_s[:, 1], slowest_s[:, 2]
        self.reduced_s, self.later_s = found[:, 6], found[:, 7]
        self._chosen = chosen

    def balanced(self, num_stages: int) -> NDArray[np.int64]:
        """The ends of the stages of the partition whose slowest stage is the fastest."""
        ends = [self._chosen.shape[1] - 1]
        for count in range(num_stages, 1, -1):
            ends.append(int(self._chosen[count, ends[-1]]))
        return np.array(ends[::-1])

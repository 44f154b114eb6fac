"""Half-built pipelines, from the last stage on towards the first, as columns of numbers."""

from dataclasses import dataclass, fields

import numpy as np

from zooid.planner.resources.stages import Ints, Stages
from zooid.predictor.equations.array_checks import Array


@dataclass(frozen=True, eq=False)
class Labels:
    """All that matters of stages behind `first` for the time of whatever is put in front of them.

    With these, t_iter = ended + (μ − 1) · ahead once `first` is 0: (7) of FuncPipe, built up stage by stage.
    """

    first: Ints
    both_s: Array
    """Forward and backward sums, with the crossing in front."""
    ended_s: Array
    """The forward sum, and the latest end of a stage's backward and synchronisation."""
    ahead_s: Array
    """∆f so far."""
    back_s: Array
    """∆b so far."""
    rate: Array
    """Dollars a second of one replica."""
    height_s: Array
    parent: Ints
    stage: Ints

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, at: Ints) -> "Labels":
        return Labels(*(getattr(self, field.name)[at] for field in fields(self)))

    @classmethod
    def joined(cls, parts: list["Labels"]) -> "Labels":
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @classmethod
    def empty_pipeline(cls, num_layers: int) -> "Labels":
        zero, none = np.zeros(1), np.full(1, -1)
        return cls(np.full(1, num_layers), zero, np.full(1, -np.inf), zero, zero, zero, zero, none, none)

    def extended(self, rows: Ints, stages: Stages, chosen: Ints, parents: Ints) -> "Labels":
        """Each of the labels in `rows` with a stage of `chosen` in front of it."""
        forwards = stages.ahead_s[chosen]
        both_s = self.both_s[rows] + forwards + stages.back_s[chosen]
        back_s = self.back_s[rows]
        own_end_s = both_s + stages.laps * np.maximum(back_s, stages.longest_own_s[chosen]) + stages.sync_s[chosen]
        return Labels(
            first=stages.first[chosen],
            both_s=both_s + stages.get_s[chosen],
            ended_s=np.maximum(self.ended_s[rows] + forwards, own_end_s),
            ahead_s=np.maximum(self.ahead_s[rows], stages.longest_ahead_s[chosen]),
            back_s=np.maximum(back_s, stages.longest_back_s[chosen]),
            rate=self.rate[rows] + stages.usd_per_s[chosen],
            height_s=np.maximum(self.height_s[rows], stages.height_s[chosen]),
            parent=parents[rows],
            stage=chosen,
        )

    def time_s(self, laps: int) -> Array:
        """t_iter, of labels that are complete."""
        return self.ended_s + laps * self.ahead_s

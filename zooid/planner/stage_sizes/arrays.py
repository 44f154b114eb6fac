"""All stages that may exist at one degree of replication, and partial pipelines of them, as arrays.

A message's put belongs to the stage before the cut and its get to the stage behind it, each at its own bandwidth. So
what a stage adds to FuncPipe's step time depends on that stage only, and a pipeline is a path over the layers whose
edges are stages.
"""

from dataclasses import dataclass, fields

import numpy as np

from zooid.planner.front import Ints
from zooid.planner.stage_sizes.problem import StageSizesProblem
from zooid.predictor.equations.array_checks import Array


class SizedStages:
    """The stages of one degree that fit their member's memory (3b), sorted by `end`.

    For one grain, f and b are the times of computing with β, put and get those of the messages.
    """

    def __init__(self, problem: StageSizesProblem, degree: int) -> None:
        layers, sizes, replication = problem.layers, problem.sizes, problem.degrees[degree]
        self.num_layers = len(layers)
        self.num_replicas = replication.num_replicas
        self.later_grains = replication.num_grains - 1
        """μ − 1: how often the slowest station is waited for."""
        ends = np.arange(self.num_layers + 1)
        fits = problem.needed_bytes[degree][..., None] <= sizes.memory_bytes
        first, end, size = np.nonzero(fits & (ends[:-1, None] < ends)[..., None])
        order = np.lexsort((size, first, end))
        self.first, self.end, self.size = first, end, size = first[order], end[order], size[order]
        self._begins = np.searchsorted(end, np.arange(self.num_layers + 2))

        factor = problem.slowdown * problem.slowness(degree, first, end, size)

        def compute_s(times_s: Array) -> Array:
            total_s = np.concatenate([np.zeros((1, len(sizes))), np.cumsum(times_s, axis=0)])
            stage_s: Array = factor * (total_s[end, size] - total_s[first, size])
            return stage_s

        cut_bytes = np.concatenate([[0.0], layers.out_bytes[:-1], [0.0]])[:, None]
        message_s = np.where(cut_bytes > 0, cut_bytes / sizes.bytes_per_s + problem.latency_s, 0.0)
        put_s, get_s = message_s[end, size], message_s[first, size]
        forward_s, backward_s = compute_s(layers.forward_s), compute_s(layers.backward_s)
        self.forward_sum_s = forward_s + put_s + get_s
        self.backward_sum_s = backward_s + put_s
        self.get_s = get_s
        """Time of the crossing in front of the stage. On the way back, only the stages before it wait for that."""
        self.longest_forward_s = np.maximum(np.maximum(forward_s, put_s), get_s)
        self.longest_own_s = np.maximum(backward_s, put_s)
        """What the stage's own backward waits for."""
        self.longest_backward_s = np.maximum(self.longest_own_s, get_s)
        self.height_s = self.longest_forward_s + self.longest_backward_s
        """Lower bound of ∆f + ∆b with this stage. The largest of its stages is a pipeline's height."""
        total_bytes = np.concatenate([[0.0], np.cumsum(layers.parameter_bytes)])
        parameter_bytes = np.maximum(total_bytes[end] - total_bytes[first], 0.0)
        bytes_per_s = sizes.bytes_per_s[size]
        self.sync_s = problem.all_reduce(parameter_bytes, self.num_replicas, bytes_per_s, problem.latency_s)
        self.usd_per_s = problem.usd_per_s(degree, first, end, size)

    def __len__(self) -> int:
        return len(self.first)

    def ending_at(self, end: int) -> slice:
        return slice(int(self._begins[end]), int(self._begins[end + 1]))

    def spans(self, path: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
        """First layer, end and size of the stages with these indices."""
        return tuple((int(self.first[index]), int(self.end[index]), int(self.size[index])) for index in path)


@dataclass(frozen=True, eq=False)
class PartialPipelines:
    """Pipelines of the layers from `first` on, with all that the time of whatever is put in front depends on.

    Once `first` is 0, t_iter = ended + (μ − 1) · ∆f: FuncPipe's (7), built up stage by stage.
    """

    first: Ints
    both_s: Array
    """Forward and backward sums, with the crossing in front."""
    ended_s: Array
    """The forward sum plus the latest end of a stage's backward and synchronisation."""
    longest_forward_s: Array
    """∆f so far."""
    longest_backward_s: Array
    """∆b so far."""
    usd_per_s: Array
    """Price of one replica."""
    height_s: Array
    parent: Ints
    """Number of the partial pipeline that this one extends by a stage."""
    stage: Ints
    """Index of the first stage."""

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: Ints) -> "PartialPipelines":
        return PartialPipelines(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, parts: list["PartialPipelines"]) -> "PartialPipelines":
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @classmethod
    def empty(cls, num_layers: int) -> "PartialPipelines":
        zero, none = np.zeros(1), np.full(1, -1)
        return cls(np.full(1, num_layers), zero, np.full(1, -np.inf), zero, zero, zero, zero, none, none)

    def extended(self, rows: Ints, stages: SizedStages, chosen: Ints, numbers: Ints) -> "PartialPipelines":
        """Put the stages `chosen` in front of `rows`; `numbers` numbers all rows."""
        forward_sum_s = stages.forward_sum_s[chosen]
        both_s = self.both_s[rows] + forward_sum_s + stages.backward_sum_s[chosen]
        longest_s = self.longest_backward_s[rows]
        waits_s = stages.later_grains * np.maximum(longest_s, stages.longest_own_s[chosen])
        return PartialPipelines(
            first=stages.first[chosen],
            both_s=both_s + stages.get_s[chosen],
            ended_s=np.maximum(self.ended_s[rows] + forward_sum_s, both_s + waits_s + stages.sync_s[chosen]),
            longest_forward_s=np.maximum(self.longest_forward_s[rows], stages.longest_forward_s[chosen]),
            longest_backward_s=np.maximum(longest_s, stages.longest_backward_s[chosen]),
            usd_per_s=self.usd_per_s[rows] + stages.usd_per_s[chosen],
            height_s=np.maximum(self.height_s[rows], stages.height_s[chosen]),
            parent=numbers[rows],
            stage=chosen,
        )

    def time_s(self, later_grains: int) -> Array:
        """Step time t_iter of complete pipelines."""
        return self.ended_s + later_grains * self.longest_forward_s

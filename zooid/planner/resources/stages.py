"""Every stage that may exist at one degree of replication, with all that FuncPipe's iteration time takes of it.

A message's put belongs to the stage before the cut and its get to the stage behind, each at its own bandwidth. So what
a stage adds to the time depends on nothing but itself, and a pipeline is a path over the layers whose edges are stages.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zooid.planner.resources.problem import Problem
from zooid.predictor.equations.array_checks import Array

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stages:
    """Flat arrays, by the layer behind the stage's last one: those that end at `end` are `slice(*bounds[end:end + 2])`.

    put and get are the messages' times, f and b those of computing, with β; all of one grain.
    """

    num_layers: int
    num_replicas: int
    laps: int
    """μ − 1: how often the slowest station is waited for."""
    bounds: Ints
    first: Ints
    end: Ints
    size: Ints
    ahead_s: Array
    """f + put + get: what it adds to the forward sum."""
    back_s: Array
    """b + put: what it adds to its own backward, before it hands on."""
    get_s: Array
    """The crossing in front of it, which only the stages before it wait for on the way back."""
    longest_ahead_s: Array
    """max(f, put, get)."""
    longest_own_s: Array
    """max(b, put): what its own backward waits for."""
    longest_back_s: Array
    """max(b, put, get)."""
    height_s: Array
    """The least that ∆f + ∆b can be with this stage; the largest of a pipeline is the pipeline's height."""
    sync_s: Array
    usd_per_s: Array

    def __len__(self) -> int:
        return len(self.first)

    def ending_at(self, end: int) -> slice:
        return slice(int(self.bounds[end]), int(self.bounds[end + 1]))

    def named(self, path: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
        """First layer, end and size of each."""
        return tuple((int(self.first[at]), int(self.end[at]), int(self.size[at])) for at in path)


def stages_of(problem: Problem, degree: int) -> Stages:
    """All that fit their member's memory, (3b)."""
    layers, sizes, chosen = problem.layers, problem.sizes, problem.degrees[degree]
    num_layers = len(layers)
    is_run = np.arange(num_layers)[:, None] < np.arange(num_layers + 1)
    first, end, size = np.nonzero(problem.fits(degree) & is_run[..., None])
    order = np.lexsort((size, first, end))
    first, end, size = first[order], end[order], size[order]

    def computed_s(times_s: Array) -> Array:
        total = np.concatenate([np.zeros((1, len(sizes))), np.cumsum(times_s, axis=0)])
        taken: Array = problem.slowdown * (total[end, size] - total[first, size])
        return taken

    moved = np.concatenate([[0.0], layers.out_bytes[:-1], [0.0]])[:, None]
    message_s = np.where(moved > 0, moved / sizes.bytes_per_s + problem.latency_s, 0.0)
    put_s, get_s = message_s[end, size], message_s[first, size]
    forward_s, backward_s = computed_s(layers.forward_s), computed_s(layers.backward_s)
    parameters = np.concatenate([[0.0], np.cumsum(layers.parameter_bytes)])
    held = np.maximum(parameters[end] - parameters[first], 0.0)
    ahead = np.maximum(np.maximum(forward_s, put_s), get_s)
    own = np.maximum(backward_s, put_s)
    back = np.maximum(own, get_s)
    return Stages(
        num_layers=num_layers,
        num_replicas=chosen.num_replicas,
        laps=chosen.num_grains - 1,
        bounds=np.searchsorted(end, np.arange(num_layers + 2)),
        first=first,
        end=end,
        size=size,
        ahead_s=forward_s + put_s + get_s,
        back_s=backward_s + put_s,
        get_s=get_s,
        longest_ahead_s=ahead,
        longest_own_s=own,
        longest_back_s=back,
        height_s=ahead + back,
        sync_s=problem.all_reduce(held, chosen.num_replicas, sizes.bytes_per_s[size], problem.latency_s),
        usd_per_s=sizes.usd_per_s[size],
    )

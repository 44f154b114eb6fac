"""Many small layers as fewer, larger ones, so that a search has fewer places to cut (FuncPipe §4).

Three criteria: groups of about the same time, parameters or activations. The largest group is as small as it can be.
"""

import math
from itertools import accumulate
from typing import Literal, get_args

from zooid.core.errors import InputError
from zooid.core.plans.profile import Profile

MergeBy = Literal["time", "parameters", "activations"]
Span = tuple[int, int]


def merge_layers(profile: Profile, num_groups: int, by: MergeBy = "time", grain_size: int | None = None) -> list[Span]:
    """[first, end) of each group: at most so many, each a run of layers, the heaviest as light as possible.

    Times and activations are those of a grain of `grain_size` samples; the largest that was measured if not given.
    """
    if num_groups < 1:
        raise InputError(f"{num_groups} groups of layers are asked for; ask for at least 1")
    if by not in get_args(MergeBy):
        raise InputError(f"layers cannot be merged by {by!r}; give {', '.join(get_args(MergeBy))}")
    size = grain_size or profile.layers[0].points[-1].num_samples
    weights = [
        {
            "time": layer.forward_s(size) + layer.backward_s(size),
            "parameters": float(layer.parameter_bytes),
            "activations": layer.activations.at(size),
        }[by]
        for layer in profile.layers
    ]
    return balanced_spans(weights, num_groups)


def balanced_spans(weights: list[float], num_groups: int) -> list[Span]:
    """Runs of weights whose largest sum is the least possible, exactly: one of the sums of a run is the answer."""
    total = [0.0, *accumulate(weights)]
    count = len(weights)

    def spans_within(most: float) -> list[Span] | None:
        spans: list[Span] = []
        first = 0
        for end in range(1, count + 1):
            if total[end] - total[first] > most:
                if end - 1 == first:
                    return None
                spans.append((first, end - 1))
                first = end - 1
                if total[end] - total[first] > most:
                    return None
        spans.append((first, count))
        return spans if len(spans) <= num_groups else None

    candidates = sorted({total[end] - total[first] for first in range(count) for end in range(first + 1, count + 1)})
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if spans_within(candidates[middle]) is not None else (middle + 1, high)
    found = spans_within(math.nextafter(candidates[low], math.inf))
    assert found is not None, "one group holds everything"
    return found

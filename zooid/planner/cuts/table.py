"""What every stage that can be cut out of a chain of layers takes: the numbers that a partition is chosen by."""

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zooid.core.errors import InputError
from zooid.predictor.equations import LinkFit, ring_s
from zooid.predictor.equations.array_checks import Array, above_zero, at_least

Partition = tuple[tuple[int, int], ...]
"""[first, end) of every stage."""

_NOTHING_MORE = LinkFit()


@dataclass(frozen=True, eq=False)
class StageTable:
    """For L layers, arrays of (L + 1) × (L + 1): what the stage [first, end) takes stands at [first, end].

    Nothing has to be a sum over layers: a first stage may read samples besides, tied parameters may count once. What
    stands where `first` is not below `end` counts for nothing.
    """

    forward_s: Array
    """For one grain."""
    backward_s: Array
    cut_s: Array
    """By `end`: one message over the cut behind the stage, one way; L + 1 numbers, of which first and last count for
    nothing."""
    num_grains: int
    """That pass the stages of one replica in a step."""
    reduce_s: Array
    """What the replicas' all-reduce takes after the stage's last backward; zeros where there is one replica."""
    fits: NDArray[np.bool_]
    """Whether a member can hold the stage."""

    def __post_init__(self) -> None:
        if self.num_grains < 1:
            raise InputError(f"`num_grains` is {self.num_grains}; it must be at least 1")
        shapes = {field.name: np.shape(getattr(self, field.name)) for field in fields(self)}
        del shapes["num_grains"]
        num_ends = len(self.cut_s) if np.ndim(self.cut_s) == 1 else 0
        wanted = {name: (num_ends,) * (1 if name == "cut_s" else 2) for name in shapes}
        if num_ends < 2 or shapes != wanted:
            told = ", ".join(f"`{name}` has {shape}" for name, shape in shapes.items())
            raise InputError(
                f"the shapes of a table of stages do not agree: {told}; for L layers give (L + 1,) for `cut_s` and "
                "(L + 1, L + 1) for the others, with at least one layer"
            )
        is_stage = np.triu(np.ones((num_ends, num_ends), bool), 1)
        for name in ("forward_s", "backward_s", "reduce_s"):
            counted = np.where(is_stage, getattr(self, name), 0.0)
            object.__setattr__(self, name, at_least(0, name, counted))
            _refuse_infinite(name, counted)
        cut_s = np.array(self.cut_s, np.float64)
        cut_s[[0, -1]] = 0.0
        object.__setattr__(self, "cut_s", at_least(0, "cut_s", cut_s))
        _refuse_infinite("cut_s", cut_s)
        object.__setattr__(self, "fits", np.asarray(self.fits, bool) & is_stage)

    @property
    def num_layers(self) -> int:
        return len(self.cut_s) - 1

    @classmethod
    def of_layers(
        cls,
        forward_s: ArrayLike,
        backward_s: ArrayLike,
        out_bytes: ArrayLike,
        parameter_bytes: ArrayLike,
        bytes_per_s: float,
        num_grains: int,
        *,
        num_replicas: int = 1,
        link: LinkFit = _NOTHING_MORE,
        fits: ArrayLike | None = None,
    ) -> "StageTable":
        """Stages as sums over their layers, and members that are all alike: Hydrozoa's case (§3.3, §3.4).

        The arguments are those of `Pipeline` and `hydrozoa_step_s`, by layer instead of by stage; `fits` says of every
        [first, end] whether a member can hold it, and all can where it is not given.
        """
        above_zero("bytes_per_s", bytes_per_s)
        forward, backward, sizes = sums(forward_s), sums(backward_s), sums(parameter_bytes)
        cut_s = np.append(0.0, at_least(0, "out_bytes", out_bytes)) / bytes_per_s
        reduce_s = ring_s(sizes, num_replicas, bytes_per_s, link.s_per_message, link.s_per_byte)
        return cls(
            forward_s=forward,
            backward_s=backward,
            cut_s=cut_s,
            num_grains=num_grains,
            reduce_s=reduce_s,
            fits=np.ones(forward.shape, bool) if fits is None else np.asarray(fits, bool),
        )

    def step_s(self, ends: NDArray[np.int64]) -> Array:
        """Hydrozoa's step (§3.4) of partitions into as many stages each; the last axis is the stages' ends.

        T = max_j (T^(M)_j + T^(D)_j), as `hydrozoa_step_s` has it; infinite where a stage does not fit.
        """
        firsts = np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
        forward, backward, cut = self.forward_s[firsts, ends], self.backward_s[firsts, ends], self.cut_s[ends]
        others = self.num_grains - 1
        forward_end = forward.sum(-1) + cut.sum(-1) + others * np.maximum(forward, cut).max(-1)
        passing = np.add.accumulate((backward + cut)[..., ::-1], axis=-1)[..., ::-1]
        slowest = np.maximum.accumulate(np.maximum(backward, cut)[..., ::-1], axis=-1)[..., ::-1]
        last = (passing + others * slowest + self.reduce_s[firsts, ends]).max(-1)
        total: Array = np.where(self.fits[firsts, ends].all(-1), forward_end + last, np.inf)
        return total


def sums(values: ArrayLike) -> Array:
    """[first, end] of the sums of values from `first` up to, not including, `end`; 0 where there are none."""
    given = np.asarray(values, np.float64)
    table = np.zeros((len(given) + 1, len(given) + 1))
    for first in range(len(given)):  # each row from its own begin: no digits are lost to a longer sum
        table[first, first + 1 :] = np.cumsum(given[first:])
    return table


def partition_of(ends: NDArray[np.int64]) -> Partition:
    bounds = [0, *ends.tolist()]
    return tuple(pairwise(bounds))


def _refuse_infinite(name: str, values: Array) -> None:
    if not np.isfinite(values).all():
        raise InputError(f"`{name}` has a value that is not finite; say with `fits` which stages cannot be")

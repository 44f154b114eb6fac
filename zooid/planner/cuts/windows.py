"""How slow the slowest stages of a good partition can be, and what one grain then takes at least.

Fewer seconds for the slowest stages cost more for the cuts: each without the other is a weak bound. So the range of
T + R, the slowest of the forward and of the backward together, is divided into cells. Within a cell stages are no
longer than its upper end allows, and a dynamic program finds the least that one grain takes; T + R is at least its
lower end. Cells in which that sum cannot beat the best partition known are left out, the others divided again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from zooid.planner.cuts.prefixes import Prefixes, Stages
from zooid.predictor.equations.array_checks import Array

Ints: TypeAlias = NDArray[np.int64]
Propose: TypeAlias = Callable[[int, Ints], None]
"""Takes the index of a case and the ends of the stages of a partition that was found for it."""

ROUNDING = 1e-12
"""What is nearer to the best than this part of it counts as no better."""


@dataclass(frozen=True)
class Cell:
    """A range of T + R for each case; a case is one number of stages in all."""

    low_s: Array
    high_s: Array
    grain_s: Array
    """[case, num_stages, end]: of the layers before `end` in so many stages, the least Σ (f + b + 2c) and the first
    stage's reduce; infinite for cases in which nothing within the cell can be better than what is known."""


@dataclass(frozen=True)
class Windows:
    """What can still be better than the best partitions known."""

    cells: list[Cell]
    earliest: Ints
    """[case, end]: the first layer of the longest stage that ends there; behind the end where there is none."""
    allowed: NDArray[np.bool_]
    """[case, first, end]"""
    least_both_s: Array
    """T + R, by case."""


def find_windows(
    stages: Stages, prefixes: Prefixes, counts: Ints, best_s: Callable[[], Array], propose: Propose, num_cells: int
) -> Windows:
    """For cases that ascend in `counts`. What the dynamic programs find is proposed, so that `best_s` may fall."""
    if not stages.others:  # then the slowest stage does not count
        return _anything(stages, prefixes, counts)
    floors = prefixes.forward_s[counts, -1], prefixes.backward_s[counts, -1]
    low_s = np.maximum(floors[0] + floors[1], prefixes.both_s[counts, -1])
    high_s = np.maximum((best_s() - prefixes.grain_s[counts, -1]) / stages.others, low_s)
    for parts in (1, num_cells, num_cells):
        edges_s = [low_s + (high_s - low_s) * part / parts for part in range(parts)] + [high_s]
        cells = []
        for cell_low_s, cell_high_s in pairwise(edges_s):
            earliest = _earliest(_allowed(stages, cell_high_s, floors))
            grain_s = least_grain_s(stages, counts, earliest)
            for case, ends in enumerate(_cheapest(stages, counts, earliest, grain_s)):
                if ends is not None:
                    propose(case, ends)
            cells.append(Cell(cell_low_s, cell_high_s, grain_s))
        low_s, high_s = _still_good(stages, counts, cells, best_s())
        if not high_s.any():
            break
    allowed = _allowed(stages, high_s, floors)
    return Windows(cells, _earliest(allowed), allowed, low_s)


def _anything(stages: Stages, prefixes: Prefixes, counts: Ints) -> Windows:
    nothing = np.zeros(len(counts))
    grain_s = np.broadcast_to(prefixes.grain_s, (len(counts), *prefixes.grain_s.shape))
    allowed = np.broadcast_to(stages.fits, (len(counts), *stages.fits.shape))
    return Windows([Cell(nothing, nothing + np.inf, grain_s)], _earliest(allowed), allowed, nothing)


def _still_good(stages: Stages, counts: Ints, cells: list[Cell], best_s: Array) -> tuple[Array, Array]:
    """The range of the cells in which something better can be; of the others the times are made infinite."""
    cases = np.arange(len(counts))
    low_s, high_s = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    for cell in cells:
        grain_s = cell.grain_s[cases, counts, -1]
        is_good = grain_s + stages.others * cell.low_s < best_s * (1 - ROUNDING)
        cell.grain_s[~is_good] = np.inf
        most_s = np.minimum(cell.high_s, (best_s * (1 + ROUNDING) - grain_s) / stages.others)
        low_s = np.where(is_good, np.minimum(low_s, cell.low_s), low_s)
        high_s = np.where(is_good, np.maximum(high_s, most_s), high_s)
    is_open = high_s >= low_s
    return np.where(is_open, low_s, 0.0), np.where(is_open, high_s, 0.0)


def _allowed(stages: Stages, both_s: Array, floors: tuple[Array, Array]) -> NDArray[np.bool_]:
    """Which stages are within a bound on T + R, when T and R are at least what they are in any partition."""
    bound_s = (both_s * (1 + ROUNDING))[:, None, None]
    least_forward_s, least_backward_s = (floor[:, None, None] for floor in floors)
    allowed: NDArray[np.bool_] = (
        stages.fits
        & (stages.forward_s <= bound_s - least_backward_s)
        & (stages.backward_s <= bound_s - least_forward_s)
        & (stages.forward_s + stages.backward_s <= bound_s)
    )
    return allowed


def _earliest(allowed: NDArray[np.bool_]) -> Ints:
    earliest: Ints = np.where(allowed.any(axis=1), allowed.argmax(axis=1), allowed.shape[-1])
    return earliest


def _longest(earliest: Ints) -> Ints:
    """In layers, by [case, end]."""
    num_ends = earliest.shape[1]
    return np.where(earliest < num_ends, np.arange(num_ends) - earliest, 0)


def least_grain_s(stages: Stages, counts: Ints, earliest: Ints) -> Array:
    """For [case, num_stages, end]: the least Σ (f + b + 2c), and the first stage's reduce, of the layers before `end`.

    Where there are many stages they are short, so that all cases together take some L³ steps.
    """
    num_ends = stages.num_layers + 1
    longest = _longest(earliest)
    longest_of_case = np.maximum.accumulate(longest.max(axis=1)[::-1])[::-1]  # of it and of all that have more stages
    found = np.full((len(counts), int(counts[-1]) + 1, num_ends), np.inf)
    found[:, 0, 0] = 0.0
    for placed in range(1, int(counts[-1]) + 1):
        begin = int(np.searchsorted(counts, placed))
        before, after = found[begin:, placed - 1], found[begin:, placed]
        for length in range(1, int(longest_of_case[begin]) + 1):
            end = begin + int(np.searchsorted(-longest_of_case[begin:], -length, side="right"))
            of_stage = np.diagonal(stages.grain_s, length)
            if placed == 1:
                of_stage = of_stage + np.diagonal(stages.reduce_s, length)
            taken = before[: end - begin, :-length] + of_stage
            taken[longest[begin:end, length:] < length] = np.inf
            np.minimum(after[: end - begin, length:], taken, out=after[: end - begin, length:])
    return found


def _cheapest(stages: Stages, counts: Ints, earliest: Ints, grain_s: Array) -> list[Ints | None]:
    """The ends of the stages of a partition that takes `grain_s`, for each case; None where there is none."""
    num_cases, num_layers = len(counts), stages.num_layers
    longest = _longest(earliest)
    if not longest.any():
        return [None] * num_cases
    lengths = np.arange(1, int(longest.max()) + 1)
    ends = np.full((num_cases, int(counts[-1])), num_layers)
    for later in range(int(counts[-1]) - 1):  # how many stages follow; the first stage begins at 0 by itself
        (cases,) = np.nonzero(counts > later + 1)
        stage = counts[cases] - 1 - later
        end = ends[cases, stage]
        first = np.maximum(end[:, None] - lengths, 0)
        taken = grain_s[cases[:, None], stage[:, None], first] + stages.grain_s[first, end[:, None]]
        taken[longest[cases, end][:, None] < lengths] = np.inf
        ends[cases, stage - 1] = first[np.arange(len(cases)), taken.argmin(axis=1)]
    exists = np.isfinite(grain_s[np.arange(num_cases), counts, -1])
    return [ends[case, : counts[case]] if exists[case] else None for case in range(num_cases)]

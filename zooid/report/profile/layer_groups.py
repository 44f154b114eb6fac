"""Layers put together by their names, so that the table of a deep model fits a screen."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

MOST_ROWS = 40
FEWEST_ROWS = 10
"""Where names with one part less would leave fewer rows than this, neighbours are put together in runs instead."""

_PARTS = re.compile(r"[.#]?[^.#]+")


@dataclass(frozen=True)
class Group:
    """Neighbouring layers, and the name that they have in common."""

    name: str
    first_layer: int
    end_layer: int

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.first_layer


def grouped(names: Sequence[str]) -> list[Group]:
    """Each layer by itself where there are few; else layers whose module paths begin alike, at most `MOST_ROWS` groups.

    As many parts of the path count as give a table that fits. Where that leaves very few rows (a hundred equal blocks
    in one list), the next part counts, too, and blocks are put together in runs: `h.0 … 2`.
    """
    layers = [Group(name, number, number + 1) for number, name in enumerate(names)]
    if len(layers) <= MOST_ROWS:
        return layers
    deepest = max(len(_parts(name)) for name in names)
    depth = next((depth for depth in range(1, deepest) if len(_begin_alike(layers, depth)) > MOST_ROWS), deepest)
    coarse = _begin_alike(layers, depth - 1)
    if len(coarse) >= FEWEST_ROWS:
        return coarse
    fine = layers if depth == deepest else _begin_alike(layers, depth)
    runs = (_runs(fine, depth - 1, length) for length in range(2, len(fine) + 1))
    return next(groups for groups in runs if len(groups) <= MOST_ROWS)


def _begin_alike(groups: Sequence[Group], depth: int) -> list[Group]:
    """Neighbours with the same leading parts, together; one that has none keeps its own name."""
    return [
        _together(neighbours, name if len(neighbours) > 1 else neighbours[0].name)
        for name, neighbours in _neighbours(groups, depth)
    ]


def _runs(groups: Sequence[Group], depth: int, length: int) -> list[Group]:
    """So many neighbours at a time, among those with the same leading parts."""
    result = []
    for _, neighbours in _neighbours(groups, depth):
        for begin in range(0, len(neighbours), length):
            run = neighbours[begin : begin + length]
            first, last = run[0].name, run[-1].name
            result.append(_together(run, first if len(run) == 1 else f"{first} … {_parts(last)[-1].lstrip('.')}"))
    return result


def _neighbours(groups: Sequence[Group], depth: int) -> list[tuple[str, list[Group]]]:
    def leading(group: Group) -> str:
        return "".join(_parts(group.name)[:depth])

    return [(name, list(neighbours)) for name, neighbours in groupby(groups, leading)]


def _together(groups: Sequence[Group], name: str) -> Group:
    return Group(name, groups[0].first_layer, groups[-1].end_layer)


def _parts(name: str) -> list[str]:
    """Of a module path, with the number that tells layers of one module apart as the last."""
    return _PARTS.findall(name) or [name]

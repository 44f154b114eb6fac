"""Watchers of the cuts inside a stage, through which values pass unchanged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Watcher = Callable[..., tuple[torch.Tensor, ...]]
"""(layer that begins at the cut, *values) -> the same values"""

_watchers: list[Watcher] = []


@contextmanager
def watching_cuts(watcher: Watcher) -> Iterator[None]:
    """While inside, every mark of a stage that was built with marks calls the watcher."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def pass_cut(layer: int, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Pass values at a marked cut to all watchers; generated stages call this function."""
    for watcher in _watchers:
        values = watcher(layer, *values)
    return values

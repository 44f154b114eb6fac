"""Cuts inside a stage that someone wants to watch: values pass through them unchanged."""

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
    """Called by generated stages at each cut inside them that is marked."""
    for watcher in _watchers:
        values = watcher(layer, *values)
    return values

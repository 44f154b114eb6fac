"""Random numbers that depend on run, step, grain and layer alone, so that a step run again is the same step."""

import contextlib
import threading
from collections.abc import Iterator

import torch

from zooid.schedule.samples import derive_seed

_current = threading.local()


@contextlib.contextmanager
def grain_randomness(seed: int, step: int, grain: int) -> Iterator[None]:
    """What is drawn inside belongs to this grain; `seed_layer` completes the seed with the layer."""
    _current.key = (seed, step, grain)
    try:
        yield
    finally:
        _current.key = None


def seed_layer(layer: int) -> None:
    """Called by generated stages at the start of every layer that draws random numbers; no-op outside a grain."""
    key = getattr(_current, "key", None)
    if key is not None:
        torch.manual_seed(derive_seed("layer", *key, layer))

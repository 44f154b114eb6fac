"""Random numbers that depend on run, step, grain and layer alone, so that a step run again is the same step."""

import contextlib
import random
import threading
from collections.abc import Iterator

import numpy as np
import torch

from zooid.schedule.samples import derive_seed

_current = threading.local()
_SPREAD = 0x9E3779B97F4A7C15
"""2⁶⁴ divided by the golden ratio: its multiples differ in high and low bits alike."""


@contextlib.contextmanager
def grain_randomness(seed: int, step: int, grain: int) -> Iterator[None]:
    """What is drawn inside belongs to this grain; `seed_layer` completes the seed with the layer."""
    _current.seed = derive_seed("grain", seed, step, grain)
    try:
        yield
    finally:
        _current.seed = None


def seed_data(seed: int, step: int, grain: int) -> None:
    """Before a grain's samples are read: all stages that read them then draw the same augmentation."""
    derived = derive_seed("data", seed, step, grain)
    _seed_torch(derived)
    np.random.seed(derived % 2**32)
    random.seed(derived)


def seed_layer(layer: int, outside_torch: bool = False) -> None:
    """Called by generated stages at the start of every layer that draws random numbers; no-op outside a grain.

    `outside_torch` also seeds the generators of Python and numpy, for layers that draw from those.
    """
    seed: int | None = getattr(_current, "seed", None)
    if seed is None:
        return
    mixed = (seed ^ layer * _SPREAD) % 2**63
    _seed_torch(mixed)
    if outside_torch:
        np.random.seed(mixed % 2**32)
        random.seed(mixed)


def _seed_torch(seed: int) -> None:
    """torch.manual_seed would also leave word for devices that do not exist, with a trace of the stack: 0.4 ms."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)

"""Random seeds that depend only on run, step, grain and layer, so that a step run again is the same step."""

import contextlib
import random
import threading
from collections.abc import Iterator

import numpy as np
import torch

from zooid.schedule.samples import derive_seed

_current = threading.local()
_SPREAD = 0x9E3779B97F4A7C15
"""2⁶⁴ divided by the golden ratio, whose multiples differ in high and low bits alike."""


def seed_generators(seed: int) -> None:
    """Seed the generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """On exit, the generators of torch, numpy and Python have the states that they had on entry."""
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


@contextlib.contextmanager
def grain_randomness(seed: int, step: int, grain: int) -> Iterator[None]:
    """While inside, random numbers belong to this grain; `seed_layer` adds the layer to the seed."""
    _current.seed = derive_seed("grain", seed, step, grain)
    try:
        yield
    finally:
        _current.seed = None


def seed_data(seed: int, step: int, grain: int) -> None:
    """Seed all generators for reading a grain's samples, so that all stages draw the same augmentation."""
    derived = derive_seed("data", seed, step, grain)
    _seed_torch(derived)
    np.random.seed(derived % 2**32)
    random.seed(derived)


def seed_layer(layer: int, outside_torch: bool = False) -> None:
    """Seed torch's generator, and with `outside_torch` also numpy's and Python's; do nothing outside a grain.

    Generated stages call it at the start of every layer that draws random numbers.
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
    """Seed only what exists; torch.manual_seed takes 0.4 ms more to queue seeds for devices that do not."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)

"""A factor on the learning rates of an optimizer, for the time of one update."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def scaled_rates(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """Multiply the learning rate of every parameter group by a factor, and restore it afterwards.

    So a scheduler sees only its own rates, whether it computes the next one from the last or from the first.
    """
    if factor == 1.0:
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

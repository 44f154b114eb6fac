"""Measuring what happens to parameters after a backward takes little memory, for a span may leave little."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from zooid.core.jobs.job import Job
from zooid.core.resources.process_memory import forget_peak, peak_resident_bytes
from zooid.layers.disk_tensors import give_back_freed
from zooid.profiler.update_times import measure_optimizer, measure_reduction


def build_layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(2)))


JOB = Job(
    model=build_layers,
    loss=F.mse_loss,
    data=lambda: None,
    optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
    batch_size=1,
    epochs=1,
)


def added_at_most(work: Callable[[], object]) -> int:
    """How far the memory of this process rises above what it was, in bytes."""
    give_back_freed()
    forget_peak()
    before_bytes = peak_resident_bytes()
    work()
    return peak_resident_bytes() - before_bytes


def test_measuring_holds_few_copies_of_the_weights() -> None:
    """Freed memory that the allocator keeps, and cannot use again, would be more of them."""
    layers = build_layers()
    before = [parameter.detach().clone() for parameter in layers.parameters()]
    weights_bytes = sum(parameter.nbytes for parameter in before)
    JOB.optimizer(list(layers.named_parameters()))  # imports much
    layers(torch.rand(4, 2048)).sum().backward()

    added_bytes = added_at_most(lambda: measure_optimizer(JOB, list(layers.named_parameters())))
    assert added_bytes < 1.75 * weights_bytes, "weights to return to; gradients were there before"
    assert all(torch.equal(*pair) for pair in zip(before, layers.parameters(), strict=True))

    layers.zero_grad()
    added_bytes = added_at_most(lambda: measure_reduction(list(layers.parameters())))
    assert added_bytes < 3.75 * weights_bytes, "gradients, a bucket of them, and that of another replica"

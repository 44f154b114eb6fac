"""The gradients of a stage in buckets, each summed over the replicas while the last backward still runs.

Buckets follow the order in which a backward completes gradients. Each is reduced as soon as the step's last backward
has filled it. A single replica has nothing to sum, and its gradients stay where autograd put them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from zooid.schedule.buckets import cut_buckets
from zooid.worker.gradients.flat_bucket import FlatBucket, Values
from zooid.worker.step.pending import begin_all_reduce


@dataclass(frozen=True)
class ReplicaReduction:
    """How the gradients of a stage are summed over its replicas."""

    group: dist.ProcessGroup | None = None
    """The replicas of the stage; None if there is only one."""
    replica: int = 0
    """The number of this replica."""
    is_direct: bool = False
    """Whether replicas connect to each other; otherwise messages go through a store."""
    is_early: bool = True
    """Whether buckets are sent while the last backward still runs."""
    keeps_own: bool = False
    """Whether a member keeps its own sums until the next step begins, to reduce them again with other replicas."""
    num_grains: int = 1
    """Largest number of grains that a step has, over all replicas."""
    is_reproducible: bool = False
    """Whether gradients are added in a fixed tree over grains, whichever replica computed them."""


@dataclass
class GradientBucket:
    """Parameters whose gradients are reduced together. The last bucket also carries the running statistics."""

    parameters: list[nn.Parameter]
    statistics: Sequence[torch.Tensor]
    """Tensors of the shapes and dtypes of the statistics; empty in all other buckets."""
    flat: FlatBucket | None = None
    """The values that travel to the other replicas, allocated when first needed."""


class BucketGradients:
    """The gradients of one stage: filled by backwards, reduced bucket by bucket, held until applied or dropped."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], statistics: Sequence[torch.Tensor], reduction: ReplicaReduction
    ) -> None:
        """`parameters` are in the order in which a backward completes their gradients."""
        self._parameters = list(parameters)
        self._group = reduction.group
        self._keeps_own = reduction.keeps_own
        sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        self._buckets = [
            GradientBucket(self._parameters[first:end], statistics if end == len(parameters) else ())
            for first, end in cut_buckets(sizes, is_direct=reduction.is_direct)
        ]
        self._num_incomplete: list[int] = []
        self._works: list[list[dist.Work]] = []
        self._is_last_backward = False
        self._hooks: list[RemovableHandle] = []
        if self._group is not None and reduction.is_early:
            for number, bucket in enumerate(self._buckets):
                for parameter in bucket.parameters:
                    hook = partial(self._on_gradient, number)
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    @property
    def num_buckets(self) -> int:
        return len(self._buckets)

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Forget the gradients of the step before."""
        for parameter in self._parameters:
            parameter.grad = None
        self._works = []
        self._is_last_backward = False

    def begin_last_backward(self) -> None:
        """From now on, every accumulated gradient is complete, and a full bucket is reduced at once."""
        self._num_incomplete = [len(bucket.parameters) for bucket in self._buckets]
        self._is_last_backward = True

    def reduce(self, number: int, changes: Callable[[], Sequence[torch.Tensor]]) -> list[dist.Work]:
        """Begin to sum a bucket over the replicas, unless it is in flight. The last bucket carries `changes`.

        Buckets go in order, so that all replicas make the same calls.
        """
        if self._group is None:
            return []
        while len(self._works) <= number:
            self._works.append(self._begin_reduce(len(self._works), changes, self._group))
        return self._works[number]

    def _begin_reduce(
        self, number: int, changes: Callable[[], Sequence[torch.Tensor]], group: dist.ProcessGroup
    ) -> list[dist.Work]:
        bucket = self._buckets[number]
        if bucket.flat is None:
            bucket.flat = FlatBucket([parameter.detach() for parameter in bucket.parameters], bucket.statistics)
        gradients = [parameter.grad for parameter in bucket.parameters]
        bucket.flat.fill(gradients, changes() if bucket.statistics else ())
        if not self._keeps_own:
            for parameter in bucket.parameters:
                parameter.grad = None
        return [begin_all_reduce(buffer, group) for buffer in bucket.flat.buffers.values()]

    def held(self) -> Values:
        """The reduced gradient of every parameter, or None where no replica's loss reached it.

        The plain loop has None there too, so that no optimizer decays such a parameter.
        """
        if self._group is None:
            return [parameter.grad for parameter in self._parameters]
        return [gradient for bucket in self._buckets if bucket.flat for gradient in bucket.flat.gradients()]

    def statistics(self) -> list[torch.Tensor]:
        """The changes that travelled with the last bucket, summed over the replicas."""
        flat = self._buckets[-1].flat
        return [] if flat is None else flat.others

    def _on_gradient(self, number: int, parameter: torch.Tensor) -> None:
        if not self._is_last_backward:
            return
        self._num_incomplete[number] -= 1
        last = len(self._buckets) - 1  # goes with the statistics, when all is computed
        while len(self._works) < last and self._num_incomplete[len(self._works)] == 0:
            self.reduce(len(self._works), tuple)

"""The gradients of a stage on their way to being one with those of its replicas.

Each replica's are copied into a few flat buckets, in the order in which backward completes them, and a bucket is
reduced as soon as the last backward of the step has filled it. With a single replica there is nothing to add: the
gradients stay where autograd put them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from zooid.schedule.buckets import cut_buckets
from zooid.worker.step.pending import adding_up


class _Bucket:
    """Flat buffers, one for each type of number: gradients, then whether the loss reached each parameter, then, in the
    last bucket, what the step did to the stage's statistics."""

    def __init__(self, parameters: Sequence[nn.Parameter], statistics: Sequence[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        self.has_statistics = bool(statistics)
        self._like = [*(parameter.detach() for parameter in parameters), *statistics]
        self.flat: dict[torch.dtype, torch.Tensor] = {}
        """Made when the bucket is first filled."""
        self.gradients: list[torch.Tensor] = []
        self.flags: list[torch.Tensor] = []
        self.statistics: list[torch.Tensor] = []

    def fill(self, changes: Sequence[torch.Tensor], *, keeps_own: bool) -> None:
        """Copy the gradients in, and let autograd's own go unless they are kept."""
        if not self.flat:
            self._make_room()
        for parameter, gradient, flag in zip(self.parameters, self.gradients, self.flags, strict=True):
            flag.fill_(0 if parameter.grad is None else 1)
            if parameter.grad is None:
                gradient.zero_()
            else:
                gradient.copy_(parameter.grad)
                if not keeps_own:
                    parameter.grad = None
        for statistic, change in zip(self.statistics, changes, strict=True):
            statistic.copy_(change)

    def _make_room(self) -> None:
        half = len(self.parameters)
        like = [*self._like[:half], *(value.new_empty(1) for value in self._like[:half]), *self._like[half:]]
        for dtype in dict.fromkeys(value.dtype for value in like):
            own = [value for value in like if value.dtype == dtype]
            self.flat[dtype] = own[0].new_empty(sum(value.numel() for value in own))
        rest = dict(self.flat)
        views = []
        for value in like:
            views.append(rest[value.dtype][: value.numel()].view(value.shape))
            rest[value.dtype] = rest[value.dtype][value.numel() :]
        self.gradients, self.flags, self.statistics = views[:half], views[half : 2 * half], views[2 * half :]


@dataclass(frozen=True)
class Reducing:
    """How a stage's gradients become one with those of its replicas."""

    group: dist.ProcessGroup | None = None
    """The replicas of the stage; None where this is the only one."""
    num_replicas: int = 1
    replica: int = 0
    """Which of the replicas this one is."""
    is_direct: bool = False
    """Whether they are connected; otherwise messages go through a store."""
    is_early: bool = True
    """Whether buckets go on their way while the last backward still runs."""
    keeps_own: bool = False
    """Whether a member's own sums stay until the next step begins, so that they can be reduced again with others."""
    num_grains: int = 1
    """The most grains that a step has, those of all replicas together."""
    is_reproducible: bool = False
    """True adds up in a fixed tree over grains, whichever replica has computed them."""


class Gradients:
    """Of one stage: filled by backward, reduced bucket by bucket, held until they are applied or dropped."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        statistics: Sequence[torch.Tensor],
        reducing: Reducing,
    ) -> None:
        """`parameters` in the order in which a backward completes their gradients."""
        group = reducing.group
        self._parameters = list(parameters)
        self._group = group
        self._keeps_own = reducing.keeps_own
        sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        cuts = cut_buckets(sizes, is_direct=reducing.is_direct)
        self._buckets = [
            _Bucket(self._parameters[first:end], statistics if end == len(parameters) else ()) for first, end in cuts
        ]
        self._num_incomplete: list[int] = []
        self._works: list[list[dist.Work]] = []
        self._is_last_backward = False
        self._hooks: list[RemovableHandle] = []
        if group is not None and reducing.is_early:
            for number, bucket in enumerate(self._buckets):
                for parameter in bucket.parameters:
                    completed = partial(self._completed, number)
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(completed))  # type: ignore[no-untyped-call]

    @property
    def num_buckets(self) -> int:
        return len(self._buckets)

    def close(self) -> None:
        """Leave the parameters' gradients alone from now on."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Forget those of the step before."""
        for parameter in self._parameters:
            parameter.grad = None
        self._works = []
        self._is_last_backward = False

    def begin_last_backward(self) -> None:
        """From now on a gradient that is accumulated is complete, and a full bucket goes on its way."""
        self._num_incomplete = [len(bucket.parameters) for bucket in self._buckets]
        self._is_last_backward = True

    def reduce(self, number: int, changes: Callable[[], Sequence[torch.Tensor]]) -> list[dist.Work]:
        """Begin to sum a bucket over the replicas, unless it is on its way; `changes` of statistics go with the last.

        Buckets go in order, so that all replicas make the same calls.
        """
        if self._group is None:
            return []
        while len(self._works) <= number:
            bucket = self._buckets[len(self._works)]
            bucket.fill(changes() if bucket.has_statistics else (), keeps_own=self._keeps_own)
            self._works.append([adding_up(flat, self._group) for flat in bucket.flat.values()])
        return self._works[number]

    def held(self) -> list[torch.Tensor | None]:
        """Of every parameter; None where no replica's loss reached it, as in the plain loop, so that no optimizer
        decays it."""
        if self._group is None:
            return [parameter.grad for parameter in self._parameters]
        held: list[torch.Tensor | None] = []
        for bucket in self._buckets:
            flags = torch.cat([flag.float() for flag in bucket.flags]).tolist() if bucket.flags else []
            held += [gradient if flag else None for gradient, flag in zip(bucket.gradients, flags, strict=True)]
        return held

    def statistics(self) -> list[torch.Tensor]:
        """Changes of running statistics, summed over the replicas."""
        return self._buckets[-1].statistics

    def _completed(self, number: int, parameter: torch.Tensor) -> None:
        if not self._is_last_backward:
            return
        self._num_incomplete[number] -= 1
        is_last = number == len(self._buckets) - 1  # with the statistics, when all is done
        if number == len(self._works) and not is_last:
            while len(self._works) < len(self._buckets) - 1 and self._num_incomplete[len(self._works)] == 0:
                self.reduce(len(self._works), tuple)

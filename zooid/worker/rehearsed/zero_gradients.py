"""The gradients of a rehearsed stage: zeros of the planned sizes, reduced as real gradients are."""

from collections.abc import Container, Sequence

import torch
from torch import distributed as dist

from zooid.core.plans.stage import StageTimes, Tie
from zooid.schedule.grain_tree import Deal
from zooid.worker.gradients.bucket_gradients import ReplicaReduction
from zooid.worker.gradients.tied_gradients import TiedParameters
from zooid.worker.gradients.tree_reduce import ReduceBuffer, ReduceQueue
from zooid.worker.step.pending import begin_all_reduce

_ELEMENT_BYTES = 4


class ZeroGradients:
    """Stands in for the state of a stage that is trained. Nothing changes it."""

    optimizer: torch.optim.Optimizer | None = None
    named_parameters: Sequence[tuple[str, torch.nn.Parameter]] = ()
    learning_rate: float | None = None
    rate_factor: float = 1.0

    def __init__(self, times: StageTimes, ties: Sequence[Tie]) -> None:
        """`ties` are all those of the plan, in order."""
        self._num_bytes = sum(bucket.num_bytes for bucket in times.buckets)
        self._sizes = [-(-bucket.num_bytes // _ELEMENT_BYTES) for bucket in times.buckets]
        self._tied = [-(-tie.num_bytes // _ELEMENT_BYTES) for tie in ties]
        self._buckets: list[torch.Tensor] = []
        self._buffers: list[ReduceBuffer] = []
        self._deal = Deal(())
        self._reduction = ReplicaReduction()
        self._ties: dict[int, TiedParameters] = {}
        self._works: list[list[dist.Work]] = []
        self._queue = ReduceQueue()

    @property
    def num_buckets(self) -> int:
        return len(self._sizes)

    def regroup(self, reduction: ReplicaReduction, ties: dict[int, TiedParameters] | None = None) -> None:
        self._reduction, self._ties = reduction, ties or {}
        self._deal = Deal(())

    def begin(self, grains: Sequence[Sequence[int]]) -> None:
        self._works = []
        self._queue = ReduceQueue()
        if self._reduction.group is None:
            return
        if not self._reduction.is_reproducible:
            self._buckets = self._buckets or [torch.zeros(size) for size in self._sizes]
            return
        deal = Deal(tuple(map(tuple, grains)))
        if [*map(len, deal.nodes)] != [*map(len, self._deal.nodes)]:
            like, replica = torch.zeros(0), self._reduction.replica
            self._buffers = [ReduceBuffer(like, size, deal, replica) for size in self._sizes]
        self._deal = deal

    def reduce(self, number: int) -> list[dist.Work]:
        """Begin to reduce a bucket and all before it, unless they are in flight, so that all make the same calls."""
        group = self._reduction.group
        if group is None:
            return []
        while (next_number := len(self._works)) <= number:
            if self._reduction.is_reproducible:
                works = self._queue.begin([self._buffers[next_number]], self._deal, group)
            else:
                works = [begin_all_reduce(self._buckets[next_number], group)]
            self._works.append(works)
        return self._works[number]

    def sum_tied(self, number: int) -> list[dist.Work]:
        """Begin to sum tied gradients over the stages that share them."""
        return [begin_all_reduce(torch.zeros(self._tied[number]), self._ties[number].group)]

    def held_parts(self) -> list[torch.Tensor]:
        return [torch.zeros(self._num_bytes, dtype=torch.uint8)]

    def held_parts_of(self, names: Container[str]) -> list[torch.Tensor]:
        """Zeros of the planned size: guests of a rehearsal take over whole stages."""
        return self.held_parts()

    def take_held_of(self, names: Container[str], parts: Sequence[torch.Tensor]) -> None:
        """Take nothing: the parts are zeros."""

    def make_room(self, num_grains: int) -> None:
        """Change nothing: no loss is kept."""

    def noise_squares(self) -> tuple[float, float]:
        return 0.0, 0.0

    def take_held(self, parts: Sequence[torch.Tensor]) -> None:
        """Take nothing: the parts are zeros."""

    def follow(self, evaluated: float) -> None:
        raise AssertionError("a rehearsal evaluates nothing")

    def advance(self) -> None:
        """Change nothing."""

    def drop(self) -> None:
        self._works = []

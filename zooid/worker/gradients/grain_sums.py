"""Gradients of a stage that are added up in a fixed tree over grains, so that their bits depend on nobody's layout.

After every backward the gradients of its grain are taken away from the parameters, and added to those of a sibling in
the tree as soon as that one is complete: as many additions as autograd makes itself. What is left are the sums of a few
nodes. They stay as they are until the next step begins, so that they can be reduced again with other replicas.
"""

from collections.abc import Callable, Sequence

import torch
from torch import distributed as dist
from torch import nn

from zooid.schedule.grain_tree import Deal, Node, TreeSum
from zooid.worker.gradients.bucketed import Gradients, Reducing
from zooid.worker.gradients.tree_reduce import ReduceBuffer, ReduceQueue

_ALIGNED_BYTES = 64
"""Gradients lie in a buffer as an allocator would have placed them: kernels may add up in another order elsewhere."""
_NEUTRAL = -0.0
"""What stands for a gradient that a node does not have: x + -0.0 is x for every x, while -0.0 + 0.0 is 0.0."""

Values = list[torch.Tensor | None]


class OwnSums:
    """The sums over this member's own grains: of gradients, bucket by bucket, and of changes of running statistics."""

    def __init__(self) -> None:
        self._buckets: list[list[nn.Parameter]] = []
        self._gradients: list[TreeSum[Values]] = []
        self._statistics: TreeSum[list[torch.Tensor]] = TreeSum(1, _added_tensors)
        self._grain: int | None = None
        self._left: set[int] = set()
        """Buckets whose gradients of the present grain are still with the parameters."""

    def set_buckets(self, buckets: Sequence[Sequence[nn.Parameter]]) -> None:
        """Sums that there are stay, since a run cuts its buckets always alike."""
        self._buckets = [list(parameters) for parameters in buckets]

    def begin(self, num_grains: int) -> None:
        """Forget the sums of the step before."""
        self._gradients = [TreeSum(num_grains, _added) for _ in self._buckets]
        self._statistics = TreeSum(num_grains, _added_tensors)
        self._grain = None
        self._left = set()

    def forget(self) -> None:
        """Keep nothing."""
        self.begin(1)

    def begin_backward(self, grain: int) -> None:
        self._grain = grain
        self._left = set(range(len(self._buckets)))

    def end_backward(self) -> None:
        for number in sorted(self._left):
            self.take(number)

    def take(self, number: int) -> None:
        """Take a bucket's gradients of the present grain, which are complete, unless that has been done."""
        if number not in self._left:
            return
        assert self._grain is not None
        self._left.remove(number)
        self._gradients[number].put_grain(self._grain, [_taken(parameter) for parameter in self._buckets[number]])

    def put_statistics(self, grain: int, changes: Sequence[torch.Tensor]) -> None:
        self._statistics.put_grain(grain, list(changes))

    def nodes(self, number: int) -> list[tuple[Node, Values]]:
        """The maximal nodes in the order of grains, with the gradients of a bucket."""
        return self._gradients[number].in_order()

    def changes_of(self, node: Node) -> list[torch.Tensor]:
        """What the grains of a maximal node have changed of the statistics."""
        return self._statistics.nodes[node]

    def gradients(self) -> Values:
        """The sums over the whole step, where this member has all its grains."""
        return [gradient for tree in self._gradients for gradient in tree.total]

    def statistics(self) -> list[torch.Tensor]:
        """The sums of changes over the whole step, where this member has all its grains."""
        return self._statistics.total


class TreeGradients(Gradients):
    """Like Gradients, but its sums follow the tree over grains."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        statistics: Sequence[torch.Tensor],
        reducing: Reducing,
        sums: OwnSums,
    ) -> None:
        """`parameters` in the order in which a backward completes their gradients."""
        super().__init__(parameters, statistics, reducing)
        self._sums = sums
        self._replica = reducing.replica
        self._like_statistics = list(statistics)
        self._rooms: list[_Room] = []
        self._deal = Deal(())
        self._queue = ReduceQueue()
        sums.set_buckets([bucket.parameters for bucket in self._buckets])

    def begin_deal(self, deal: Deal) -> None:
        """Get ready to reduce a step of which every replica has these grains."""
        if self._group is not None and [*map(len, deal.nodes)] != [*map(len, self._deal.nodes)]:
            self._rooms = [
                _Room(
                    [parameter.detach() for parameter in bucket.parameters],
                    self._like_statistics if bucket.has_statistics else (),
                    deal,
                    self._replica,
                )
                for bucket in self._buckets
            ]
        self._deal = deal
        self._queue = ReduceQueue()

    def reduce(self, number: int, changes: Callable[[], Sequence[torch.Tensor]]) -> list[dist.Work]:
        """Begin to sum a bucket over the replicas, unless it is on its way."""
        if self._group is None:
            return []
        while len(self._works) <= number:
            at = len(self._works)
            self._sums.take(at)
            room = self._rooms[at]
            nodes = self._sums.nodes(at)
            assert tuple(node for node, _ in nodes) == self._deal.nodes[self._replica], "all own grains are computed"
            for number_of_node, (node, gradients) in enumerate(nodes):
                carried: Sequence[torch.Tensor] = ()
                if self._buckets[at].has_statistics:
                    statistics = self._sums.changes_of(node)
                    # what follows the statistics is this member's own, and travels with one of its nodes
                    rest = changes()[len(statistics) :]
                    carried = [*statistics, *(rest if number_of_node == 0 else map(torch.zeros_like, rest))]
                room.fill(number_of_node, gradients, carried)
            self._works.append(self._queue.begin(room.buffers, self._deal, self._replica, self._group))
        return self._works[number]

    def held(self) -> list[torch.Tensor | None]:
        if self._group is None:
            return self._sums.gradients()
        return [gradient for room in self._rooms for gradient in room.gradients()]

    def statistics(self) -> list[torch.Tensor]:
        if self._group is None:
            return self._sums.statistics()
        return self._rooms[-1].statistics()


class _Room:
    """Room for one bucket: in one buffer for each type of number, gradients, then whether the loss reached each of
    their parameters, then what else travels. The values of a node are there for a moment, and in the end the sums."""

    def __init__(self, like: Sequence[torch.Tensor], others: Sequence[torch.Tensor], deal: Deal, replica: int) -> None:
        self._types = [value.dtype for value in like]
        types = list(dict.fromkeys(self._types))
        flags = [next(v for v in like if v.dtype == dtype).new_empty(self._types.count(dtype)) for dtype in types]
        places: list[tuple[torch.Tensor, int]] = []
        ends: dict[torch.dtype, int] = {}
        for values, aligned_bytes in ((like, _ALIGNED_BYTES), (flags, 1), (others, 1)):
            for value in values:
                step = max(1, aligned_bytes // value.element_size())
                start = -(-ends.get(value.dtype, 0) // step) * step
                places.append((value, start))
                ends[value.dtype] = start + value.numel()
        by_type = {value.dtype: value for value, _ in places}
        made = {dtype: ReduceBuffer(by_type[dtype], end, deal, replica) for dtype, end in ends.items()}
        self.buffers = list(made.values())
        views = [made[value.dtype].values[start : start + value.numel()].view(value.shape) for value, start in places]
        end_of_flags = len(like) + len(flags)
        self._gradients = views[: len(like)]
        self._flags = dict(zip(types, views[len(like) : end_of_flags], strict=True))
        self._others = views[end_of_flags:]

    def fill(self, number: int, gradients: Values, others: Sequence[torch.Tensor]) -> None:
        """Copy the values of a node in; nodes are numbered in the order of grains."""
        pairs = list(zip(self._gradients, gradients, strict=True))
        present = [(view, gradient) for view, gradient in pairs if gradient is not None]
        if present:
            torch._foreach_copy_([view for view, _ in present], [gradient for _, gradient in present])
        for view, gradient in pairs:
            if gradient is None:
                view.fill_(_NEUTRAL)
        typed = list(zip(self._types, gradients, strict=True))
        for dtype, flags in self._flags.items():
            flags.copy_(torch.tensor([gradient is not None for own, gradient in typed if own == dtype]))
        for view, other in zip(self._others, others, strict=True):
            view.copy_(other)
        for buffer in self.buffers:
            buffer.keep(number)

    def gradients(self) -> Values:
        """The sums, or None where no replica's loss reached the parameter."""
        flags = {dtype: iter(own.tolist()) for dtype, own in self._flags.items()}
        return [
            gradient if next(flags[dtype]) else None
            for gradient, dtype in zip(self._gradients, self._types, strict=True)
        ]

    def statistics(self) -> list[torch.Tensor]:
        return self._others


def _taken(parameter: nn.Parameter) -> torch.Tensor | None:
    """The gradient that a backward has left, in the memory order in which a reduced one is."""
    gradient, parameter.grad = parameter.grad, None
    return gradient if gradient is None or gradient.is_sparse else gradient.contiguous()


def _added(left: Values, right: Values) -> Values:
    both = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
    if both:
        torch._foreach_add_([one for one, _ in both], [other for _, other in both])
    return [other if one is None else one for one, other in zip(left, right, strict=True)]


def _added_tensors(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[torch.Tensor]:
    for one, other in zip(left, right, strict=True):
        one += other
    return left

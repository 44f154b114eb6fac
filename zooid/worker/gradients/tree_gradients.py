"""Gradients of a stage that are added in a fixed tree over grains, so that their bits depend on no layout.

After every backward, the gradients of its grain are taken from the parameters. They are added to those of the sibling
node as soon as that one is complete, which takes as many additions as autograd makes itself. What remains are the sums
of a few nodes. They are kept until the next step begins, so that they can be reduced again with other replicas.
"""

from collections.abc import Callable, Sequence

import torch
from torch import distributed as dist
from torch import nn

from zooid.schedule.grain_tree import Deal, Node, TreeSum
from zooid.worker.gradients.bucket_gradients import BucketGradients, GradientBucket, ReplicaReduction
from zooid.worker.gradients.flat_bucket import FlatBucket, Values
from zooid.worker.gradients.tree_reduce import ReduceBuffer, ReduceQueue

_ALIGNMENT_BYTES = 64
"""Alignment of gradients, as of an allocator: with another one, kernels may add in another order."""


class GrainSums:
    """Sums over this member's own grains: of gradients, bucket by bucket, and of changes of running statistics."""

    def __init__(self) -> None:
        self._buckets: list[list[nn.Parameter]] = []
        self._gradients: list[TreeSum[Values]] = []
        self._statistics: TreeSum[list[torch.Tensor]] = TreeSum(1, _add_tensors)
        self._grain: int | None = None
        self._untaken: set[int] = set()
        """Buckets whose gradients of the present grain are still in the parameters."""

    def set_buckets(self, buckets: Sequence[Sequence[nn.Parameter]]) -> None:
        """Set the parameters of each bucket. Present sums stay valid, since a run always cuts the same buckets."""
        self._buckets = [list(parameters) for parameters in buckets]

    def begin(self, num_grains: int) -> None:
        """Forget the sums of the step before."""
        self._gradients = [TreeSum(num_grains, _add_values) for _ in self._buckets]
        self._statistics = TreeSum(num_grains, _add_tensors)
        self._grain = None
        self._untaken = set()

    def begin_backward(self, grain: int) -> None:
        self._grain = grain
        self._untaken = set(range(len(self._buckets)))

    def end_backward(self) -> None:
        for number in sorted(self._untaken):
            self.take(number)

    def take(self, number: int) -> None:
        """Take a bucket's complete gradients of the present grain, unless they are taken already."""
        if number not in self._untaken:
            return
        assert self._grain is not None
        self._untaken.remove(number)
        self._gradients[number].put_grain(self._grain, [_take(parameter) for parameter in self._buckets[number]])

    def put_statistics(self, grain: int, changes: Sequence[torch.Tensor]) -> None:
        self._statistics.put_grain(grain, list(changes))

    def nodes(self, number: int) -> list[tuple[Node, Values]]:
        """The maximal nodes of a bucket's tree in the order of grains, with their gradients."""
        return self._gradients[number].in_order()

    def changes_of(self, node: Node) -> list[torch.Tensor]:
        """The changes of statistics that the grains of a maximal node made."""
        return self._statistics.nodes[node]

    def gradients(self) -> Values:
        """The sums over the whole step, on a member that computed all of its grains."""
        return [gradient for tree in self._gradients for gradient in tree.total]

    def statistics(self) -> list[torch.Tensor]:
        """The changes of the whole step, on a member that computed all of its grains."""
        return self._statistics.total


class TreeGradients(BucketGradients):
    """Gradients whose sums follow the tree over grains."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        statistics: Sequence[torch.Tensor],
        reduction: ReplicaReduction,
        sums: GrainSums,
    ) -> None:
        """`parameters` are in the order in which a backward completes their gradients."""
        super().__init__(parameters, statistics, reduction)
        self._sums = sums
        self._replica = reduction.replica
        self._rooms: list[_TreeBucket] = []
        self._deal = Deal(())
        self._queue = ReduceQueue()
        sums.set_buckets([bucket.parameters for bucket in self._buckets])

    def begin_deal(self, deal: Deal) -> None:
        """Prepare to reduce a step in which `deal` gives each replica its grains."""
        if self._group is not None and [*map(len, deal.nodes)] != [*map(len, self._deal.nodes)]:
            self._rooms = [_TreeBucket(bucket, deal, self._replica) for bucket in self._buckets]
        self._deal = deal
        self._queue = ReduceQueue()

    def _begin_reduce(
        self, number: int, changes: Callable[[], Sequence[torch.Tensor]], group: dist.ProcessGroup
    ) -> list[dist.Work]:
        self._sums.take(number)
        room = self._rooms[number]
        nodes = self._sums.nodes(number)
        assert tuple(node for node, _ in nodes) == self._deal.nodes[self._replica], "all own grains are computed"
        for node_number, (node, gradients) in enumerate(nodes):
            carried: Sequence[torch.Tensor] = ()
            if self._buckets[number].statistics:
                statistics = self._sums.changes_of(node)
                # what follows the statistics belongs to the whole member, and travels with one of its nodes
                rest = changes()[len(statistics) :]
                carried = [*statistics, *(rest if node_number == 0 else map(torch.zeros_like, rest))]
            room.fill_node(node_number, gradients, carried)
        return self._queue.begin(room.reduce_buffers, self._deal, group)

    def held(self) -> Values:
        if self._group is None:
            return self._sums.gradients()
        return [gradient for room in self._rooms for gradient in room.gradients()]

    def statistics(self) -> list[torch.Tensor]:
        if self._group is None:
            return self._sums.statistics()
        return self._rooms[-1].others


class _TreeBucket(FlatBucket):
    """A bucket that holds the values of one node after the other, and in the end the sums over all replicas."""

    def __init__(self, bucket: GradientBucket, deal: Deal, replica: int) -> None:
        self.reduce_buffers: list[ReduceBuffer] = []

        def new_buffer(like: torch.Tensor, num_elements: int) -> torch.Tensor:
            self.reduce_buffers.append(ReduceBuffer(like, num_elements, deal, replica))
            return self.reduce_buffers[-1].values

        parameters = [parameter.detach() for parameter in bucket.parameters]
        super().__init__(parameters, bucket.statistics, new_buffer, _ALIGNMENT_BYTES)

    def fill_node(self, number: int, gradients: Values, others: Sequence[torch.Tensor]) -> None:
        """Copy the values of a node in; nodes are numbered in the order of grains."""
        self.fill(gradients, others)
        for buffer in self.reduce_buffers:
            buffer.keep(number)


def _take(parameter: nn.Parameter) -> torch.Tensor | None:
    """Take the gradient that a backward has left, in the memory order of a reduced gradient."""
    gradient, parameter.grad = parameter.grad, None
    return gradient if gradient is None or gradient.is_sparse else gradient.contiguous()


def _add_values(left: Values, right: Values) -> Values:
    both = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
    if both:
        torch._foreach_add_([one for one, _ in both], [other for _, other in both])
    return [other if one is None else one for one, other in zip(left, right, strict=True)]


def _add_tensors(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[torch.Tensor]:
    for one, other in zip(left, right, strict=True):
        one += other
    return left

"""The memory of a sum along a tree over grains."""

from functools import partial
from itertools import accumulate, pairwise

import torch

from zooid.comm.calls.buffers import Buffers, Scratch
from zooid.comm.calls.tensors import Numbers, Reduction, copy_bytes, wire_view
from zooid.schedule.grain_tree import Deal, TreeSum
from zooid.schedule.transfer_lists import Transfer


class TreeBuffers(Buffers):
    """This rank's nodes, cut into one span for each rank; its own span of all ranks' nodes; and the sums."""

    def __init__(
        self, nodes: torch.Tensor, sums: torch.Tensor, deal: Deal, rank: int, reduction: Reduction, scratch: Scratch
    ) -> None:
        """`nodes` has a row for each rank, with that rank's span of every node. `sums` may share its memory."""
        self._counts = [len(rank_nodes) for rank_nodes in deal.nodes]
        self._deal = deal
        self._rank = rank
        self._reduction = reduction
        self._size = size = nodes.shape[2]
        self._item = nodes.element_size()
        self._nodes = [reduction.numbers(row.reshape(-1)) for row in nodes.unbind(0)]
        self._sums = [reduction.numbers(row) for row in sums.view(len(self._counts), size).unbind(0)]
        memory = scratch.take((sum(self._counts) - self._counts[rank]) * size * self._item)
        arriving = torch.frombuffer(memory, dtype=nodes.dtype) if memory.nbytes else nodes.new_empty(0)
        num_arriving = [0 if source == rank else count for source, count in enumerate(self._counts)]
        spans = pairwise(accumulate(num_arriving, initial=0))
        self._arriving = [reduction.numbers(arriving[first * size : end * size]) for first, end in spans]
        self._num_missing = len(self._counts) - 1
        self.finish = partial(scratch.give_back, memory)

    def outgoing(self, transfer: Transfer) -> memoryview:
        return wire_view(self._sums[self._rank] if transfer.after else self._nodes[transfer.readers[0]])

    def num_bytes(self, transfer: Transfer) -> int:
        return transfer.num_elements * self._item

    def landing(self, transfer: Transfer) -> memoryview:
        return wire_view((self._sums if transfer.after else self._arriving)[transfer.source])

    def arrived(self, transfer: Transfer, data: memoryview) -> None:
        if not transfer.after:
            self._num_missing -= 1
            if self._num_missing == 0:
                self._add_up_own()

    def _add_up_own(self) -> None:
        """Sum this rank's span of all nodes; its own nodes are overwritten, since no other rank needs this span."""
        rows = [self._nodes[self._rank] if n == self._rank else row for n, row in enumerate(self._arriving)]
        num_left = sum(self._counts) - 1
        result = self._sums[self._rank]

        def add(left: Numbers, right: Numbers) -> Numbers:
            nonlocal num_left
            num_left -= 1
            return self._reduction.add(left, right, result if num_left == 0 else left)

        tree = TreeSum(self._deal.num_grains, add)
        for nodes, row in zip(self._deal.nodes, rows, strict=True):
            for number, node in enumerate(nodes):
                tree.put(node, row[number * self._size : (number + 1) * self._size])
        if sum(self._counts) == 1:
            copy_bytes(wire_view(result), wire_view(tree.total))

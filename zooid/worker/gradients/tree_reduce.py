"""Sums over the replicas of a stage, along the fixed tree over the grains of a step.

Every replica has the sums of a few nodes of the tree, and knows which replica has which nodes. A buffer is cut into one
span for each replica. Each replica sends every other replica its span of all nodes, adds its own span along the tree,
and sends the result to all. With one node in each replica, this moves as many bytes as the best all-reduce.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import distributed as dist

from zooid.comm.process_group import ProcessGroup
from zooid.schedule.grain_tree import Deal, TreeSum


class ReduceBuffer:
    """Values that are reduced at once. They are kept from step to step, since new memory costs more than the sums."""

    def __init__(self, like: torch.Tensor, num_elements: int, deal: Deal, replica: int) -> None:
        num_replicas, num_nodes = len(deal.grains), len(deal.nodes[replica])
        span_size = -(-num_elements // num_replicas)
        self.values = like.new_zeros(span_size * num_replicas)
        """The values of one node before `keep`, and in the end the sum."""
        self._by_owner = self.values.view(num_replicas, 1, span_size)
        self._is_single = num_nodes == 1
        self.nodes = self._by_owner if self._is_single else like.new_empty(num_replicas, num_nodes, span_size)
        """All values of this replica's nodes, by the replica that adds them."""

    def keep(self, number: int) -> None:
        """Copy the values of one of this replica's nodes. A single node stays where it is."""
        if not self._is_single:
            self.nodes[:, number].copy_(self._by_owner[:, 0])


class ReduceQueue:
    """The reduces of one step.

    On other backends than zooid's own, all reduces exchange at once. They gather one after the other, when the first
    of them is waited for.
    """

    def __init__(self) -> None:
        self._begun: list[_TwoCalls] = []

    def begin(self, buffers: Sequence[ReduceBuffer], deal: Deal, group: dist.ProcessGroup) -> list[dist.Work]:
        """Begin to sum these buffers, and return the calls to wait for."""
        if isinstance(group, ProcessGroup):
            return [group.tree_reduce(buffer.values, buffer.nodes, deal) for buffer in buffers]
        calls = [_TwoCalls(buffer, deal, group, self._begun) for buffer in buffers]
        self._begun += calls
        return list(calls)


class _TwoCalls(dist.Work):
    """One buffer in flight through a group that knows no trees."""

    def __init__(
        self, buffer: ReduceBuffer, deal: Deal, group: dist.ProcessGroup, begun: "Sequence[_TwoCalls]"
    ) -> None:
        """`begun` has all calls of the step, in order."""
        super().__init__()
        self._deal = deal
        self._group = group
        self._begun = begun
        num_replicas, num_nodes, span_size = buffer.nodes.shape
        counts = [len(nodes) for nodes in deal.nodes]
        self._received = buffer.values.new_empty(sum(counts), span_size)
        self._sums = buffer.values
        self._sent = buffer.nodes.view(-1)
        received_sizes = [count * span_size for count in counts]
        self._work: Any = group.alltoall_base(
            self._received.view(-1), self._sent, received_sizes, [num_nodes * span_size] * num_replicas
        )
        self._is_gathering = False

    def gather(self) -> None:
        """Wait for all parts of this replica's span, add them, and begin to send the sum to all.

        The replicas must call this in the same order for all their buffers.
        """
        if self._is_gathering:
            return
        self._work.wait()
        tree = TreeSum(self._deal.num_grains, torch.Tensor.add_)
        for node, row in zip(chain.from_iterable(self._deal.nodes), self._received, strict=True):
            tree.put(node, row)
        self._sent = tree.total
        parts = list(self._sums.view(len(self._deal.grains), -1).unbind(0))
        self._work = self._group.allgather([parts], [self._sent])
        self._is_gathering = True

    def wait(self, timeout: Any = None) -> bool:
        for call in self._begun:  # so that no gather waits for another buffer's wait
            call.gather()
        self._work.wait()
        return True

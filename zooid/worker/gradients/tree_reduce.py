"""Sums over the replicas of a stage, along the fixed tree over the grains of a step.

Every replica has the sums of a few nodes of the tree, and knows who has which. A buffer is cut into as many spans as
there are replicas. Each replica sends every other one that one's span of all of its nodes, adds up its own span along
the tree, and sends the result to all. With one node in each replica this moves as many bytes as the best all-reduce.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import distributed as dist

from zooid.comm.process_group import ProcessGroup
from zooid.schedule.grain_tree import Deal, TreeSum


class ReduceBuffer:
    """What is reduced at once, kept from step to step: new memory would cost more than the sums."""

    def __init__(self, like: torch.Tensor, num_elements: int, deal: Deal, replica: int) -> None:
        num_replicas, num_own = len(deal.grains), len(deal.nodes[replica])
        size = -(-num_elements // num_replicas)
        self.values = like.new_zeros(size * num_replicas)
        """Where the values of a node are written before `keep`, and where the sum arrives."""
        self._by_owner = self.values.view(num_replicas, 1, size)
        self._is_single = num_own == 1
        self.nodes = self._by_owner if self._is_single else like.new_empty(num_replicas, num_own, size)
        """All values of this replica's nodes, by the replica that adds them up."""

    def keep(self, number: int) -> None:
        """Take the values of one of this replica's nodes. A single node stays where it is."""
        if not self._is_single:
            self.nodes[:, number].copy_(self._by_owner[:, 0])


class ReduceQueue:
    """The reduces of one step. Where the group is not of our own, all of them exchange at once, and gather one after
    the other when the first is waited for."""

    def __init__(self) -> None:
        self._begun: list[_TwoCalls] = []

    def begin(
        self, buffers: Sequence[ReduceBuffer], deal: Deal, replica: int, group: dist.ProcessGroup
    ) -> list[dist.Work]:
        """Begin to sum these buffers, and return what to wait for."""
        if isinstance(group, ProcessGroup):
            return [group.tree_reduce(each.values, each.nodes, deal) for each in buffers]
        own = [_TwoCalls(each, deal, replica, group, self._begun) for each in buffers]
        self._begun += own
        return list(own)


class _TwoCalls(dist.Work):
    """One buffer on its way through a group that knows no trees."""

    def __init__(
        self,
        buffer: ReduceBuffer,
        deal: Deal,
        replica: int,
        group: dist.ProcessGroup,
        begun: "Sequence[_TwoCalls]",
    ) -> None:
        """`begun` are all of the step, in order."""
        super().__init__()
        self._deal = deal
        self._group = group
        self._begun = begun
        num_replicas, num_own, size = buffer.nodes.shape
        counts = [len(nodes) for nodes in deal.nodes]
        self._received = buffer.values.new_empty(sum(counts), size)
        self._sums = buffer.values
        self._sent = buffer.nodes.view(-1)
        self._work: Any = group.alltoall_base(
            self._received.view(-1), self._sent, [count * size for count in counts], [num_own * size] * num_replicas
        )
        self._is_gathering = False

    def gather(self) -> None:
        """Wait until all parts of the own span are here, add them up, and begin to send the sum to all.

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
        for each in self._begun:  # so that no gather waits for another buffer's wait
            each.gather()
        self._work.wait()
        return True

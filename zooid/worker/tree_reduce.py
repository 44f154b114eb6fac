"""Sums over the replicas of a stage, along the fixed tree over the grains of a step.

Every replica has the sums of a few nodes of the tree, and knows who has which. A buffer is cut into as many spans as
there are replicas. Each replica sends every other one that one's span of all of its nodes, adds up its own span along
the tree, and sends the result to all. With one node in each replica this moves as many bytes as the best all-reduce.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import distributed as dist

from zooid.schedule.grain_tree import Node, TreeSum, maximal_nodes


@dataclass(frozen=True)
class Deal:
    """Which replica has which grains of a step."""

    grains: tuple[tuple[int, ...], ...]
    """Grains of each replica."""

    @property
    def num_grains(self) -> int:
        return sum(map(len, self.grains))

    @cached_property
    def nodes(self) -> tuple[tuple[Node, ...], ...]:
        """The maximal nodes of each replica."""
        return tuple(maximal_nodes(own, self.num_grains) for own in self.grains)


class ReduceBuffer:
    """What is reduced at once, kept from step to step: new memory would cost more than the sums."""

    def __init__(self, like: torch.Tensor, num_elements: int, deal: Deal, replica: int) -> None:
        num_replicas, num_own = len(deal.grains), len(deal.nodes[replica])
        span = -(-num_elements // num_replicas)
        self.values = like.new_zeros(span * num_replicas)
        """Where the values of a node are written before `keep`, and where the sum arrives."""
        self._by_owner = self.values.view(num_replicas, span)
        self._is_single = num_own == 1
        self.sent = self._by_owner if self._is_single else like.new_empty(num_replicas, num_own, span)
        """All values of this replica's nodes, by the replica that adds them up."""
        self.received = like.new_empty(sum(map(len, deal.nodes)), span)
        """The own span of all nodes of all replicas."""

    def keep(self, number: int) -> None:
        """Take the values of one of this replica's nodes. A single node stays where it is."""
        if not self._is_single:
            self.sent[:, number].copy_(self._by_owner)


class TreeReduce(dist.Work):
    """One buffer on its way."""

    def __init__(self, buffer: ReduceBuffer, deal: Deal, replica: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._deal = deal
        self._group = group
        num_replicas, num_own = len(deal.grains), len(deal.nodes[replica])
        self._received = buffer.received
        self._result = buffer.values
        self._sent = buffer.sent.view(-1)
        span = self._received.shape[1]
        counts = [len(nodes) for nodes in deal.nodes]
        self._work: Any = group.alltoall_base(
            self._received.view(-1), self._sent, [count * span for count in counts], [num_own * span] * num_replicas
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
        parts = list(self._result.view(len(self._deal.grains), -1).unbind(0))
        self._work = self._group.allgather([parts], [self._sent])
        self._is_gathering = True

    def wait(self, timeout: Any = None) -> bool:
        self.gather()
        self._work.wait()
        return True


class ReduceQueue:
    """The reduces of one step. All of them exchange at once, and then gather one after the other."""

    def __init__(self) -> None:
        self._begun: list[TreeReduce] = []

    def begin(self, buffers: Sequence[ReduceBuffer], deal: Deal, replica: int, group: dist.ProcessGroup) -> dist.Work:
        """Begin to sum these buffers, and return what to wait for."""
        own = [TreeReduce(each, deal, replica, group) for each in buffers]
        self._begun += own
        return _Queued(self._begun, own)


class _Queued(dist.Work):
    def __init__(self, queue: Sequence[TreeReduce], own: Sequence[TreeReduce]) -> None:
        super().__init__()
        self._queue = queue
        self._own = own

    def wait(self, timeout: Any = None) -> bool:
        for each in self._queue:  # so that no gather waits for another buffer's wait
            each.gather()
        for each in self._own:
            each.wait()
        return True

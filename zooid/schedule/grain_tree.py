"""A fixed binary tree over the grains of a step, so that rounding does not depend on who computes which grain.

A node is an aligned range of grains, cut off after the last grain. Its value is the sum of its two halves. A replica
adds up every node all of whose grains it has; the remaining additions are the same as those of a single replica.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

Node = tuple[int, int]
"""The grains [first, end) of a node."""
Value = TypeVar("Value")


def sibling_of(node: Node, num_grains: int) -> Node | None:
    """The node that this one is added to; None for the root.

    >>> sibling_of((2, 3), 6), sibling_of((2, 4), 6), sibling_of((4, 6), 6), sibling_of((0, 6), 6)
    ((3, 4), (0, 2), (0, 4), None)
    """
    first, end = node
    width = 1
    while (first, end) != (0, num_grains):
        parent_first = first - first % width
        parent_end = min(parent_first + width, num_grains)
        if parent_first < first:
            return parent_first, first
        if parent_end > end:
            return end, parent_end
        width *= 2
    return None


class TreeSum(Generic[Value]):
    """The partial sum over some grains of a step: the values of its maximal nodes.

    Grains come in any order. About log2 of their number of values are kept, and more where grains are missing between.
    """

    def __init__(self, num_grains: int, add: Callable[[Value, Value], Value]) -> None:
        """`add` may change its first argument and return it."""
        self.nodes: dict[Node, Value] = {}
        self._num_grains = num_grains
        self._add = add

    def put(self, node: Node, value: Value) -> None:
        """Add the value of a node whose grains are not yet in the sum."""
        while (sibling := sibling_of(node, self._num_grains)) in self.nodes:
            assert sibling is not None
            other = self.nodes.pop(sibling)
            left, right = (value, other) if node < sibling else (other, value)
            value = self._add(left, right)
            node = min(node[0], sibling[0]), max(node[1], sibling[1])
        self.nodes[node] = value

    def put_grain(self, grain: int, value: Value) -> None:
        self.put((grain, grain + 1), value)

    def in_order(self) -> list[tuple[Node, Value]]:
        """The maximal nodes and their values, in grain order."""
        return sorted(self.nodes.items(), key=lambda item: item[0])

    @property
    def total(self) -> Value:
        """The sum over all grains of the step, when all have been added."""
        assert list(self.nodes) == [(0, self._num_grains)], f"grains are missing beside {sorted(self.nodes)}"
        return self.nodes[0, self._num_grains]


def maximal_nodes(grains: Iterable[int], num_grains: int) -> tuple[Node, ...]:
    """The largest nodes that consist of these grains, in order.

    >>> maximal_nodes(range(1, 6), 6)
    ((1, 2), (2, 4), (4, 6))
    """
    tree: TreeSum[None] = TreeSum(num_grains, lambda left, right: None)
    for grain in grains:
        tree.put_grain(grain, None)
    return tuple(node for node, _ in tree.in_order())


@dataclass(frozen=True)
class Deal:
    """The division of the grains of a step among the replicas."""

    grains: tuple[tuple[int, ...], ...]
    """The grains of each replica."""

    @property
    def num_grains(self) -> int:
        return sum(map(len, self.grains))

    @cached_property
    def nodes(self) -> tuple[tuple[Node, ...], ...]:
        """The maximal nodes of each replica."""
        return tuple(maximal_nodes(grains, self.num_grains) for grains in self.grains)


def most_nodes_held(grains: Iterable[int], num_grains: int) -> int:
    """The largest number of values that a replica keeps while it adds up these grains in sequence."""
    tree: TreeSum[None] = TreeSum(num_grains, lambda left, right: None)
    max_held = 0
    for grain in grains:
        max_held = max(max_held, len(tree.nodes) + 1)
        tree.put_grain(grain, None)
    return max_held

"""Chooses the values that cross a cut. Values that follow from the inputs, such as masks, are recomputed after the cut
where they can be computed from fewer bytes."""

from dataclasses import dataclass
from functools import cached_property

import networkx
from networkx.algorithms.flow import dinitz
from torch import fx
from torch.utils.flop_counter import flop_registry

from zooid.layers.tracing.traced_program import OPERATIONS, TracedProgram, is_random, written_arguments
from zooid.layers.tracing.values import is_number, value_of

_WEIGHING_SAMPLES = 16
"""Bytes are compared for grains of this size, since some values do not grow with the grain."""


@dataclass(frozen=True)
class TraceCut:
    """A cut of a traced program."""

    position: int
    """Index of the first operation after the cut."""
    crossing: tuple[fx.Node, ...]
    """The values that cross the cut."""


class MinimalCrossing:
    """Finds the smallest set of values from which all live values follow."""

    def __init__(self, program: TracedProgram) -> None:
        self._program = program
        self._known: dict[tuple[TraceCut, tuple[fx.Node, ...]], tuple[fx.Node, ...] | None] = {}

    def nodes_crossing(self, position: int, before: TraceCut) -> tuple[fx.Node, ...] | None:
        """Return the values that must cross a cut at this position, in the order of their computation.

        `before` is the previous cut. The result is None where a live value cannot cross.
        """
        live = self._program.live[position]
        derived = tuple(node for node in live if node in self._derived)
        if (before, derived) not in self._known:
            self._known[before, derived] = self._minimum_cut(derived, before)
        chosen = self._known[before, derived]
        if chosen is None:
            return None
        crossing = {*chosen, *(node for node in live if node not in self._derived)}
        return tuple(sorted(crossing, key=self._order.__getitem__))

    @cached_property
    def _order(self) -> dict[fx.Node, int]:
        inputs = {node: number - len(self._program.inputs) for number, node in enumerate(self._program.inputs)}
        return inputs | {node: number for number, node in enumerate(self._program.operations)}

    @cached_property
    def _derived(self) -> frozenset[fx.Node]:
        """The values that follow from inputs, constants and fixed buffers, and that are never written to.

        Numbers are not among them, since every stage has them anyway.
        """
        program = self._program
        changing = program.written_buffers | program.parameter_names
        fixed = {node for node, name in program.state_names.items() if name not in changing} | program.constants.keys()
        derived: set[fx.Node] = {node for node in program.inputs if node not in program.written_nodes}
        for operation in program.operations:
            is_pure = not is_random(operation) and not written_arguments(operation)
            is_free = all(node in derived or node in fixed or is_number(node) for node in operation.all_input_nodes)
            if is_pure and is_free and operation not in program.written_nodes and not is_number(operation):
                derived.add(operation)
        return frozenset(derived)

    def _minimum_cut(self, wanted: tuple[fx.Node, ...], before: TraceCut) -> tuple[fx.Node, ...] | None:
        """Return a minimum cut, by bytes, between the values before the cut and those wanted after it."""
        graph = networkx.DiGraph()
        graph.add_edge("source", "nowhere", capacity=0)
        graph.add_edge("nowhere", "sink", capacity=0)
        nodes = self._derived_ancestors(wanted)
        is_available: dict[fx.Node, bool] = {}
        for node in sorted(nodes, key=self._order.__getitem__):
            sources = [source for source in node.all_input_nodes if source in nodes]
            is_computed = node in before.crossing or self._order[node] >= before.position
            can_recompute = node.op in OPERATIONS and not _is_expensive(node)
            is_available[node] = is_computed or (can_recompute and all(is_available[source] for source in sources))
            value = value_of(node)
            can_cross = value is not None and is_available[node]
            capacity = {"capacity": value.num_bytes(_WEIGHING_SAMPLES)} if value is not None and can_cross else {}
            graph.add_edge((node.name, "in"), (node.name, "out"), **capacity)
            if not can_recompute:
                graph.add_edge("source", (node.name, "in"))
            for source in sources:
                graph.add_edge((source.name, "out"), (node.name, "in"))
        for node in wanted:
            graph.add_edge((node.name, "out"), "sink")
        try:
            _, (near, _) = networkx.minimum_cut(graph, "source", "sink", flow_func=dinitz)  # half the default's time
        except networkx.NetworkXUnbounded:
            return None
        return tuple(node for node in nodes if (node.name, "in") in near and (node.name, "out") not in near)

    def _derived_ancestors(self, wanted: tuple[fx.Node, ...]) -> dict[fx.Node, None]:
        ancestors: dict[fx.Node, None] = {}
        waiting = list(wanted)
        while waiting:
            node = waiting.pop()
            if node not in ancestors:
                ancestors[node] = None
                waiting += [source for source in node.all_input_nodes if source in self._derived]
        return ancestors


def _is_expensive(node: fx.Node) -> bool:
    """Whether a node is a matrix product, a convolution or attention, which are not recomputed."""
    return getattr(node.target, "overloadpacket", None) in flop_registry

"""Which values need not travel: those computed from the inputs alone, such as masks, where computing them again from
fewer bytes is cheaper than sending them."""

from dataclasses import dataclass
from functools import cached_property

import networkx
from networkx.algorithms.flow import dinitz
from torch import fx
from torch.utils.flop_counter import flop_registry

from zooid.layers.tracing.traced_program import OPERATIONS, TracedProgram, is_random, written_arguments
from zooid.layers.tracing.values import is_number, value_of

_WEIGHING_SAMPLES = 16
"""Bytes are compared for grains of this size, since some values do not grow with it."""


@dataclass(frozen=True)
class TraceCut:
    """Before which operation, and what travels across."""

    position: int
    crossing: tuple[fx.Node, ...]


class MinimalCrossing:
    """For any set of live values, the smallest set from which all of them follow."""

    def __init__(self, program: TracedProgram) -> None:
        self._program = program
        self._known: dict[tuple[TraceCut, tuple[fx.Node, ...]], tuple[fx.Node, ...] | None] = {}

    def nodes_crossing(self, position: int, before: TraceCut) -> tuple[fx.Node, ...] | None:
        """What has to travel across a cut at this position, given what travelled across the cut before it; None where
        something is live that cannot travel. In the order in which values come to be."""
        live = self._program.live[position]
        derived = tuple(node for node in live if node in self._derived)
        if (before, derived) not in self._known:
            self._known[before, derived] = self._least(derived, before)
        chosen = self._known[before, derived]
        if chosen is None:
            return None
        wanted = {*chosen, *(node for node in live if node not in self._derived)}
        return tuple(sorted(wanted, key=self._order.__getitem__))

    @cached_property
    def _order(self) -> dict[fx.Node, int]:
        inputs = {node: number - len(self._program.inputs) for number, node in enumerate(self._program.inputs)}
        return inputs | {node: number for number, node in enumerate(self._program.operations)}

    @cached_property
    def _derived(self) -> frozenset[fx.Node]:
        """Values that follow from inputs, constants and buffers that never change; none that is ever written to.

        Numbers are not among them: every stage has them anyway.
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

    def _least(self, wanted: tuple[fx.Node, ...], before: TraceCut) -> tuple[fx.Node, ...] | None:
        """A minimum cut between what the stage before has and what is wanted, through what may be computed again."""
        graph = networkx.DiGraph()
        graph.add_edge("source", "nowhere", capacity=0)
        graph.add_edge("nowhere", "sink", capacity=0)
        nodes = self._behind(wanted)
        reachable: dict[fx.Node, bool] = {}
        for node in sorted(nodes, key=self._order.__getitem__):
            sources = [source for source in node.all_input_nodes if source in nodes]
            is_there = node in before.crossing or self._order[node] >= before.position
            can_follow = node.op in OPERATIONS and not _is_heavy(node)
            reachable[node] = is_there or (can_follow and all(reachable[source] for source in sources))
            value = value_of(node)
            bounded = value is not None and reachable[node]
            capacity = {"capacity": value.num_bytes(_WEIGHING_SAMPLES)} if value is not None and bounded else {}
            graph.add_edge((node.name, "in"), (node.name, "out"), **capacity)
            if not can_follow:
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

    def _behind(self, wanted: tuple[fx.Node, ...]) -> dict[fx.Node, None]:
        found: dict[fx.Node, None] = {}
        waiting = list(wanted)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found[node] = None
                waiting += [source for source in node.all_input_nodes if source in self._derived]
        return found


def _is_heavy(node: fx.Node) -> bool:
    """Products of matrices, convolutions and attention are not done twice."""
    return getattr(node.target, "overloadpacket", None) in flop_registry

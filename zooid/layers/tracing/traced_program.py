"""One traced forward: a flat list of operations, the values that they need, and the cuts between layers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec

from zooid.layers.tracing.opaque_calls import OpaqueCall
from zooid.layers.tracing.values import facts_of, is_number

OPERATIONS = ("call_function", "call_method")


@dataclass(frozen=True, eq=False)
class TracedProgram:
    """The operations of a model in one mode, training or evaluation."""

    operations: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    """Placeholders of the model's inputs, flattened."""
    state_names: dict[fx.Node, str]
    """Placeholders of parameters and buffers, with their names in the model."""
    parameter_names: frozenset[str]
    constants: dict[fx.Node, Any]
    """Tensors in the forward's code, and sub-graphs that operations such as torch.cond call."""
    outputs: tuple[Any, ...]
    output_spec: TreeSpec
    starts: tuple[int, ...] = (0,)
    """Index of the first operation of each layer."""
    crossing: tuple[tuple[fx.Node, ...], ...] = ()
    """The values that cross into each layer but the first, in a fixed order."""

    @property
    def num_layers(self) -> int:
        return len(self.starts)

    @cached_property
    def start_layers(self) -> dict[int, int]:
        """The layer that begins at each of these indices of operations."""
        return {start: layer for layer, start in enumerate(self.starts)}

    def values_into(self, layer: int) -> tuple[fx.Node, ...]:
        """Return the values that cross into this layer; for layer 0, the model's inputs."""
        return self.inputs if layer == 0 else self.crossing[layer - 1]

    def span(self, first_layer: int, end_layer: int) -> range:
        """Return the indices of the operations of layers [first_layer, end_layer)."""
        end = self.starts[end_layer] if end_layer < self.num_layers else len(self.operations)
        return range(self.starts[first_layer], end)

    def state_of(self, first_layer: int, end_layer: int) -> tuple[str, ...]:
        """Return the names of the parameters and buffers that these layers use, in order of first use."""
        arrived = set(self.values_into(first_layer))
        names: dict[str, None] = {}
        for position in self.span(first_layer, end_layer):
            for node in self.needs(self.operations[position], arrived):
                if node in self.state_names:
                    names[self.state_names[node]] = None
        return tuple(names)

    def needs(self, operation: fx.Node, arrived: set[fx.Node]) -> list[fx.Node]:
        """Return the state, constants and recomputed values that an operation needs beyond those that have arrived.

        They are added to `arrived`.
        """
        needed: list[fx.Node] = []
        for node in operation.all_input_nodes:
            if node not in arrived:
                if node.op in OPERATIONS:
                    needed += self.needs(node, arrived)
                arrived.add(node)
                needed.append(node)
        arrived.add(operation)
        return needed

    @cached_property
    def live(self) -> tuple[tuple[fx.Node, ...], ...]:
        """For every cut, the inputs and results from before it that are used after it.

        Numbers are left out, since they are read from a tensor that crosses.
        """
        index = {node: position for position, node in enumerate(self.operations)}
        last_use = {
            node: max((index.get(user, len(self.operations)) for user in node.users), default=-1)
            for node in (*self.inputs, *self.operations)
        }
        alive = {node: None for node in self.inputs if last_use[node] >= 0}
        cuts = [tuple(alive)]
        for position, operation in enumerate(self.operations[:-1]):
            if not is_number(operation):
                alive[operation] = None
            alive = {node: None for node in alive if last_use[node] > position}
            cuts.append(tuple(alive))
        return tuple(cuts)

    @cached_property
    def written_buffers(self) -> frozenset[str]:
        """Names of the buffers that the forward writes to."""
        written = {node for operation in self.operations for node in written_arguments(operation)}
        return frozenset(name for node, name in self.state_names.items() if node in written)

    @cached_property
    def written_nodes(self) -> frozenset[fx.Node]:
        """All nodes that share memory with a node that some operation writes to."""
        roots = self.roots
        changed = {roots.get(node, node) for operation in self.operations for node in written_arguments(operation)}
        return frozenset(changed | {node for node, root in roots.items() if root in changed})

    @cached_property
    def differentiable(self) -> frozenset[fx.Node]:
        """The floating-point results that depend on a trained parameter, and so have gradients."""
        trained = {node for node in self.state_names if facts_of(node).requires_grad}
        reached: set[fx.Node] = set(trained)
        for operation in self.operations:
            if any(node in reached or self.roots.get(node) in reached for node in operation.all_input_nodes):
                reached.update((operation, *(self.roots.get(node, node) for node in written_arguments(operation))))
        names = (*self.inputs, *self.operations)
        reached |= {node for node in names if self.roots.get(node, node) in reached}
        return frozenset(node for node in reached - trained if facts_of(node).is_floating)

    @cached_property
    def roots(self) -> dict[fx.Node, fx.Node]:
        """For each result, the value whose memory it shares: itself, or the base of a view."""
        roots: dict[fx.Node, fx.Node] = {}
        for operation in self.operations:
            source = aliased_argument(operation)
            roots[operation] = roots.get(source, source) if source is not None else operation
        return roots


def opaque_call(operation: fx.Node) -> OpaqueCall | None:
    """Return the call of an opaque operation; None for all other operations."""
    call: OpaqueCall | None = operation.meta.get("opaque")
    return call


def written_arguments(operation: fx.Node) -> list[fx.Node]:
    """Return the arguments that an operation writes to; an opaque one may write to any of its buffers."""
    if (call := opaque_call(operation)) is not None:
        state = zip(call.state_names, operation.args[2], strict=True)  # type: ignore[arg-type]
        return [node for name, node in state if name in call.buffer_names]
    schema = getattr(operation.target, "_schema", None)
    if schema is None:
        return []
    return [
        value
        for argument, value in zip(schema.arguments, operation.args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node)
    ]


def aliased_argument(operation: fx.Node) -> fx.Node | None:
    """Return the argument whose memory the result of a view or in-place operation shares."""
    schema = getattr(operation.target, "_schema", None)
    if schema is None or not any(result.alias_info is not None for result in schema.returns):
        return None
    for argument, value in zip(schema.arguments, operation.args, strict=False):
        if argument.alias_info is not None and isinstance(value, fx.Node):
            return value
    return None


def is_random(operation: fx.Node) -> bool:
    """Whether an operation, or one in the sub-graphs that it calls, may draw random numbers, as opaque ones may."""
    if opaque_call(operation) is not None:
        return True
    if torch.Tag.nondeterministic_seeded in getattr(operation.target, "tags", ()):
        return True
    return any(
        is_random(inner)
        for node in operation.all_input_nodes
        if isinstance(graph := node.meta.get("subgraph"), fx.GraphModule)
        for inner in graph.graph.nodes
    )


def module_path(operation: fx.Node) -> str:
    """Return the path of the innermost module whose forward contains the operation."""
    stack = operation.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""

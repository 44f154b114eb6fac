"""A run of layers as one generated module: speed of the model itself, names of the model itself."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_unflatten

from zooid.layers.randomness import seed_layer
from zooid.layers.tracing import LayeredModel, is_size, written_arguments


@dataclass(frozen=True)
class Stage:
    """`module` maps the values that cross into the first layer to those that cross out of the last one."""

    module: fx.GraphModule
    model: LayeredModel
    first_layer: int
    end_layer: int

    @property
    def is_last(self) -> bool:
        return self.end_layer == self.model.num_layers

    @property
    def differentiable_inputs(self) -> tuple[bool, ...]:
        """For each value that crosses in, whether a gradient travels back."""
        return tuple(_is_floating(node) and self.first_layer > 0 for node in self.model.crossing(self.first_layer))

    @property
    def differentiable_outputs(self) -> tuple[bool, ...]:
        return () if self.is_last else tuple(_is_floating(node) for node in self.model.crossing(self.end_layer))

    def model_output(self, values: tuple[Any, ...]) -> Any:
        """What the model itself would return, from the last stage's values."""
        return tree_unflatten(list(values), self.model.output_spec)


def build_stage(
    model: LayeredModel, first_layer: int, end_layer: int, state: dict[str, torch.Tensor], device: torch.device | str
) -> Stage:
    """Generate the module of layers [first_layer, end_layer) around the given parameters and buffers."""
    graph = fx.Graph()
    values: dict[fx.Node, Any] = {}
    crossing = model.crossing(first_layer)
    for node in crossing:
        values[node] = graph.placeholder(node.name)
    operations = model.operations_of(first_layer, end_layer)
    _clone_mutated_inputs(graph, operations, values)
    root: dict[str, torch.Tensor] = {}
    start_layers = model.start_layers
    offset = model.starts[first_layer]
    ends = [*model.starts[1:], len(model.operations)]
    for position, operation in enumerate(operations, start=offset):
        layer = start_layers.get(position)
        if layer is not None and any(_is_random(node) for node in model.operations[position : ends[layer]]):
            graph.call_function(seed_layer, (layer,))
        for node in operation.all_input_nodes:
            if node not in values and is_size(node):
                _read_size(graph, node, values, values[crossing[0]])
            elif node not in values:
                values[node] = _attribute(graph, model, node, state, root)
        copied = graph.node_copy(operation, lambda node: values[node])
        if "device" in copied.kwargs:
            copied.kwargs = {**copied.kwargs, "device": torch.device(device)}
        values[operation] = copied
    if end_layer == model.num_layers:
        graph.output(tuple(values[node] if isinstance(node, fx.Node) else node for node in model.outputs))
    else:
        graph.output(tuple(values[node] for node in model.crossing(end_layer)))
    return Stage(fx.GraphModule(root, graph, class_name="Stage"), model, first_layer, end_layer)


def _read_size(graph: fx.Graph, node: fx.Node, values: dict[fx.Node, Any], batch: fx.Node) -> None:
    """A size from before the cut: the batch size from a tensor that crosses, others computed from it again."""
    if node.meta["val"].node.expr.is_symbol:
        values[node] = graph.call_function(torch.ops.aten.sym_size.int, (batch, 0))
        return
    for needed in node.all_input_nodes:
        if needed not in values:
            _read_size(graph, needed, values, batch)
    values[node] = graph.node_copy(node, lambda argument: values[argument])


def _attribute(
    graph: fx.Graph, model: LayeredModel, node: fx.Node, state: dict[str, torch.Tensor], root: dict[str, torch.Tensor]
) -> fx.Node:
    name = model.state_names.get(node)
    if name is None:
        name = f"_constant_{node.name}"
        root[name] = model.constants[node]
    elif name in model.parameter_names:
        tensor = state[name]
        is_trained = bool(node.meta["val"].requires_grad)  # a checkpoint does not say which parameters are frozen
        root[name] = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, is_trained)
    else:
        root[name] = state[name]
    return graph.get_attr(name)


def _clone_mutated_inputs(graph: fx.Graph, operations: tuple[fx.Node, ...], values: dict[fx.Node, Any]) -> None:
    """An operation that writes into a value from before the cut gets a copy: the original belongs to autograd."""
    mutated = {node for operation in operations for node in written_arguments(operation) if node in values}
    for node in mutated:
        values[node] = graph.call_function(torch.ops.aten.clone.default, (values[node],))


def _is_random(operation: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(operation.target, "tags", ())


def _is_floating(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.is_floating_point()

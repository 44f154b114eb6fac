"""A run of layers as one generated module: speed of the model itself, names of the model itself."""

import copy
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, cast

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_map, tree_unflatten

from zooid.core.errors import JobError
from zooid.layers.disk_tensors import bring_to_memory
from zooid.layers.jobs.batches import Batch, flatten_inputs
from zooid.layers.stages.cut_watch import pass_cut
from zooid.layers.stages.layered_model import LayeredModel, Mode, remove_parameter_hooks
from zooid.layers.stages.randomness import seed_layer
from zooid.layers.tracing.opaque_calls import OpaqueCall
from zooid.layers.tracing.traced_program import OPERATIONS, TracedProgram, is_random, opaque_call, written_arguments
from zooid.layers.tracing.values import Value, facts_of, is_number, is_sample_count, value_of


@dataclass(frozen=True)
class Stage:
    """`module` maps the values that cross into the first layer to those that cross out of the last one."""

    module: nn.Module
    model: LayeredModel
    first_layer: int
    end_layer: int
    mode: Mode

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        """From the values that cross in to those that cross out."""
        if self.model.whole is None:
            values: tuple[Any, ...] = self.module(*inputs)
            return values
        seed_layer(0, outside_torch=True)
        if self.module.training != (self.mode == "train"):
            self.module.train(self.mode == "train")
        assert self.model.input_spec is not None
        args, kwargs = tree_unflatten(inputs, self.model.input_spec)
        return (self.module(*args, **kwargs),)

    @property
    def is_last(self) -> bool:
        return self.end_layer == self.model.num_layers

    @property
    def differentiable_inputs(self) -> tuple[bool, ...]:
        """For each value that crosses in, whether a gradient travels back."""
        return self._differentiable(self.first_layer) if self.first_layer > 0 else (False,) * self._num_inputs

    @property
    def differentiable_outputs(self) -> tuple[bool, ...]:
        return () if self.is_last else self._differentiable(self.end_layer)

    def inputs_of(self, batch: Batch) -> list[Any]:
        """A batch's inputs, which must have the sizes that were traced: with others, results could be wrong."""
        inputs = flatten_inputs(batch)
        if self.model.whole is not None:  # nothing was traced
            return inputs
        shapes = [tuple(value.shape) for value in inputs if isinstance(value, torch.Tensor)]
        expected = [value.shape(batch.num_samples) for value in self._input_values]
        if shapes != expected:
            raise JobError(
                f"a grain of {batch.num_samples} samples has inputs of shapes {shapes}, but the model was traced with "
                f"{expected}; pad all samples to one length"
            )
        return inputs

    def model_output(self, values: tuple[Any, ...]) -> Any:
        """What the model itself would return, from the last stage's values."""
        if self.model.whole is not None:
            return values[0]
        return tree_unflatten(list(values), self.model.program(self.mode).output_spec)

    @cached_property
    def _input_values(self) -> tuple[Value, ...]:
        return self.model.values_into(0, self.mode)

    @property
    def _num_inputs(self) -> int:
        return len(self.model.program(self.mode).inputs)

    def _differentiable(self, layer: int) -> tuple[bool, ...]:
        program = self.model.program(self.mode)
        return tuple(node in program.differentiable for node in program.values_into(layer))


def build_stage(
    model: LayeredModel,
    first_layer: int,
    end_layer: int,
    state: dict[str, torch.Tensor],
    device: torch.device | str,
    mode: Mode = "train",
    *,
    marked: bool = False,
) -> Stage:
    """Generate the module of layers [first_layer, end_layer) around the given parameters and buffers.

    One that is `marked` can be watched at the cuts inside it.
    """
    if model.whole is not None:
        bring_to_memory(model.whole)
        remove_parameter_hooks(model.whole)
        _adopt(model.whole.to(device), state, model.aliases)
        return Stage(model.whole, model, first_layer, end_layer, mode)
    program = model.program(mode)
    building = _StageBuilder(program, state, torch.device(device), mode)
    building.receive(program.values_into(first_layer), program.span(first_layer, end_layer))
    for position in program.span(first_layer, end_layer):
        if marked and position > program.starts[first_layer]:
            building.mark(position)
        building.seed(position)
        building.add(program.operations[position])
    building.give(program.outputs if end_layer == model.num_layers else program.values_into(end_layer))
    module = fx.GraphModule(building.root, building.graph, class_name="Stage")
    return Stage(module.train(mode == "train"), model, first_layer, end_layer, mode)


def _adopt(module: nn.Module, state: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
    """Give a module these values. Its tensors stay the same objects, since its code may hold them elsewhere, too."""
    with torch.no_grad():
        for name, own in (*module.named_parameters(), *module.named_buffers()):
            given = state[aliases.get(name, name)]
            if given is not own:
                own.copy_(given)


@cache
def _direct(operation: OpOverload[..., Any]) -> Callable[..., Any]:
    """The operation without the Python function around it, which takes 1 % of a small transformer's forward.

    It has a name of its own, by which generated code calls it.
    """
    direct = partial(operation._op)
    direct.__name__ = str(operation).replace(".", "_")  # type: ignore[attr-defined]
    direct.__module__ = __name__
    return direct


class _StageBuilder:
    def __init__(
        self, program: TracedProgram, state: dict[str, torch.Tensor], device: torch.device, mode: Mode
    ) -> None:
        self.graph = fx.Graph()
        self.root: dict[str, Any] = {}
        self._program = program
        self._state = state
        self._device = device
        self._mode = mode
        self._values: dict[fx.Node, Any] = {}
        self._received: tuple[fx.Node, ...] = ()

    def receive(self, crossing: tuple[fx.Node, ...], span: range) -> None:
        """Take what crosses in. What the operations write to is copied: the original belongs to autograd."""
        self._received = crossing
        for node in crossing:
            self._values[node] = self.graph.placeholder(node.name)
        written = {node for position in span for node in written_arguments(self._program.operations[position])}
        for node in crossing:
            if node in written:
                self._values[node] = self.graph.call_function(torch.ops.aten.clone.default, (self._values[node],))

    def seed(self, position: int) -> None:
        """Random numbers of a layer depend on the layer, not on the stage that it is in."""
        program = self._program
        layer = program.start_layers.get(position)
        if layer is None:
            return
        operations = [program.operations[at] for at in program.span(layer, layer + 1)]
        if any(is_random(operation) for operation in operations):
            calls = [opaque_call(operation) for operation in operations]
            outside_torch = any(call is not None and call.draws_outside_torch for call in calls)
            self.graph.call_function(seed_layer, (layer, outside_torch))

    def mark(self, position: int) -> None:
        """Let the values at a cut pass where they can be watched: those with gradients.

        What is written to is copied afterwards, as it is where a stage begins at this cut.
        """
        layer = self._program.start_layers.get(position)
        if layer is None:
            return
        nodes = [node for node in self._program.values_into(layer) if node in self._program.differentiable]
        if nodes:
            passed = self.graph.call_function(pass_cut, (layer, *(self._values[node] for node in nodes)))
            for number, node in enumerate(nodes):
                value_after = self.graph.call_function(operator.getitem, (passed, number))
                if node in self._program.written_nodes:
                    value_after = self.graph.call_function(torch.ops.aten.clone.default, (value_after,))
                self._values[node] = value_after

    def add(self, operation: fx.Node) -> None:
        for node in operation.all_input_nodes:
            self._provide(node)
        if (call := opaque_call(operation)) is not None:
            self._values[operation] = self._call(call, operation)
            return
        copied = self.graph.node_copy(operation, self._values.__getitem__)
        copied.args = tree_map(self._placed, copied.args)
        copied.kwargs = tree_map(self._placed, copied.kwargs)
        if "device" in copied.kwargs:
            copied.kwargs = {**copied.kwargs, "device": self._device}
        if isinstance(copied.target, OpOverload):
            copied.target = _direct(copied.target)
        self._values[operation] = copied

    def _call(self, call: OpaqueCall, operation: fx.Node) -> fx.Node:
        """The original code of an opaque operation, around the stage's own parameters and buffers."""
        inputs, state = cast(tuple[list[fx.Node], list[fx.Node]], operation.args[1:])
        tensors = [self.root[self._program.state_names[node]] for node in state]
        caller = call.caller(tensors, self._mode, self._device)
        given = [[self._values[node] for node in nodes] for nodes in (inputs, state)]
        return self.graph.call_function(caller, tuple(given))

    def give(self, wanted: tuple[Any, ...]) -> None:
        for node in wanted:
            if isinstance(node, fx.Node):
                self._provide(node)
        self.graph.output(tuple(self._values[node] if isinstance(node, fx.Node) else node for node in wanted))

    def _provide(self, node: fx.Node) -> None:
        """Something from before the stage that did not cross: state, a number, or a value that is computed again."""
        if node in self._values:
            return
        if node in self._program.state_names or node in self._program.constants:
            self._values[node] = self._attribute(node)
        elif is_sample_count(node):
            self._values[node] = self._read_sample_count()
        else:
            assert is_number(node) or node.op in OPERATIONS, f"{node} did not cross"
            self.add(node)

    def _attribute(self, node: fx.Node) -> fx.Node:
        name = self._program.state_names.get(node)
        if name is None:
            name = f"_constant_{node.name}"
            self.root[name] = self._own_constant(self._program.constants[node])
        elif name in self._program.parameter_names:
            tensor = self._state[name]
            is_trained = facts_of(node).requires_grad  # a checkpoint does not say which parameters are frozen
            self.root[name] = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, is_trained)
        else:
            self.root[name] = self._state[name]
        return self.graph.get_attr(name)

    def _own_constant(self, constant: Any) -> Any:
        if isinstance(constant, torch.Tensor):
            return constant.to(self._device)
        if not isinstance(constant, fx.GraphModule):
            return constant
        placed = copy.deepcopy(constant)
        for node in placed.graph.nodes:
            node.args, node.kwargs = tree_map(self._placed, node.args), tree_map(self._placed, node.kwargs)
        placed.recompile()
        return placed

    def _placed(self, argument: Any) -> Any:
        return self._device if isinstance(argument, torch.device) else argument

    def _read_sample_count(self) -> fx.Node:
        """From the first dimension of a received tensor that depends on it."""
        for node in self._received:
            value = value_of(node)
            dimension = None if value is None else value.batch_dimension
            if value is None or dimension is None:
                continue
            size = self.graph.call_function(torch.ops.aten.sym_size.int, (self._values[node], dimension))
            line = value.sizes[dimension]
            if line.fixed:
                size = self.graph.call_function(operator.sub, (size, line.fixed))
            if line.per_sample > 1:
                size = self.graph.call_function(operator.floordiv, (size, line.per_sample))
            return size
        raise AssertionError("every cut is crossed by a tensor of the batch")

"""Generates one module from a run of layers, with the speed and the parameter names of the model itself."""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
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
from zooid.layers.tracing.values import Value, facts_of, is_number, value_of


@dataclass(frozen=True)
class Stage:
    """A run of layers; `module` maps the values that cross into it to the values that cross out of it."""

    module: nn.Module
    model: LayeredModel
    first_layer: int
    end_layer: int
    mode: Mode

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        """Map the values that cross in to the values that cross out."""
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
        """For each value that crosses in, whether its gradient is sent back."""
        return self._differentiable(self.first_layer) if self.first_layer > 0 else (False,) * self._num_inputs

    @property
    def differentiable_outputs(self) -> tuple[bool, ...]:
        return () if self.is_last else self._differentiable(self.end_layer)

    def inputs_of(self, batch: Batch) -> list[Any]:
        """Return a batch's inputs; raise JobError unless they have the traced sizes, since results could be wrong."""
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

    def detached(self, values: Sequence[Any]) -> list[Any]:
        """Return values that cross in, detached from the graph that computed them, and ready for gradients."""
        return [
            value.detach().requires_grad_(is_differentiable) if isinstance(value, torch.Tensor) else value
            for value, is_differentiable in zip(values, self.differentiable_inputs, strict=True)
        ]

    def model_output(self, values: tuple[Any, ...]) -> Any:
        """Return the model's output, given the values of the last stage."""
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
    """Generate the module of layers [first_layer, end_layer) with these parameters and buffers.

    The cuts inside a `marked` stage can be watched.
    """
    if model.whole is not None:
        bring_to_memory(model.whole)
        remove_parameter_hooks(model.whole)
        _adopt(model.whole.to(device), state, model.aliases)
        return Stage(model.whole, model, first_layer, end_layer, mode)
    program = model.program(mode)
    builder = _StageBuilder(program, state, torch.device(device), mode)
    builder.receive(program.values_into(first_layer), program.span(first_layer, end_layer))
    for position in program.span(first_layer, end_layer):
        if marked and position > program.starts[first_layer]:
            builder.mark(position)
        builder.seed(position)
        builder.add(program.operations[position])
    builder.give(program.outputs if end_layer == model.num_layers else program.values_into(end_layer))
    module = fx.GraphModule(builder.root, builder.graph, class_name="Stage")
    return Stage(module.train(mode == "train"), model, first_layer, end_layer, mode)


def _adopt(module: nn.Module, state: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
    """Copy these values into a module, whose tensors stay the same objects, since its code may hold references."""
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            values = state[aliases.get(name, name)]
            if values is not tensor:
                tensor.copy_(values)


@cache
def _direct(operation: OpOverload[..., Any]) -> Callable[..., Any]:
    """Return the operation without its Python wrapper, which takes 1 % of a small transformer's forward.

    Generated code calls it by its name.
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
        """Add the values that cross in; values that are written to are copied, since autograd needs the originals."""
        self._received = crossing
        for node in crossing:
            self._values[node] = self.graph.placeholder(node.name)
        written = {node for position in span for node in written_arguments(self._program.operations[position])}
        for node in crossing:
            if node in written:
                self._values[node] = self.graph.call_function(torch.ops.aten.clone.default, (self._values[node],))

    def seed(self, position: int) -> None:
        """Seed the generators at the start of a layer, so that its random numbers do not depend on the stage."""
        program = self._program
        layer = program.start_layers.get(position)
        if layer is None:
            return
        operations = [program.operations[index] for index in program.span(layer, layer + 1)]
        if any(is_random(operation) for operation in operations):
            calls = [opaque_call(operation) for operation in operations]
            outside_torch = any(call is not None and call.draws_outside_torch for call in calls)
            self.graph.call_function(seed_layer, (layer, outside_torch))

    def mark(self, position: int) -> None:
        """Pass the values with gradients at a cut to watchers.

        Values that are written to are copied afterwards, as in a stage that begins at this cut.
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
        copied.args = tree_map(self._on_device, copied.args)
        copied.kwargs = tree_map(self._on_device, copied.kwargs)
        if "device" in copied.kwargs:
            copied.kwargs = {**copied.kwargs, "device": self._device}
        if isinstance(copied.target, OpOverload):
            copied.target = _direct(copied.target)
        self._values[operation] = copied

    def _call(self, call: OpaqueCall, operation: fx.Node) -> fx.Node:
        """Call the original code of an opaque operation with the stage's parameters and buffers."""
        inputs, state = cast(tuple[list[fx.Node], list[fx.Node]], operation.args[1:])
        tensors = [self.root[self._program.state_names[node]] for node in state]
        caller = call.caller(tensors, self._mode, self._device)
        arguments = [[self._values[node] for node in nodes] for nodes in (inputs, state)]
        return self.graph.call_function(caller, tuple(arguments))

    def give(self, outputs: tuple[Any, ...]) -> None:
        for node in outputs:
            if isinstance(node, fx.Node):
                self._provide(node)
        self.graph.output(tuple(self._values[node] if isinstance(node, fx.Node) else node for node in outputs))

    def _provide(self, node: fx.Node) -> None:
        """Add a node from before the stage that did not cross: state, a number, or a recomputed value."""
        if node in self._values:
            return
        if node in self._program.state_names or node in self._program.constants:
            self._values[node] = self._attribute(node)
        elif facts_of(node).is_sample_count:
            self._values[node] = self._read_sample_count()
        else:
            assert is_number(node) or node.op in OPERATIONS, f"{node} did not cross"
            self.add(node)

    def _attribute(self, node: fx.Node) -> fx.Node:
        name = self._program.state_names.get(node)
        if name is None:
            name = f"_constant_{node.name}"
            self.root[name] = self._constant(self._program.constants[node])
        elif name in self._program.parameter_names:
            tensor = self._state[name]
            is_trained = facts_of(node).requires_grad  # a checkpoint does not say which parameters are frozen
            self.root[name] = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, is_trained)
        else:
            self.root[name] = self._state[name]
        return self.graph.get_attr(name)

    def _constant(self, constant: Any) -> Any:
        if isinstance(constant, torch.Tensor):
            return constant.to(self._device)
        if not isinstance(constant, fx.GraphModule):
            return constant
        copied = copy.deepcopy(constant)
        for node in copied.graph.nodes:
            node.args, node.kwargs = tree_map(self._on_device, node.args), tree_map(self._on_device, node.kwargs)
        copied.recompile()
        return copied

    def _on_device(self, argument: Any) -> Any:
        return self._device if isinstance(argument, torch.device) else argument

    def _read_sample_count(self) -> fx.Node:
        """Compute the number of samples from a size of a received tensor that depends on it."""
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
        raise AssertionError("a tensor of the batch crosses every cut")

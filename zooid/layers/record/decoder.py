"""Decodes a traced model from its record, and rejects records that no trace has written.

Nodes, names and numbers are all checked. Names of nodes become names in generated code, so that they must be plain
identifiers.
"""

import keyword
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import fx

from zooid.core.errors import RecordError
from zooid.core.records import decode_record
from zooid.core.runs.trace import (
    ConstantRecord,
    GraphRecord,
    LayersRecord,
    NodeRecord,
    ProgramRecord,
    TensorRecord,
    Trace,
)
from zooid.layers.record.literals import decode_literal, named_dtype
from zooid.layers.record.nests import decode_nest
from zooid.layers.record.operations import named_operation, takes_arguments
from zooid.layers.stages.layered_model import LayeredModel, ParameterHooks
from zooid.layers.tracing.traced_program import TracedProgram
from zooid.layers.tracing.values import Facts, LinearSize, Value, note_facts

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,499}")
_STATE_NAME = re.compile(r"[^\x00-\x1f\"'\\\x7f]{1,2000}")
"""Names of parameters become strings in generated code, so that they must not contain characters that end a string."""
_SIZE_LIMIT = 2**48
_MAX_DIMENSIONS = 64
_MAX_GRAPH_DEPTH = 8

Tensors = Mapping[str, torch.Tensor]


def decode_trace(data: bytes, source: str) -> Trace:
    """Return the record from its bytes; `source` names them in messages."""
    try:
        return decode_record(data, Trace, source)
    except RecursionError as error:
        raise RecordError(f"{source} is nested too deep to be a trace; was it altered?") from error


def decode_constants(data: bytes, source: str) -> dict[str, torch.Tensor]:
    """Return the tensors in the model's code from their bytes; `source` names them in messages."""
    try:
        return load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise RecordError(f"{source} was cut short or altered ({error})") from error


def rebuild(layers: LayersRecord, constants: Tensors) -> LayeredModel:
    """Return the traced model without its code; any run of its layers can become a stage.

    UnknownClass is raised where the model returns objects of a class that only its own code imports.
    """
    model = LayeredModel(
        _decode_program(layers.train, constants),
        _decode_program(layers.evaluation, constants),
        layers.names,
        frozenset(layers.persistent_names),
        dict(layers.aliases),
        ParameterHooks(),
    )
    for program in (model.train, model.evaluation):
        _require(
            program.num_layers == len(layers.names), f"it names {len(layers.names)} layers, but its programs do not"
        )
    _require({*layers.aliases.values()} <= {*layers.persistent_names}, "an alias names no parameter")
    for name in (*layers.persistent_names, *layers.aliases):
        _check_state_name(name)
    return model


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise RecordError(f"the trace is not one that zooid has written: {why}; was it altered?")


class _GraphBuilder:
    """Builds a graph node by node, in the order of their numbers."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.nodes: list[fx.Node] = []
        self._names: set[str] = set()

    def add_placeholder(self, name: str) -> fx.Node:
        return self._add("placeholder", name, name)

    def add_attribute(self, name: str) -> fx.Node:
        return self._add("get_attr", name, name)

    def add_operation(self, record: NodeRecord) -> fx.Node:
        """Add a call of an operation, whose arguments are earlier nodes."""
        for key in record.kwargs:
            _require(_is_identifier(key), f"{key!r} is no name of an argument")
        args = tuple(decode_literal(argument, self.nodes) for argument in record.args)
        kwargs = {key: decode_literal(argument, self.nodes) for key, argument in record.kwargs.items()}
        operation = named_operation(record.operation)
        _require(takes_arguments(operation, args, kwargs), f"{record.operation} does not take the arguments there")
        return self._add("call_function", record.name, operation, args, kwargs)

    def _add(self, op: str, name: str, target: Any, args: Any = (), kwargs: Any = None) -> fx.Node:
        _require(_is_identifier(name), f"{name[:80]!r} is no name of a node")
        _require(name not in self._names, f"the node {name} occurs twice")
        self._names.add(name)
        node = self.graph.create_node(op, target, args, kwargs, name=name)
        node.name = name  # create_node may change it
        self.nodes.append(node)
        return node


def _decode_program(record: ProgramRecord, tensors: Tensors) -> TracedProgram:
    """Return the program of one mode."""
    builder = _GraphBuilder()
    inputs = [_with_facts(builder.add_placeholder(entry.name), entry) for entry in record.inputs]
    state = {_with_facts(builder.add_placeholder(entry.node.name), entry.node): entry.name for entry in record.state}
    for name in state.values():
        _check_state_name(name)
    _require({*record.parameters} <= {*state.values()}, "a parameter is not part of the state")
    for entry in record.state:
        sizes = entry.node.tensor.sizes if entry.node.tensor is not None else ((0, 1),)
        _require(all(isinstance(size, int) for size in sizes), f"{entry.name} has no fixed size")
    constants = {builder.add_attribute(entry.name): _decode_constant(entry, tensors) for entry in record.constants}
    for node, constant in constants.items():
        if isinstance(constant, fx.GraphModule):
            node.meta["subgraph"] = constant
    operations = [_with_facts(builder.add_operation(entry), entry) for entry in record.operations]
    output_spec = decode_nest(record.output_nest)
    _require(output_spec.num_leaves == len(record.outputs), "it returns more or fewer values than it says")
    _check_layers(record)
    numbers = [number for crossing in record.crossing for number in crossing]
    _require(all(0 <= number < len(builder.nodes) for number in numbers), "a value that crosses a cut is no node")
    return TracedProgram(
        operations=tuple(operations),
        inputs=tuple(inputs),
        state_names=state,
        parameter_names=frozenset(record.parameters),
        constants=constants,
        outputs=tuple(decode_literal(output, builder.nodes) for output in record.outputs),
        output_spec=output_spec,
        starts=record.starts,
        crossing=tuple(tuple(builder.nodes[number] for number in crossing) for crossing in record.crossing),
    )


def _check_layers(record: ProgramRecord) -> None:
    starts = record.starts
    is_rising = all(first < second for first, second in pairwise(starts))
    is_inside = bool(starts) and starts[0] == 0 and (starts[-1] < len(record.operations) or starts == (0,))
    _require(is_rising and is_inside, "its layers do not follow one another")
    _require(len(record.crossing) == len(starts) - 1, "its layers and the values between them do not fit")


def _decode_constant(record: ConstantRecord, tensors: Tensors, depth: int = 0) -> Any:
    """Return a tensor in the model's code, or a graph that an operation calls."""
    if record.graph is not None:
        _require(depth < _MAX_GRAPH_DEPTH, f"graphs are nested more than {_MAX_GRAPH_DEPTH} deep")
        return _decode_graph(record.graph, tensors, depth + 1)
    _require(record.tensor in tensors, f"the constant {record.tensor!r} is not in the file of constants")
    return tensors[record.tensor]


def _decode_graph(record: GraphRecord, tensors: Tensors, depth: int) -> fx.GraphModule:
    builder = _GraphBuilder()
    for name in record.inputs:
        builder.add_placeholder(name)
    attributes: dict[str, Any] = {}
    for entry in record.constants:
        node = builder.add_attribute(entry.name)
        attributes[entry.name] = node.meta["subgraph"] = _decode_constant(entry, tensors, depth)
    for operation in record.nodes:
        builder.add_operation(operation)
    builder.graph.output(decode_literal(record.output, builder.nodes))
    return fx.GraphModule(attributes, builder.graph)


def _is_identifier(name: str) -> bool:
    return bool(_IDENTIFIER.fullmatch(name)) and not keyword.iskeyword(name)


def _check_state_name(name: str) -> None:
    is_plain = bool(_STATE_NAME.fullmatch(name)) and all(name.split("."))
    _require(is_plain, f"{name[:80]!r} is no name of a parameter or buffer")


def _with_facts(node: fx.Node, record: NodeRecord) -> fx.Node:
    note_facts(
        node,
        Facts(
            None if record.tensor is None else _value(record.tensor),
            record.is_floating,
            record.requires_grad,
            record.is_number,
            record.is_sample_count,
            decode_literal(record.literal, ()),
        ),
    )
    return node


def _value(record: TensorRecord) -> Value:
    sizes = [LinearSize(size) if isinstance(size, int) else LinearSize(*size) for size in record.sizes]
    _require(len(sizes) <= _MAX_DIMENSIONS, f"a tensor has {len(sizes)} dimensions")
    for size in sizes:
        is_small = abs(size.fixed) < _SIZE_LIMIT and 0 <= size.per_sample < _SIZE_LIMIT
        _require(is_small and (size.fixed >= 0 or size.per_sample > 0), f"a tensor has the size {size}")
    _require(sum(1 for size in sizes if size.per_sample) <= 1, "two sizes of a tensor depend on the samples")
    return Value(named_dtype(record.dtype), tuple(sizes))

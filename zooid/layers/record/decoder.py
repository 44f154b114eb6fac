"""A traced model from its record. What was not written by a trace is refused: nodes, names and numbers are all checked.

Names of nodes become names in generated code, so that only plain identifiers are let in.
"""

import keyword
import re
from collections.abc import Mapping, Sequence
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
from zooid.layers.record.operations import named_operation
from zooid.layers.stages.layered_model import LayeredModel, ParameterHooks
from zooid.layers.tracing.traced_program import TracedProgram
from zooid.layers.tracing.values import Facts, LinearSize, Value, note_facts

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,499}")
_STATE_NAME = re.compile(r"[^\x00-\x1f\"'\\\x7f]{1,2000}")
"""Names of parameters become texts in generated code; what could end such a text is refused."""
_LARGEST_SIZE = 2**48
_MOST_DIMENSIONS = 64
_MOST_NESTED_GRAPHS = 8

Tensors = Mapping[str, torch.Tensor]


def decode_trace(data: bytes, source: str) -> Trace:
    """The record from its bytes; `source` names them in messages."""
    try:
        return decode_record(data, Trace, source)
    except RecursionError as error:
        raise RecordError(f"{source} is nested too deep to be a trace; was it altered?") from error


def decode_constants(data: bytes, source: str) -> dict[str, torch.Tensor]:
    """The tensors that the model's code contains, from their bytes; `source` names them in messages."""
    try:
        return load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise RecordError(f"{source} was cut short or altered ({error})") from error


def rebuild(layers: LayersRecord, constants: Tensors) -> LayeredModel:
    """The model that was traced, without its code: any run of its layers can become a stage.

    UnknownClass where the model returns objects of a class that only its own code imports.
    """
    model = LayeredModel(
        _ProgramDecoder(layers.train, constants).program(),
        _ProgramDecoder(layers.evaluation, constants).program(),
        layers.names,
        frozenset(layers.persistent_names),
        dict(layers.aliases),
        ParameterHooks(),
    )
    for program in (model.train, model.evaluation):
        _require(
            program.num_layers == len(layers.names), f"its {len(layers.names)} layers are not those of its programs"
        )
    _require({*layers.aliases.values()} <= {*layers.persistent_names}, "an alias leads nowhere")
    for name in (*layers.persistent_names, *layers.aliases):
        _check_state_name(name)
    return model


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise RecordError(f"the trace is not one that zooid has written: {why}; was it altered?")


class _ProgramDecoder:
    """The graph of one mode, node by node in the order of their numbers."""

    def __init__(self, record: ProgramRecord, constants: Tensors) -> None:
        self._record = record
        self._constants = constants
        self._graph = fx.Graph()
        self._nodes: list[fx.Node] = []
        self._names: set[str] = set()

    def program(self) -> TracedProgram:
        record = self._record
        inputs = [_with_facts(self._given(own.name), own) for own in record.inputs]
        state = {_with_facts(self._given(own.node.name), own.node): own.name for own in record.state}
        for name in state.values():
            _check_state_name(name)
        _require({*record.parameters} <= {*state.values()}, "a parameter is not among the state")
        for own in record.state:
            sizes = own.node.tensor.sizes if own.node.tensor is not None else ((0, 1),)
            _require(all(isinstance(size, int) for size in sizes), f"{own.name} has no fixed size")
        constants = {self._constant(own): decode_constant(own, self._constants) for own in record.constants}
        for node, constant in constants.items():
            if isinstance(constant, fx.GraphModule):
                node.meta["subgraph"] = constant
        operations = [
            _with_facts(add_operation(self._graph, own, self._nodes, self._names), own) for own in record.operations
        ]
        return TracedProgram(
            operations=tuple(operations),
            inputs=tuple(inputs),
            state_names=state,
            parameter_names=frozenset(record.parameters),
            constants=constants,
            outputs=tuple(decode_literal(output, self._nodes) for output in record.outputs),
            output_spec=self._output_spec(),
            starts=self._starts(len(operations)),
            crossing=tuple(self._crossing(numbers) for numbers in record.crossing),
        )

    def _given(self, name: str) -> fx.Node:
        return add_node(self._graph, "placeholder", name, self._nodes, self._names)

    def _constant(self, record: ConstantRecord) -> fx.Node:
        return add_node(self._graph, "get_attr", record.name, self._nodes, self._names)

    def _output_spec(self) -> Any:
        spec = decode_nest(self._record.output_nest)
        _require(spec.num_leaves == len(self._record.outputs), "it returns more or fewer values than it says")
        return spec

    def _starts(self, num_operations: int) -> tuple[int, ...]:
        starts = self._record.starts
        is_rising = all(first < second for first, second in pairwise(starts))
        is_inside = bool(starts) and starts[0] == 0 and (starts[-1] < num_operations or starts == (0,))
        _require(is_rising and is_inside, "its layers do not follow one another")
        _require(len(self._record.crossing) == len(starts) - 1, "its layers and the values between them do not fit")
        return starts

    def _crossing(self, numbers: Sequence[int]) -> tuple[fx.Node, ...]:
        _require(all(0 <= number < len(self._nodes) for number in numbers), "a value that crosses a cut is no node")
        return tuple(self._nodes[number] for number in numbers)


def decode_constant(record: ConstantRecord, constants: Tensors, depth: int = 0) -> Any:
    """A tensor that the model's code contains, or a graph that an operation calls."""
    if record.graph is not None:
        _require(depth < _MOST_NESTED_GRAPHS, f"graphs are nested more than {_MOST_NESTED_GRAPHS} deep")
        return _decode_graph(record.graph, constants, depth + 1)
    _require(record.tensor in constants, f"the constant {record.tensor!r} is not in the file of constants")
    return constants[record.tensor]


def _decode_graph(record: GraphRecord, constants: Tensors, depth: int) -> fx.GraphModule:
    graph, nodes, names = fx.Graph(), list[fx.Node](), set[str]()
    for name in record.inputs:
        add_node(graph, "placeholder", name, nodes, names)
    attributes: dict[str, Any] = {}
    for own in record.constants:
        node = add_node(graph, "get_attr", own.name, nodes, names)
        attributes[own.name] = node.meta["subgraph"] = decode_constant(own, constants, depth)
    for operation in record.nodes:
        add_operation(graph, operation, nodes, names)
    graph.output(decode_literal(record.output, nodes))
    return fx.GraphModule(attributes, graph)


def add_node(graph: fx.Graph, op: str, name: str, nodes: list[fx.Node], names: set[str]) -> fx.Node:
    """What a graph is given, under exactly this name."""
    _check_name(name, names)
    node = graph.create_node(op, name, name=name)
    node.name = name
    nodes.append(node)
    return node


def add_operation(graph: fx.Graph, record: NodeRecord, nodes: list[fx.Node], names: set[str]) -> fx.Node:
    """A call of an operation, whose arguments are nodes from before it."""
    _check_name(record.name, names)
    for key in record.kwargs:
        _require(bool(_IDENTIFIER.fullmatch(key)) and not keyword.iskeyword(key), f"{key!r} is no name of an argument")
    args = tuple(decode_literal(argument, nodes) for argument in record.args)
    kwargs = {key: decode_literal(argument, nodes) for key, argument in record.kwargs.items()}
    node = graph.create_node("call_function", named_operation(record.operation), args, kwargs, name=record.name)
    node.name = record.name
    nodes.append(node)
    return node


def _check_name(name: str, names: set[str]) -> None:
    _require(bool(_IDENTIFIER.fullmatch(name)) and not keyword.iskeyword(name), f"{name[:80]!r} is no name of a node")
    _require(name not in names, f"the node {name} occurs twice")
    names.add(name)


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
    _require(len(sizes) <= _MOST_DIMENSIONS, f"a tensor has {len(sizes)} dimensions")
    for size in sizes:
        is_small = abs(size.fixed) < _LARGEST_SIZE and 0 <= size.per_sample < _LARGEST_SIZE
        _require(is_small and (size.fixed >= 0 or size.per_sample > 0), f"a tensor has the size {size}")
    _require(sum(1 for size in sizes if size.per_sample) <= 1, "two sizes of a tensor depend on the samples")
    return Value(named_dtype(record.dtype), tuple(sizes))

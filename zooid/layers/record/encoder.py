"""Encodes a traced model as a record, with the tensors in its code, or with the reason why there is none."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
import torch
from safetensors.torch import save
from torch import fx

from zooid.core.runs.trace import (
    ConstantRecord,
    GraphRecord,
    LayersRecord,
    NodeRecord,
    ProgramRecord,
    StateRecord,
    TensorRecord,
    Trace,
    digest_of,
)
from zooid.layers.record.literals import dtype_name, encode_literal
from zooid.layers.record.nests import encode_nest
from zooid.layers.record.operations import NotRecorded, operation_name
from zooid.layers.stages.layered_model import LayeredModel
from zooid.layers.tracing.traced_program import TracedProgram, opaque_call
from zooid.layers.tracing.values import Value, facts_of

_Numbers = dict[fx.Node, int]


@dataclass(frozen=True)
class EncodedTrace:
    """A trace, and its constants as safetensors, which are empty where it has none."""

    trace: Trace
    constants: bytes = b""

    @property
    def data(self) -> bytes:
        """The trace as compact JSON, since it grows with the model and only programs read it."""
        return msgspec.json.encode(self.trace)


def encode_trace(layered: LayeredModel, device: torch.device) -> EncodedTrace:
    """Return the record of a traced model; the types of its values hold for this kind of device.

    A model with Python code cannot be recorded. Members then trace it themselves, and the record says why.
    """
    try:
        _reject_python_code(layered)
        constants = _Constants()
        train, evaluation = (_program(program, constants) for program in (layered.train, layered.evaluation))
        packed = constants.pack()
    except NotRecorded as reason:
        return EncodedTrace(Trace(fingerprint=layered.fingerprint, why_traced=str(reason)))
    layers = LayersRecord(
        train=train,
        evaluation=evaluation,
        names=layered.names,
        persistent_names=tuple(sorted(layered.persistent_names)),
        aliases=layered.aliases,
        device=device.type,
        constants_digest=digest_of(packed) if packed else "",
    )
    return EncodedTrace(Trace(fingerprint=layered.fingerprint, layers=layers), packed)


def _reject_python_code(layered: LayeredModel) -> None:
    if layered.whole is not None:
        raise NotRecorded(f"the model is not cut: {layered.why_whole}")
    if layered.hooks.of_gradients or layered.hooks.after_accumulation:
        names = sorted({*layered.hooks.of_gradients, *layered.hooks.after_accumulation})
        raise NotRecorded(f"the model's code has registered a hook on the parameter {names[0]}")
    for program in (layered.train, layered.evaluation):
        for operation in program.operations:
            if (call := opaque_call(operation)) is not None:
                raise NotRecorded(f"{call.path or 'the model'} runs Python code that a trace cannot follow")


@dataclass
class _Constants:
    """The tensors in the model's code; equal tensors of both modes are stored once."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def name_of(self, tensor: torch.Tensor) -> str:
        is_plain = tensor.layout == torch.strided and not tensor.requires_grad
        copied = tensor.detach().cpu().clone(memory_format=torch.contiguous_format) if is_plain else tensor
        if not is_plain or copied.stride() != tensor.stride():
            raise NotRecorded("its code contains a tensor that is trained or not contiguous")
        for name, known in self.tensors.items():
            if known.dtype == copied.dtype and known.shape == copied.shape and _bits(known).equal(_bits(copied)):
                return name
        name = f"constant_{len(self.tensors)}"
        self.tensors[name] = copied
        return name

    def pack(self) -> bytes:
        if not self.tensors:
            return b""
        try:
            return save(self.tensors)
        except (KeyError, ValueError) as error:
            raise NotRecorded("its code contains a tensor of a type that safetensors does not support") from error


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _program(program: TracedProgram, constants: _Constants) -> ProgramRecord:
    numbers = _number((*program.inputs, *program.state_names, *program.constants, *program.operations))
    return ProgramRecord(
        inputs=tuple(_placeholder(node) for node in program.inputs),
        state=tuple(StateRecord(name=name, node=_placeholder(node)) for node, name in program.state_names.items()),
        parameters=tuple(sorted(program.parameter_names)),
        constants=tuple(_constant(node, constant, constants) for node, constant in program.constants.items()),
        operations=tuple(_operation(operation, numbers) for operation in program.operations),
        outputs=tuple(encode_literal(output, numbers) for output in program.outputs),
        output_nest=encode_nest(program.output_spec),
        starts=program.starts,
        crossing=tuple(tuple(numbers[node] for node in nodes) for nodes in program.crossing),
    )


def _number(nodes: Iterable[fx.Node]) -> _Numbers:
    return {node: number for number, node in enumerate(nodes)}


def _placeholder(node: fx.Node) -> NodeRecord:
    """Return the record of an input, a parameter or a buffer."""
    return NodeRecord(name=node.name, literal=encode_literal(facts_of(node).literal, {}), **_facts(node))


def _operation(node: fx.Node, numbers: _Numbers) -> NodeRecord:
    return NodeRecord(
        name=node.name,
        operation=operation_name(node.target),
        args=tuple(encode_literal(argument, numbers) for argument in node.args),
        kwargs={name: encode_literal(argument, numbers) for name, argument in node.kwargs.items()},
        **_facts(node),
    )


def _facts(node: fx.Node) -> dict[str, Any]:
    facts = facts_of(node)
    return {
        "tensor": None if facts.value is None else _tensor(facts.value),
        "is_floating": facts.is_floating,
        "requires_grad": facts.requires_grad,
        "is_number": facts.is_number,
        "is_sample_count": facts.is_sample_count,
    }


def _tensor(value: Value) -> TensorRecord:
    sizes = tuple((size.fixed, size.per_sample) if size.per_sample else size.fixed for size in value.sizes)
    return TensorRecord(dtype=dtype_name(value.dtype), sizes=sizes)


def _constant(node: fx.Node, constant: Any, constants: _Constants) -> ConstantRecord:
    if isinstance(constant, fx.GraphModule):
        return ConstantRecord(name=node.name, graph=_graph(constant, constants))
    if isinstance(constant, torch.Tensor):
        return ConstantRecord(name=node.name, tensor=constants.name_of(constant))
    raise NotRecorded(f"its code contains a {type(constant).__name__}")


def _graph(module: fx.GraphModule, constants: _Constants) -> GraphRecord:
    by_kind: dict[str, list[fx.Node]] = {}
    for node in module.graph.nodes:
        by_kind.setdefault(node.op, []).append(node)
    inputs, attributes = by_kind.get("placeholder", []), by_kind.get("get_attr", [])
    operations = by_kind.get("call_function", [])
    [output] = by_kind["output"]
    if len(inputs) + len(attributes) + len(operations) + 1 != len(module.graph.nodes):
        raise NotRecorded("an operation calls a graph that calls modules")
    numbers = _number((*inputs, *attributes, *operations))
    return GraphRecord(
        inputs=tuple(node.name for node in inputs),
        constants=tuple(_constant(node, attrgetter(str(node.target))(module), constants) for node in attributes),
        nodes=tuple(_operation(node, numbers) for node in operations),
        output=encode_literal(output.args[0], numbers),
    )

"""A traced model as a record, with the tensors that its code contains; or the reason why there can be none."""

from collections.abc import Iterable
from dataclasses import dataclass, field
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
    """A trace, and beside it the constants as safetensors; empty where it has none."""

    trace: Trace
    constants: bytes = b""

    @property
    def data(self) -> bytes:
        """The trace as compact JSON: it is read by programs, and as large as the model is long."""
        return msgspec.json.encode(self.trace)


def encode_trace(layered: LayeredModel, device: torch.device) -> EncodedTrace:
    """The record of a traced model; `device` is what the types of its values were found out for.

    A model that holds Python code cannot be recorded: members have to trace it themselves, and the record says why.
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
        raise NotRecorded(f"the model's code has put a hook on the parameter {names[0]}")
    for program in (layered.train, layered.evaluation):
        for operation in program.operations:
            if (call := opaque_call(operation)) is not None:
                raise NotRecorded(f"{call.path or 'the model'} runs Python code that a trace cannot follow")


@dataclass
class _Constants:
    """Tensors that the model's code contains; those of both modes are one where they are equal."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def name_of(self, tensor: torch.Tensor) -> str:
        is_plain = tensor.layout == torch.strided and not tensor.requires_grad
        own = tensor.detach().cpu().clone(memory_format=torch.contiguous_format) if is_plain else tensor
        if not is_plain or own.stride() != tensor.stride():
            raise NotRecorded("its code contains a tensor that is trained, or whose numbers do not lie in a row")
        for name, known in self.tensors.items():
            if known.dtype == own.dtype and known.shape == own.shape and _bits(known).equal(_bits(own)):
                return name
        name = f"constant_{len(self.tensors)}"
        self.tensors[name] = own
        return name

    def pack(self) -> bytes:
        if not self.tensors:
            return b""
        try:
            return save(self.tensors)
        except (KeyError, ValueError) as error:
            raise NotRecorded("its code contains a tensor of a type that safetensors does not have") from error


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _program(program: TracedProgram, constants: _Constants) -> ProgramRecord:
    numbers: _Numbers = {}
    _number(numbers, (*program.inputs, *program.state_names, *program.constants, *program.operations))
    return ProgramRecord(
        inputs=tuple(_given(node) for node in program.inputs),
        state=tuple(StateRecord(name=name, node=_given(node)) for node, name in program.state_names.items()),
        parameters=tuple(sorted(program.parameter_names)),
        constants=tuple(_constant(node, constant, constants) for node, constant in program.constants.items()),
        operations=tuple(_operation(operation, numbers) for operation in program.operations),
        outputs=tuple(encode_literal(output, numbers) for output in program.outputs),
        output_nest=encode_nest(program.output_spec),
        starts=program.starts,
        crossing=tuple(tuple(numbers[node] for node in nodes) for nodes in program.crossing),
    )


def _number(numbers: _Numbers, nodes: Iterable[fx.Node]) -> None:
    numbers.update({node: number for number, node in enumerate(nodes)})


def _given(node: fx.Node) -> NodeRecord:
    """A node that the graph is given: an input, a parameter or a buffer."""
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
        raise NotRecorded("an operation calls a graph with calls of modules in it")
    numbers: _Numbers = {}
    _number(numbers, (*inputs, *attributes, *operations))
    return GraphRecord(
        inputs=tuple(node.name for node in inputs),
        constants=tuple(_constant(node, _attribute(module, str(node.target)), constants) for node in attributes),
        nodes=tuple(_operation(node, numbers) for node in operations),
        output=encode_literal(output.args[0], numbers),
    )


def _attribute(module: fx.GraphModule, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found

"""Converts the result of torch.export into a traced program."""

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map

from zooid.core.errors import LayerError
from zooid.layers.jobs.batches import Batch
from zooid.layers.jobs.model_builder import NeedsWeights
from zooid.layers.tracing.opaque_calls import OpaqueCall, opaque_operation
from zooid.layers.tracing.structures import without_objects
from zooid.layers.tracing.traced_program import TracedProgram
from zooid.layers.tracing.values import Facts, LinearSize, Value, is_floating, note_facts

_ASSERTIONS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")
"""Checks that a trace contains; they would fail under autocast and on another device."""
_ANY_NUMBER = 2**31
"""A bound above this is torch's own, not the model's."""


def export(model: nn.Module, example: Batch) -> torch.export.ExportedProgram:
    """Trace the model in its current mode, with a dynamic number of samples."""

    def dynamic_batch(value: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if isinstance(value, torch.Tensor) and value.dim() else None

    shapes = tree_map(dynamic_batch, example.kwargs or example.args)
    with warnings.catch_warnings(), _silence(), _as_if_on_processor(model), _plain_output(model):
        warnings.simplefilter("ignore")  # torch warns of attributes that a forward assigns
        exported = torch.export.export(model, example.args, example.kwargs, dynamic_shapes=shapes, strict=False)
    for symbol, bounds in exported.range_constraints.items():
        if str(symbol).startswith("s") and bounds.upper < _ANY_NUMBER:
            raise LayerError(f"its code depends on the number of samples: it changes at {bounds.upper + 1}")
    return exported


@contextmanager
def _as_if_on_processor(model: nn.Module) -> Iterator[None]:
    """While inside, tensors on `meta` pretend to be on the CPU, where constants in the code have values."""
    before = [(tensors, dict(tensors)) for module in model.modules() for tensors in _tensor_dicts(module)]
    replacements: dict[torch.Tensor, torch.Tensor] = {}
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
        for tensor in {tensor for tensors, _ in before for tensor in tensors.values() if tensor is not None}:
            if tensor.is_meta:
                size, stride = tensor.shape, tensor.stride()
                fake = torch.empty_strided(size, stride, dtype=tensor.dtype, device="cpu")
                is_parameter = isinstance(tensor, nn.Parameter)
                replacements[tensor] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
    for tensors, originals in before:
        present = {name: tensor for name, tensor in originals.items() if tensor is not None}
        tensors.update({name: replacements.get(tensor, tensor) for name, tensor in present.items()})
    try:
        yield
    finally:
        for tensors, originals in before:
            tensors.update(originals)


def _tensor_dicts(module: nn.Module) -> list[dict[str, Any]]:
    """Return the dicts of a module's parameters and buffers; scripted modules have none, and are never on `meta`."""
    return [tensors for tensors in (module._parameters, module._buffers) if isinstance(tensors, dict)]


@contextmanager
def _plain_output(model: nn.Module) -> Iterator[None]:
    """While inside, the model's results contain only tensors and constants."""
    original = type(model)

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        returned = original.forward(self, *args, **kwargs)
        plain = without_objects(returned)
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(plain)):
            raise LayerError(f"it returns a {type(returned).__name__}, in which no tensor can be found")
        return plain

    model.__class__ = type(original.__name__, (original,), {"forward": forward, "__module__": original.__module__})
    try:
        yield
    finally:
        model.__class__ = original


@contextmanager
def _silence() -> Iterator[None]:
    """While inside, torch does not print or log the errors that it also raises."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def read_program(
    exported: torch.export.ExportedProgram, aliases: Mapping[str, str], calls: Mapping[str, OpaqueCall]
) -> TracedProgram:
    """Return the program of an exported model; its opaque operations name these calls."""
    _remove_assertions(exported.graph)
    _note_traced_facts(exported.graph)
    nodes = {node.name: node for node in exported.graph.nodes}
    state_names: dict[fx.Node, str] = {}
    constants: dict[fx.Node, Any] = {}
    inputs: list[fx.Node] = []
    parameters: set[str] = set()
    for spec in exported.graph_signature.input_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node is None:
            raise LayerError(f"the model has an input of an unsupported kind: {spec}")
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            name = aliases.get(str(spec.target), str(spec.target))
            state_names[node] = name
            if spec.kind is InputKind.PARAMETER:
                parameters.add(name)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            constants[node] = exported.constants[str(spec.target)]
            if constants[node].is_meta:
                raise NeedsWeights(
                    f"it uses a tensor, {spec.target}, that is neither a parameter nor a buffer; its values are known "
                    "only when the model is built with its weights"
                )
        elif spec.kind is InputKind.USER_INPUT:
            inputs.append(node)
        else:
            raise LayerError(f"the model has an input of an unsupported kind: {spec.kind}")
    for node in exported.graph.nodes:
        if node.op == "get_attr":
            constants[node] = node.meta["subgraph"] = getattr(exported.graph_module, str(node.target))
    for node in exported.graph.nodes:
        if node.target is opaque_operation():
            node.meta["opaque"] = call = calls[str(node.args[0])]
            node.meta["nn_module_stack"] = {"": (call.path, type(call.target))}
    output = next(node for node in exported.graph.nodes if node.op == "output")
    return TracedProgram(
        operations=tuple(node for node in exported.graph.nodes if node.op == "call_function"),
        inputs=tuple(inputs),
        state_names=state_names,
        parameter_names=frozenset(parameters),
        constants=constants,
        outputs=tuple(output.args[0]),
        output_spec=exported.call_spec.out_spec,
    )


def _remove_assertions(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if getattr(getattr(node.target, "overloadpacket", None), "__name__", "") in _ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _note_traced_facts(graph: fx.Graph) -> None:
    """Replace the tensors without data that torch.export leaves at nodes by facts."""
    for node in graph.nodes:
        result = node.meta.pop("val", None)
        facts = _facts(result)
        if node.op == "placeholder" and not isinstance(result, torch.Tensor):
            facts = replace(facts, literal=result)
        note_facts(node, facts)


def _facts(result: Any) -> Facts:
    if isinstance(result, torch.Tensor):
        return Facts(_value(result), is_floating(result), result.requires_grad)
    if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        is_number = _follows_from_samples(result.node.expr)
        is_count = isinstance(result, torch.SymInt) and bool(result.node.expr.is_symbol) and is_number
        return Facts(is_number=is_number, is_sample_count=is_count)
    return Facts(is_number=isinstance(result, (int, float)))


def _value(tensor: torch.Tensor) -> Value | None:
    sizes = [size for size in map(_linear_size, tensor.shape) if size is not None]
    if len(sizes) != tensor.dim() or sum(1 for size in sizes if size.per_sample) > 1:
        return None
    return Value(tensor.dtype, tuple(sizes))


def _linear_size(size: Any) -> LinearSize | None:
    if isinstance(size, int):
        return LinearSize(size)
    expression = size.node.expr
    if not _follows_from_samples(expression):
        return None
    zero, one, seven = (int(expression.subs(dict.fromkeys(expression.free_symbols, count))) for count in (0, 1, 7))
    line = LinearSize(zero, one - zero)
    return line if line.of(7) == seven and line.per_sample > 0 else None


def _follows_from_samples(expression: Any) -> bool:
    """Whether all symbols are numbers of samples, which torch calls s0, s1 and so on."""
    return all(str(symbol).startswith("s") for symbol in expression.free_symbols)

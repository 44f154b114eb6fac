"""What torch.export makes of a model, as a program."""

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from zooid.layers.tracing.node_facts import note_traced_facts
from zooid.layers.tracing.opaque_calls import OpaqueCall, opaque_operation, without_objects
from zooid.layers.tracing.traced_program import TracedProgram

_ASSERTIONS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")
"""What a trace checks about itself; it would refuse autocast, and another device."""


def export(model: nn.Module, example: Batch) -> torch.export.ExportedProgram:
    """Trace the model in the mode that it is in, with the number of samples left open."""

    def dynamic_batch(value: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if isinstance(value, torch.Tensor) and value.dim() else None

    shapes = tree_map(dynamic_batch, example.kwargs or example.args)
    with warnings.catch_warnings(), _silence(), _as_if_on_processor(model), _plain_output(model):
        warnings.simplefilter("ignore")  # about attributes that a forward assigns
        exported = torch.export.export(model, example.args, example.kwargs, dynamic_shapes=shapes, strict=False)
    for symbol, bounds in exported.range_constraints.items():
        if str(symbol).startswith("s") and bounds.upper < _ANY_NUMBER:
            raise LayerError(f"its code depends on the number of samples: it differs from {bounds.upper + 1} on")
    return exported


@contextmanager
def _as_if_on_processor(model: nn.Module) -> Iterator[None]:
    """While inside, tensors on `meta` pretend to be on the processor, where constants of the code have values."""
    before = [(tensors, dict(tensors)) for module in model.modules() for tensors in _tensors_of(module)]
    pretended: dict[torch.Tensor, torch.Tensor] = {}
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
        for tensor in {tensor for tensors, _ in before for tensor in tensors.values() if tensor is not None}:
            if tensor.is_meta:
                size, stride = tensor.shape, tensor.stride()
                fake = torch.empty_strided(size, stride, dtype=tensor.dtype, device="cpu")
                is_parameter = isinstance(tensor, nn.Parameter)
                pretended[tensor] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
    for tensors, own in before:
        tensors.update({name: pretended.get(tensor, tensor) for name, tensor in own.items() if tensor is not None})
    try:
        yield
    finally:
        for tensors, own in before:
            tensors.update(own)


def _tensors_of(module: nn.Module) -> list[dict[str, Any]]:
    """Where a module keeps its tensors; scripted ones keep them elsewhere, and are never on `meta`."""
    return [tensors for tensors in (module._parameters, module._buffers) if isinstance(tensors, dict)]


@contextmanager
def _plain_output(model: nn.Module) -> Iterator[None]:
    """While inside, objects among the model's results that are neither tensors nor constants are left out."""
    original = type(model)

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        found = original.forward(self, *args, **kwargs)
        plain = without_objects(found)
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(plain)):
            raise LayerError(f"it returns a {type(found).__name__}, of which no tensor can be told")
        return plain

    model.__class__ = type(original.__name__, (original,), {"forward": forward, "__module__": original.__module__})
    try:
        yield
    finally:
        model.__class__ = original


_ANY_NUMBER = 2**31
"""A bound above this is torch's own, not the model's."""


@contextmanager
def _silence() -> Iterator[None]:
    """What torch has to tell about a model that it cannot follow comes with its error; it also prints and logs it."""
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
    """The program of an exported model; `calls` are those that its opaque operations name."""
    _leave_out_assertions(exported.graph)
    note_traced_facts(exported.graph)
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
                    f"it uses a tensor, {spec.target}, that is neither a parameter nor a buffer, and whose values are "
                    "known only when the model is built with its weights"
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


def _leave_out_assertions(graph: fx.Graph) -> None:
    """Remove what a trace checks about itself, and what only those checks use."""
    for node in list(graph.nodes):
        if getattr(getattr(node.target, "overloadpacket", None), "__name__", "") in _ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code()

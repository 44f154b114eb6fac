"""A model that cannot be cut, as one layer that is the untouched module."""

import torch
from torch import fx, nn
from torch.utils._pytree import tree_flatten

from zooid.layers.jobs.batches import Batch
from zooid.layers.stages.layered_model import LayeredModel, parameter_hooks, persistent_names, tied_names
from zooid.layers.tracing.opaque_calls import OpaqueCall, opaque_operation
from zooid.layers.tracing.structures import take_apart
from zooid.layers.tracing.traced_program import TracedProgram
from zooid.layers.tracing.values import Facts, note_facts, tensor_facts


def whole_model(model: nn.Module, example: Batch, why: str) -> LayeredModel:
    """Return the model as a single layer, which calls the model itself; `why` says why it cannot be cut."""
    aliases = tied_names(model)
    program = _program(model, example, aliases)
    return LayeredModel(
        program,
        program,
        ("model",),
        persistent_names(model, aliases),
        aliases,
        parameter_hooks(model),
        whole=model,
        input_spec=tree_flatten((example.args, example.kwargs))[1],
        why_whole=why,
    )


def _program(model: nn.Module, example: Batch, aliases: dict[str, str]) -> TracedProgram:
    """Return a program of one operation, which uses all parameters and buffers."""
    graph = fx.Graph()
    inputs, _ = tree_flatten((example.args, example.kwargs))
    input_nodes = [graph.placeholder(f"input_{number}") for number in range(len(inputs))]
    for node, value in zip(input_nodes, inputs, strict=True):
        is_tensor = isinstance(value, torch.Tensor)
        note_facts(node, tensor_facts(value, num_samples_first=value.dim() > 0) if is_tensor else Facts(literal=value))
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    names = {aliases.get(name, name): tensor for name, tensor in tensors.items()}
    state = {graph.placeholder(f"state_{number}"): name for number, name in enumerate(names)}
    for node, name in state.items():
        note_facts(node, tensor_facts(names[name]))
    arguments, _ = take_apart("", ([], {}))
    call = OpaqueCall("", model, arguments, tuple(names), frozenset(dict(model.named_buffers())))
    operation = graph.call_function(opaque_operation(), ("#0", input_nodes, list(state)))
    operation.meta["opaque"] = call
    _, spec = tree_flatten(None)
    return TracedProgram(
        operations=(operation,),
        inputs=tuple(input_nodes),
        state_names=state,
        parameter_names=frozenset(aliases.get(name, name) for name, _ in model.named_parameters()),
        constants={},
        outputs=(operation,),
        output_spec=spec,
    )

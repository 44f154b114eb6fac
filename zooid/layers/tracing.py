"""Traces a model once and finds the places where it can be cut.

The trace is a flat list of operations. A cut between two of them is allowed where only tensors of the batch cross it,
few of them, where no parameter is used on both sides, and where nothing that crosses is written to under another name.
The batch size, and what follows from it, need not cross: they are read again from a tensor that does. A layer is what
lies between two neighbouring cuts; each holds parameters of its own, since a cut that moves none is of no use.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind
from torch.utils._pytree import TreeSpec, tree_map

from zooid.core.errors import LayerError
from zooid.layers.batches import Batch

MAX_CROSSING = 8
"""More values than this across a cut make it useless in practice, and the search need not see it."""


@dataclass(frozen=True)
class LayeredModel:
    """A traced model: operations in order, where its layers begin, and what its values are."""

    operations: tuple[fx.Node, ...]
    starts: tuple[int, ...]
    """Index of the first operation of each layer."""
    names: tuple[str, ...]
    """Module path in which each layer begins."""
    inputs: tuple[fx.Node, ...]
    """Placeholders of the model's own inputs, flattened."""
    state_names: dict[fx.Node, str]
    """Placeholders of parameters and buffers, by the name they have in the model."""
    constants: dict[fx.Node, torch.Tensor]
    """Placeholders of tensors that the forward code itself contains."""
    outputs: tuple[Any, ...]
    output_spec: TreeSpec
    parameter_names: frozenset[str]
    persistent_names: frozenset[str]
    """Names that a state dict of the model has, without aliases."""
    aliases: dict[str, str]
    """Names of the state dict that share the tensor of an earlier name (tied parameters)."""

    @property
    def num_layers(self) -> int:
        return len(self.starts)

    @property
    def start_layers(self) -> dict[int, int]:
        """Layer numbers by the index of their first operation."""
        return {start: layer for layer, start in enumerate(self.starts)}

    def operations_of(self, first_layer: int, end_layer: int) -> tuple[fx.Node, ...]:
        end = self.starts[end_layer] if end_layer < self.num_layers else len(self.operations)
        return self.operations[self.starts[first_layer] : end]

    def crossing(self, layer: int) -> tuple[fx.Node, ...]:
        """The values that travel into this layer, in a fixed order; for layer 0 the model's inputs."""
        return self.inputs if layer == 0 else self.live[self.starts[layer]]

    def crossing_bytes_per_sample(self, layer: int) -> float:
        """Bytes of the values that travel into this layer, for each sample."""
        return float(sum(bytes_per_sample(node) for node in self.crossing(layer)))

    def state_of(self, first_layer: int, end_layer: int) -> tuple[str, ...]:
        """Names of the parameters and buffers that these layers use, in order of first use."""
        names: dict[str, None] = {}
        for operation in self.operations_of(first_layer, end_layer):
            for node in operation.all_input_nodes:
                if node in self.state_names:
                    names[self.state_names[node]] = None
        return tuple(names)

    def state_bytes(self, first_layer: int, end_layer: int) -> dict[str, int]:
        """Bytes of the parameters and buffers that these layers use, by name."""
        values = {name: node.meta["val"] for node, name in self.state_names.items()}
        return {
            name: int(values[name].numel()) * values[name].element_size()
            for name in self.state_of(first_layer, end_layer)
        }

    @cached_property
    def unused_names(self) -> frozenset[str]:
        """Names of the state dict that no layer uses."""
        return self.persistent_names - set(self.state_of(0, self.num_layers))

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the model's operations, parameters or shapes change."""
        digest = hashlib.blake2b(digest_size=16)
        for node, name in self.state_names.items():
            digest.update(f"{name} {tuple(node.meta['val'].shape)} {node.meta['val'].dtype}\n".encode())
        for operation in self.operations:
            digest.update(f"{operation.target} {operation.args} {operation.kwargs}\n".encode())
        digest.update(f"{self.outputs} {self.output_spec}".encode())
        return digest.hexdigest()

    @cached_property
    def live(self) -> tuple[tuple[fx.Node, ...], ...]:
        """For every cut before an operation, the inputs and results from before it that are used at or after it."""
        index = {node: position for position, node in enumerate(self.operations)}
        last_use = {
            node: max((index.get(user, len(self.operations)) for user in node.users), default=-1)
            for node in (*self.inputs, *self.operations)
        }
        alive = {node: None for node in self.inputs if last_use[node] >= 0}
        cuts = [tuple(alive)]
        for position, operation in enumerate(self.operations[:-1]):
            if not is_size(operation):
                alive[operation] = None
            alive = {node: None for node in alive if last_use[node] > position}
            cuts.append(tuple(alive))
        return tuple(cuts)


def trace(model: nn.Module, example: Batch) -> LayeredModel:
    """Trace the model in its current mode on an example of at least two samples (values do not matter; meta works)."""

    def dynamic_batch(value: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if isinstance(value, torch.Tensor) else None

    inputs = example.kwargs or example.args
    try:
        exported = torch.export.export(
            model, example.args, example.kwargs, dynamic_shapes=tree_map(dynamic_batch, inputs), strict=False
        )
    except Exception as error:
        raise LayerError(
            f"the model cannot be traced: {type(error).__name__}: {str(error).strip().splitlines()[0]}; "
            "write its forward without control flow that depends on values and without fixing the batch size, and make "
            "tensors that it holds or creates from numbers buffers, with register_buffer"
        ) from error
    return _layered(exported, _tied_names(model))


def _layered(exported: torch.export.ExportedProgram, aliases: dict[str, str]) -> LayeredModel:
    nodes = {node.name: node for node in exported.graph.nodes}
    signature = exported.graph_signature
    state_names: dict[fx.Node, str] = {}
    constants: dict[fx.Node, torch.Tensor] = {}
    inputs: list[fx.Node] = []
    non_persistent: set[str] = set()
    parameters: set[str] = set()
    for spec in signature.input_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node is None:
            raise LayerError(f"the model has an input of an unsupported kind: {spec}")
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            name = aliases.get(str(spec.target), str(spec.target))
            state_names[node] = name
            if spec.kind is InputKind.PARAMETER:
                parameters.add(name)
            elif spec.persistent is False:
                non_persistent.add(name)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            constants[node] = exported.constants[str(spec.target)]
            if constants[node].is_meta:
                raise LayerError(
                    f"the model uses a tensor, {spec.target}, that is neither a parameter nor a buffer; members would "
                    "not get its values: make it a buffer with register_buffer"
                )
        elif spec.kind is InputKind.USER_INPUT:
            inputs.append(node)
        else:
            raise LayerError(f"the model has an input of an unsupported kind: {spec.kind}")
    operations = tuple(node for node in exported.graph.nodes if node.op in ("call_function", "get_attr"))
    if unsupported := [node for node in operations if node.op == "get_attr"]:
        raise LayerError(f"the model holds a sub-graph ({unsupported[0].target}), such as torch.cond; avoid it")
    output = next(node for node in exported.graph.nodes if node.op == "output")
    whole = LayeredModel(
        operations=operations,
        starts=(0,),
        names=("",),
        inputs=tuple(inputs),
        state_names=state_names,
        constants=constants,
        outputs=tuple(output.args[0]),
        output_spec=exported.call_spec.out_spec,
        parameter_names=frozenset(parameters),
        persistent_names=frozenset(state_names.values()) - non_persistent,
        aliases=aliases,
    )
    starts = _find_starts(whole)
    names = tuple(module_path(_first_with_parameters(whole, start)) for start in starts)
    return replace(whole, starts=starts, names=_distinct(names))


def _tied_names(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
    return aliases


def _find_starts(model: LayeredModel) -> tuple[int, ...]:
    """One cut before each operation that uses new parameters: the narrowest place since the parameters before it."""
    uses: dict[str, list[int]] = {}
    for position, operation in enumerate(model.operations):
        for node in operation.all_input_nodes:
            name = model.state_names.get(node)
            if name is not None and name in model.persistent_names:
                uses.setdefault(name, []).append(position)
    locked = {cut for used in uses.values() for cut in range(used[0] + 1, used[-1] + 1)}
    locked |= _aliased_writes(model)
    first_uses = sorted({used[0] for name, used in uses.items() if name in model.parameter_names})
    starts = [0]
    for before, position in pairwise(first_uses):
        allowed = [cut for cut in range(before + 1, position + 1) if cut not in locked and _can_cross(model.live[cut])]
        if allowed:
            starts.append(min(allowed, key=lambda cut: _preference(model, cut)))
    return tuple(starts)


def _aliased_writes(model: LayeredModel) -> set[int]:
    """Cuts across which one memory is known under a name that a later operation does not write through.

    A stage that writes to a value from before its cut gets a copy of it; other names of the same memory would not see
    the write.
    """
    roots: dict[fx.Node, fx.Node] = {}
    for operation in model.operations:
        source = _aliased_argument(operation)
        roots[operation] = roots.get(source, source) if source is not None else operation
    forbidden: set[int] = set()
    for position, operation in enumerate(model.operations):
        for written in written_arguments(operation):
            root = roots.get(written, written)
            for cut in range(1, position + 1):
                crossing = [node for node in model.live[cut] if roots.get(node, node) is root]
                if crossing and crossing != [written]:
                    forbidden.add(cut)
    return forbidden


def _aliased_argument(operation: fx.Node) -> fx.Node | None:
    """The argument whose memory the result shares: of a view, or of an operation in place."""
    schema = getattr(operation.target, "_schema", None)
    if schema is None or not any(result.alias_info is not None for result in schema.returns):
        return None
    for argument, value in zip(schema.arguments, operation.args, strict=False):
        if argument.alias_info is not None and isinstance(value, fx.Node):
            return value
    return None


def written_arguments(operation: fx.Node) -> list[fx.Node]:
    """What an operation changes in place."""
    schema = getattr(operation.target, "_schema", None)
    if schema is None:
        return []
    return [
        value
        for argument, value in zip(schema.arguments, operation.args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node)
    ]


def is_size(node: fx.Node) -> bool:
    """Whether a value is the number of samples, or computed from nothing else."""
    return isinstance(node.meta.get("val"), torch.SymInt)


def _first_with_parameters(model: LayeredModel, start: int) -> fx.Node:
    for operation in model.operations[start:]:
        if any(node in model.state_names for node in operation.all_input_nodes):
            return operation
    return model.operations[start]


def _preference(model: LayeredModel, cut: int) -> tuple[float, bool, int]:
    """Narrow before wide, between modules before inside one, late before early."""
    width = sum(bytes_per_sample(node) for node in model.live[cut])
    inside = module_path(model.operations[cut - 1]) == module_path(model.operations[cut])
    return width, inside, -cut


def _can_cross(nodes: tuple[fx.Node, ...]) -> bool:
    return 0 < len(nodes) <= MAX_CROSSING and all(_is_batch(node) for node in nodes)


def _is_batch(node: fx.Node) -> bool:
    """Whether dimension 0, and no other, is the number of samples."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return False
    sizes: list[Any] = list(value.shape)
    return _is_symbol(sizes[0]) and all(isinstance(size, int) for size in sizes[1:])


def _is_symbol(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(size.node.expr.is_symbol)


def bytes_per_sample(node: fx.Node) -> int:
    """Bytes of a batch-first value for each sample."""
    value = node.meta["val"]
    return int(math.prod(int(size) for size in value.shape[1:]) * value.element_size())


def module_path(operation: fx.Node) -> str:
    """Path of the innermost module whose forward contains the operation."""
    stack = operation.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Layer names for people: the module path, numbered where several layers begin in one module."""
    plain = [name or "model" for name in names]
    seen: dict[str, int] = {}
    result = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if plain.count(name) == 1 else f"{name}#{seen[name]}")
    return tuple(result)

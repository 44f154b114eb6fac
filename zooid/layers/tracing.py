"""Traces a model in training and in evaluation, with the batch dimension left open, and divides both into layers."""

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_map

from zooid.core.errors import LayerError
from zooid.layers.batches import Batch
from zooid.layers.blocks import Block, block_programs
from zooid.layers.cutting import cut_alike
from zooid.layers.program import Program, module_path
from zooid.layers.values import Value, value_of

Mode = Literal["train", "eval"]

_ASSERTIONS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")
"""What a trace checks about itself; it would refuse autocast, and another device."""


@dataclass(frozen=True, eq=False)
class LayeredModel:
    """A traced model: any run of its layers can become a stage."""

    train: Program
    evaluation: Program
    names: tuple[str, ...]
    """Module path in which each layer begins."""
    persistent_names: frozenset[str]
    """Names that a state dict of the model has, without aliases."""
    aliases: dict[str, str]
    """Names of the state dict that share the tensor of an earlier name (tied parameters)."""

    @property
    def num_layers(self) -> int:
        return len(self.names)

    @property
    def parameter_names(self) -> frozenset[str]:
        return self.train.parameter_names | self.evaluation.parameter_names

    def program(self, mode: Mode) -> Program:
        return self.train if mode == "train" else self.evaluation

    def values_into(self, layer: int, mode: Mode = "train") -> tuple[Value, ...]:
        """What travels into this layer; for layer 0 the model's own inputs that are tensors."""
        values = [value_of(node) for node in self.program(mode).values_into(layer)]
        return tuple(value for value in values if value is not None)

    def bytes_into(self, layer: int, num_samples: int) -> int:
        """Bytes of the values that travel into this layer in training."""
        return sum(value.num_bytes(num_samples) for value in self.values_into(layer))

    def state_of(self, first_layer: int, end_layer: int) -> tuple[str, ...]:
        """Names of the parameters and buffers that these layers use in either mode, in order of first use."""
        both = [program.state_of(first_layer, end_layer) for program in (self.train, self.evaluation)]
        return tuple(dict.fromkeys(name for names in both for name in names))

    def state_bytes(self, first_layer: int, end_layer: int) -> dict[str, int]:
        """Bytes of the parameters and buffers that these layers use, by name."""
        return {name: self._sizes[name] for name in self.state_of(first_layer, end_layer)}

    @cached_property
    def _trained_names(self) -> frozenset[str]:
        nodes = self.train.state_names.items()
        return frozenset(
            name for node, name in nodes if name in self.parameter_names and node.meta["val"].requires_grad
        )

    def trained_bytes(self, first_layer: int, end_layer: int) -> dict[str, int]:
        """Bytes of the parameters of these layers that are trained, in the order in which a backward completes their
        gradients: what is used first comes last."""
        sizes = self.state_bytes(first_layer, end_layer)
        return {name: size for name, size in reversed(sizes.items()) if name in self._trained_names}

    @cached_property
    def tied(self) -> dict[str, tuple[int, ...]]:
        """Parameters that several layers use, and which."""
        users: dict[str, list[int]] = {}
        for layer in range(self.num_layers):
            for name in self.state_of(layer, layer + 1):
                if name in self.parameter_names:
                    users.setdefault(name, []).append(layer)
        return {name: tuple(layers) for name, layers in users.items() if len(layers) > 1}

    @cached_property
    def unused_names(self) -> frozenset[str]:
        """Names of the state dict that no layer uses."""
        return self.persistent_names - set(self.state_of(0, self.num_layers))

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the model's operations, parameters, shapes or cuts change."""
        digest = hashlib.blake2b(digest_size=16)
        for program in (self.train, self.evaluation):
            for node, name in program.state_names.items():
                value = node.meta["val"]
                digest.update(f"{name} {tuple(value.shape)} {value.dtype} {value.requires_grad}\n".encode())
            for operation in program.operations:
                digest.update(f"{operation.target} {operation.args} {operation.kwargs}\n".encode())
            for node, constant in program.constants.items():
                digest.update(f"{node} {_text_of(constant)}\n".encode())
            digest.update(f"{program.outputs} {program.output_spec} {program.starts} {program.crossing}\n".encode())
        return digest.hexdigest()

    @cached_property
    def _sizes(self) -> dict[str, int]:
        nodes = [*self.train.state_names.items(), *self.evaluation.state_names.items()]
        return {name: int(node.meta["val"].numel()) * node.meta["val"].element_size() for node, name in nodes}


def trace(model: nn.Module, example: Batch) -> LayeredModel:
    """Trace the model on an example of at least two samples (values do not matter; meta works).

    A model that cannot be traced as a whole is cut between its blocks, for which it needs its weights.
    """
    aliases = _tied_names(model)
    with _mode_kept(model):
        try:
            train = _program(_export(model.train(), example), aliases)
            evaluation = _program(_export(model.eval(), example), aliases)
        except _NotTraceable as error:
            train, evaluation = block_programs(model, example, aliases, str(error))
    train, evaluation = cut_alike((train, evaluation))
    names = [module_path(_first_with_parameters(train, start)) for start in train.starts]
    persistent = frozenset(aliases.get(name, name) for name in model.state_dict(keep_vars=True))
    return LayeredModel(train, evaluation, _distinct(names), persistent, aliases)


def _export(model: nn.Module, example: Batch) -> torch.export.ExportedProgram:
    def dynamic_batch(value: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if isinstance(value, torch.Tensor) else None

    shapes = tree_map(dynamic_batch, example.kwargs or example.args)
    try:
        with warnings.catch_warnings(), _silence():
            warnings.simplefilter("ignore")  # about attributes that a forward assigns
            return torch.export.export(model, example.args, example.kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise _NotTraceable(f"{type(error).__name__}: {_in_short(str(error))}") from error


@contextmanager
def _silence() -> Iterator[None]:
    """What torch has to tell about a model that it cannot follow comes with its error."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _NotTraceable(LayerError):
    """What torch.export says about a model that it cannot follow."""


def _in_short(message: str) -> str:
    """The first line, and the line of the user's own code where torch names it."""
    lines = message.strip().splitlines() or [""]
    place = next((line.strip() for line in lines if line.strip().startswith(("File ", "(_export"))), "")
    return f"{lines[0]} ({place})" if place else lines[0]


@contextmanager
def _mode_kept(model: nn.Module) -> Iterator[None]:
    """A model may have parts that are frozen in evaluation mode: each module gets back its own."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _program(exported: torch.export.ExportedProgram, aliases: dict[str, str]) -> Program:
    _leave_out_assertions(exported.graph)
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
                raise _NotTraceable(
                    f"it uses a tensor, {spec.target}, that is neither a parameter nor a buffer; members would not get "
                    "its values: make it a buffer with register_buffer"
                )
        elif spec.kind is InputKind.USER_INPUT:
            inputs.append(node)
        else:
            raise LayerError(f"the model has an input of an unsupported kind: {spec.kind}")
    for node in exported.graph.nodes:
        if node.op == "get_attr":
            constants[node] = node.meta["subgraph"] = getattr(exported.graph_module, str(node.target))
    output = next(node for node in exported.graph.nodes if node.op == "output")
    return Program(
        operations=tuple(node for node in exported.graph.nodes if node.op == "call_function"),
        inputs=tuple(inputs),
        state_names=state_names,
        parameter_names=frozenset(parameters),
        constants=constants,
        outputs=tuple(output.args[0]),
        output_spec=exported.call_spec.out_spec,
    )


def _leave_out_assertions(graph: fx.Graph) -> None:
    """Those, and what only they had use for."""
    for node in list(graph.nodes):
        if getattr(getattr(node.target, "overloadpacket", None), "__name__", "") in _ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _text_of(constant: Any) -> str:
    if isinstance(constant, fx.GraphModule):
        return constant.code
    if isinstance(constant, Block):
        return repr(constant)
    return f"{tuple(constant.shape)} {constant.dtype} {constant.tolist() if constant.numel() < 64 else ''}"


def _tied_names(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
    return aliases


def _first_with_parameters(program: Program, start: int) -> fx.Node:
    for operation in program.operations[start:]:
        if any(program.state_names.get(node) in program.parameter_names for node in operation.all_input_nodes):
            return operation
    return program.operations[start]


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Layer names for people: the module path, numbered where several layers begin in one module."""
    plain = [name or "model" for name in names]
    seen: dict[str, int] = {}
    result = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if plain.count(name) == 1 else f"{name}#{seen[name]}")
    return tuple(result)

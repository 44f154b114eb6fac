"""A traced model: any run of its layers can become a stage."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.utils._pytree import TreeSpec

from zooid.layers.tracing.traced_program import TracedProgram, opaque_call
from zooid.layers.tracing.values import Value, facts_of, state_value, value_of

Mode = Literal["train", "eval"]
GradientHook = Callable[[torch.Tensor], Any]


@dataclass(frozen=True, eq=False)
class LayeredModel:
    """A traced model: any run of its layers can become a stage."""

    train: TracedProgram
    evaluation: TracedProgram
    names: tuple[str, ...]
    """Module path in which each layer begins."""
    persistent_names: frozenset[str]
    """Names that a state dict of the model has, without aliases."""
    aliases: dict[str, str]
    """Names of the state dict that share the tensor of an earlier name (tied parameters)."""
    hooks: "ParameterHooks"
    whole: nn.Module | None = None
    """The untouched model, where it is trained as one stage because it cannot be cut."""
    input_spec: TreeSpec | None = None
    """How the whole model's inputs are nested."""
    why_whole: str = ""
    """Why it cannot be cut, in words; empty where it can."""

    @property
    def num_layers(self) -> int:
        return len(self.names)

    @property
    def parameter_names(self) -> frozenset[str]:
        return self.train.parameter_names | self.evaluation.parameter_names

    def program(self, mode: Mode) -> TracedProgram:
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
        return frozenset(name for node, name in nodes if name in self.parameter_names and facts_of(node).requires_grad)

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
                value = state_value(node)
                is_trained = facts_of(node).requires_grad
                digest.update(f"{name} {value.shape(0)} {value.dtype} {is_trained}\n".encode())
            for operation in program.operations:
                call = opaque_call(operation) or ""
                digest.update(f"{operation.target} {operation.args} {operation.kwargs} {call}\n".encode())
            for node, constant in program.constants.items():
                digest.update(f"{node} {_text_of(constant)}\n".encode())
            digest.update(f"{program.outputs} {program.output_spec} {program.starts} {program.crossing}\n".encode())
        return digest.hexdigest()

    @cached_property
    def _sizes(self) -> dict[str, int]:
        nodes = [*self.train.state_names.items(), *self.evaluation.state_names.items()]
        return {name: state_value(node).num_bytes(0) for node, name in nodes}


@dataclass(frozen=True)
class ParameterHooks:
    """Hooks that the model's own code has put on parameters, by the parameters' names."""

    of_gradients: Mapping[str, tuple[GradientHook, ...]] = field(default_factory=dict)
    """Called with a gradient; may return another one in its place."""
    after_accumulation: Mapping[str, tuple[GradientHook, ...]] = field(default_factory=dict)
    """Called with the parameter, when its gradient is complete."""


def parameter_hooks(model: nn.Module) -> ParameterHooks:
    """The hooks that are on a model's parameters now."""
    named = dict(model.named_parameters())
    before = {name: tuple((p._backward_hooks or {}).values()) for name, p in named.items()}
    after = {name: tuple((getattr(p, _AFTER, None) or {}).values()) for name, p in named.items()}
    return ParameterHooks(
        {name: hooks for name, hooks in before.items() if hooks},
        {name: hooks for name, hooks in after.items() if hooks},
    )


def apply_hooks(hooks: ParameterHooks, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Complete gradients, after the hooks that the model has put on its parameters."""
    changed = dict(gradients)
    for name, own in hooks.of_gradients.items():
        for hook in own if name in changed else ():
            result = hook(changed[name])
            changed[name] = changed[name] if result is None else result
    return changed


_AFTER = "_post_accumulate_grad_hooks"


def remove_parameter_hooks(model: nn.Module) -> None:
    """Take the hooks off the parameters; whoever does so calls them when a step's gradients are complete."""
    for parameter in model.parameters():
        for hooks in (parameter._backward_hooks, getattr(parameter, _AFTER, None)):
            if hooks:
                hooks.clear()


def tied_names(model: nn.Module) -> dict[str, str]:
    """Names of a state dict that share the tensor of an earlier name."""
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
    return aliases


def persistent_names(model: nn.Module, aliases: Mapping[str, str]) -> frozenset[str]:
    """Names that a state dict of the model has, without aliases."""
    return frozenset(aliases.get(name, name) for name in model.state_dict(keep_vars=True))


def _text_of(constant: Any) -> str:
    if isinstance(constant, fx.GraphModule):
        return constant.code
    return f"{tuple(constant.shape)} {constant.dtype} {constant.tolist() if constant.numel() < 64 else ''}"

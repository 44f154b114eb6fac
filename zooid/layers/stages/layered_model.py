"""A traced model that is cut into layers, and the hooks and names of its parameters."""

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
    """The path of the module in which each layer begins."""
    persistent_names: frozenset[str]
    """Names in the model's state dict, without aliases."""
    aliases: dict[str, str]
    """Names in the state dict of tied parameters, with the earlier names of the same tensors."""
    hooks: "ParameterHooks"
    whole: nn.Module | None = None
    """The untouched model, which is trained as one stage where it cannot be cut."""
    input_spec: TreeSpec | None = None
    """The nesting of the whole model's inputs."""
    why_whole: str = ""
    """The reason why the model cannot be cut; empty where it can."""

    @property
    def num_layers(self) -> int:
        return len(self.names)

    @property
    def parameter_names(self) -> frozenset[str]:
        return self.train.parameter_names | self.evaluation.parameter_names

    def program(self, mode: Mode) -> TracedProgram:
        return self.train if mode == "train" else self.evaluation

    def values_into(self, layer: int, mode: Mode = "train") -> tuple[Value, ...]:
        """Return the tensors that cross into this layer; for layer 0, the model's inputs."""
        values = [value_of(node) for node in self.program(mode).values_into(layer)]
        return tuple(value for value in values if value is not None)

    def bytes_into(self, layer: int, num_samples: int) -> int:
        """Return the bytes of the values that cross into this layer in training."""
        return sum(value.num_bytes(num_samples) for value in self.values_into(layer))

    def state_of(self, first_layer: int, end_layer: int) -> tuple[str, ...]:
        """Return the names of the parameters and buffers that these layers use in either mode, by first use."""
        span = (first_layer, end_layer)
        if span not in self._state_names:
            both = [program.state_of(*span) for program in (self.train, self.evaluation)]
            self._state_names[span] = tuple(dict.fromkeys(name for names in both for name in names))
        return self._state_names[span]

    @cached_property
    def _state_names(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """What `state_of` has returned: it takes longest, and members ask for it between two steps."""
        return {}

    def state_bytes(self, first_layer: int, end_layer: int) -> dict[str, int]:
        """Return the bytes of the parameters and buffers that these layers use, by name."""
        return {name: self._sizes[name] for name in self.state_of(first_layer, end_layer)}

    @cached_property
    def _trained_names(self) -> frozenset[str]:
        nodes = self.train.state_names.items()
        return frozenset(name for node, name in nodes if name in self.parameter_names and facts_of(node).requires_grad)

    def trained_bytes(self, first_layer: int, end_layer: int) -> dict[str, int]:
        """Return the bytes of these layers' trained parameters, in the order in which a backward completes them."""
        sizes = self.state_bytes(first_layer, end_layer)
        return {name: size for name, size in reversed(sizes.items()) if name in self._trained_names}

    @cached_property
    def tied(self) -> dict[str, tuple[int, ...]]:
        """Names of the parameters that several layers use, with these layers."""
        users: dict[str, list[int]] = {}
        for layer in range(self.num_layers):
            for name in self.state_of(layer, layer + 1):
                if name in self.parameter_names:
                    users.setdefault(name, []).append(layer)
        return {name: tuple(layers) for name, layers in users.items() if len(layers) > 1}

    @cached_property
    def unused_names(self) -> frozenset[str]:
        """Names in the state dict that no layer uses."""
        return self.persistent_names - set(self.state_of(0, self.num_layers))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the model's operations, parameters, shapes and cuts."""
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
    """Hooks that the model's code has registered on parameters, by name of the parameter."""

    of_gradients: Mapping[str, tuple[GradientHook, ...]] = field(default_factory=dict)
    """Hooks that are called with a gradient, and may return another one."""
    after_accumulation: Mapping[str, tuple[GradientHook, ...]] = field(default_factory=dict)
    """Hooks that are called with the parameter when its gradient is complete."""


def parameter_hooks(model: nn.Module) -> ParameterHooks:
    """Return the hooks on a model's parameters."""
    named = dict(model.named_parameters())
    before = {name: tuple((p._backward_hooks or {}).values()) for name, p in named.items()}
    after = {name: tuple((getattr(p, _AFTER, None) or {}).values()) for name, p in named.items()}
    return ParameterHooks(
        {name: hooks for name, hooks in before.items() if hooks},
        {name: hooks for name, hooks in after.items() if hooks},
    )


def apply_hooks(hooks: ParameterHooks, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Apply the hooks on parameters to complete gradients, and return the results."""
    changed = dict(gradients)
    for name, parameter_hooks in hooks.of_gradients.items():
        for hook in parameter_hooks if name in changed else ():
            result = hook(changed[name])
            changed[name] = changed[name] if result is None else result
    return changed


_AFTER = "_post_accumulate_grad_hooks"


def remove_parameter_hooks(model: nn.Module) -> None:
    """Remove the hooks from the parameters; the caller runs them when the gradients of a step are complete."""
    for parameter in model.parameters():
        for hooks in (parameter._backward_hooks, getattr(parameter, _AFTER, None)):
            if hooks:
                hooks.clear()


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return the names in a state dict that share a tensor with an earlier name, which they are mapped to."""
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
    return aliases


def persistent_names(model: nn.Module, aliases: Mapping[str, str]) -> frozenset[str]:
    """Return the names in the model's state dict, without aliases."""
    return frozenset(aliases.get(name, name) for name in model.state_dict(keep_vars=True))


def _text_of(constant: Any) -> str:
    if isinstance(constant, fx.GraphModule):
        return constant.code
    return f"{tuple(constant.shape)} {constant.dtype} {constant.tolist() if constant.numel() < 64 else ''}"

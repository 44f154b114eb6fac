"""Opaque calls: code that a trace cannot follow, as single operations of the traced program.

A trace records tensor operations. It drops the backward of custom autograd functions, gradient hooks and recomputation,
and it freezes Python state and control flow that depends on values. A module or function with such code becomes one
opaque operation: the trace records its inputs, parameters and output shapes, and a stage runs the original Python code.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from zooid.core.errors import LayerError
from zooid.layers.tracing.measured_results import MeasuredResults
from zooid.layers.tracing.structures import Structure, Untraceable, take_apart, without_objects


@dataclass(frozen=True)
class Recomputing:
    """The options with which the model's code calls torch.utils.checkpoint."""

    is_reentrant: bool
    preserves_random_state: bool


@dataclass(eq=False)
class OpaqueCall:
    """One call of a module, or of a custom autograd function, in a traced forward."""

    path: str
    """The path of the called module, or of the module whose forward calls the function."""
    target: Any
    """The module itself, or the function's `apply`."""
    arguments: Structure
    state_names: tuple[str, ...] = ()
    """Names of the parameters and buffers within the module."""
    buffer_names: frozenset[str] = frozenset()
    draws_outside_torch: bool = False
    """Whether the code draws from Python's or numpy's generators, which then have to be seeded, too."""
    recomputing: Recomputing | None = None
    """Options of torch.utils.checkpoint, where its activations are recomputed in backward."""
    results: Structure | None = field(default=None, repr=False)
    known_result: torch.Tensor | None = field(default=None, repr=False)
    """A tensor without values that is like the result, where the result is known beforehand."""
    measured: MeasuredResults | None = field(default=None, repr=False)
    """Results of real runs, for code that only runs on real values."""

    @property
    def is_module(self) -> bool:
        return isinstance(self.target, nn.Module)

    def run(self, inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the call once on these tensors, and keep the structure of its results."""
        args, kwargs = self.arguments.fill(inputs)
        if self.is_module:
            tensors = dict(zip(self.state_names, state, strict=True))
            returned = functional_call(self.target, tensors, args, kwargs)
        else:
            returned = self.target(*args, **kwargs)
        self.results, outputs = take_apart(self.path, without_objects(returned))
        return outputs

    def caller(self, state: Sequence[torch.Tensor], mode: str, device: torch.device) -> Callable[..., list[Any]]:
        """Return the function that a stage calls with the inputs and the state.

        A module keeps the stage's parameters, since code that runs again in backward must find them there.
        """
        target = self.target
        if self.is_module:
            target = _with_state(target, dict(zip(self.state_names, state, strict=True)))
            target.train(mode == "train")
        if self.recomputing is not None:
            target = partial(
                checkpoint,
                target,
                use_reentrant=self.recomputing.is_reentrant,
                preserve_rng_state=self.recomputing.preserves_random_state,
            )
        path, arguments = self.path, self.arguments

        def run_opaque(inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> list[Any]:
            args, kwargs = arguments.fill(inputs, device)
            return take_apart(path, without_objects(target(*args, **kwargs)))[1]

        run_opaque.__name__ = f"opaque_{path.replace('.', '_')}_{id(run_opaque)}"
        run_opaque.__qualname__ = run_opaque.__name__
        run_opaque.__module__ = __name__
        return run_opaque

    def __str__(self) -> str:
        """Describe the call for a fingerprint."""
        what = self.target if not self.is_module else type(self.target)
        name = f"{what.__module__}.{what.__qualname__}" if hasattr(what, "__qualname__") else repr(what)
        return f"{self.path} {name} {self.arguments.leaves} {self.state_names} {self.recomputing}"


def _with_state(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Return a copy of the module with these parameters and buffers, without copying its own."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    try:
        copied = copy.deepcopy(module, dict(shared))
        for name, tensor in tensors.items():
            owner_path, _, leaf = name.rpartition(".")
            owner = copied.get_submodule(owner_path)
            (owner._parameters if leaf in owner._parameters else owner._buffers)[leaf] = tensor  # type: ignore[assignment]
    except Exception as error:
        raise LayerError(
            f"a {type(module).__name__} cannot be copied ({type(error).__name__}: {error}), which its stage has to do; "
            "remove attributes that copy.deepcopy cannot copy"
        ) from error
    return copied


_known: dict[str, OpaqueCall] = {}
"""The calls of the current trace, by the names that the operation has for them."""


@contextmanager
def new_calls() -> Iterator[dict[str, OpaqueCall]]:
    """While inside, the operation finds the calls that are added to the yielded dict."""
    before = dict(_known)
    _known.clear()
    try:
        yield _known
    finally:
        _known.clear()
        _known.update(before)


@cache
def opaque_operation() -> OpOverload[..., Any]:
    """Return `zooid::opaque(call, inputs, state) -> outputs`, which exists for traces and never runs for real."""
    library = torch.library.Library("zooid", "DEF")  # type: ignore[no-untyped-call]
    library.define("opaque(str call, Tensor[] inputs, Tensor[] state) -> Tensor[]")  # type: ignore[no-untyped-call]
    torch.library.register_fake("zooid::opaque", _shapes_only, lib=library)
    opaque_operation.__dict__["library"] = library  # the operation lives as long as its library
    operation: OpOverload[..., Any] = torch.ops.zooid.opaque.default
    return operation


def _shapes_only(name: str, inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    call = _known[name]
    if call.known_result is not None:
        call.results, outputs = take_apart(call.path, call.known_result)
        return [torch.empty_like(output) for output in outputs]
    if call.measured is not None:
        call.results = call.measured.structure
        return call.measured.outputs(call.path, inputs)
    versions = [tensor._version for tensor in inputs]
    outputs = call.run(inputs, state)
    if versions != [tensor._version for tensor in inputs]:
        raise Untraceable(call.path.rpartition(".")[0], f"the module {call.path} changes its input in place")
    return [torch.empty_like(output) for output in outputs]

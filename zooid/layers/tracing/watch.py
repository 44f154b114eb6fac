"""Watches a forward while it is traced, and finds the modules whose code a trace would lose."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.checkpoint import CheckpointFunction

from zooid.layers.tracing.code_locations import CodeLocation, ModulePaths
from zooid.layers.tracing.measured_results import Results
from zooid.layers.tracing.opaque_calls import OpaqueCall, Recomputing, opaque_operation
from zooid.layers.tracing.structures import Untraceable, take_apart

_GENERATOR = "_checkpoint_without_reentrant_generator"
_ORIGINAL_GENERATOR = getattr(torch.utils.checkpoint, _GENERATOR)
_ORIGINAL_FORWARD = CheckpointFunction.forward

OWN_BACKWARD = "it has a backward of its own"
GRADIENT_HOOK = "it has a hook on gradients"
RECOMPUTED = "its activations are recomputed in backward"
DRAWS_OUTSIDE_TORCH = "it draws random numbers from Python or numpy"


def hooked_modules(model: nn.Module) -> dict[str, str]:
    """Return the paths of modules with hooks on gradients, which a trace drops, and the reason."""
    return {
        path: GRADIENT_HOOK
        for path, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    }


class Watch:
    """Watches one traced forward."""

    def __init__(
        self, model: nn.Module, calls: dict[str, OpaqueCall], measured: Results, decided: dict[CodeLocation, bool]
    ) -> None:
        """`measured` are results of real runs, for modules that only run on real values.

        `decided` are the outcomes of conditions on values.
        """
        self.paths = ModulePaths(model)
        self.undecided: CodeLocation | None = None
        """The condition on values that has ended the trace."""
        self._measured = measured
        self._decided = decided
        self.reasons: dict[str, str] = {}
        """Paths of the modules that have to be opaque, with the reasons."""
        self._calls = calls
        self.is_paused = False
        self._recomputing: Recomputing | None = None
        self._entered: list[tuple[Any, bool]] = []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While inside, code runs as it would untraced, and leaves the generators outside torch unchanged."""
        before, (python_state, numpy_state) = self.is_paused, _generators()
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = before
            random.setstate(python_state)
            np.random.set_state(numpy_state)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While inside, custom functions become opaque operations, and other code that a trace would lose is noted."""
        with ExitStack() as patches:
            for function in _custom_functions():
                patches.enter_context(self._intercepted(function))
            patches.enter_context(_replaced(CheckpointFunction, "forward", staticmethod(self._recompute_reentrant)))
            patches.enter_context(_replaced(torch.utils.checkpoint, _GENERATOR, self._recompute))
            patches.enter_context(self._noted(saved_tensors_hooks, "__enter__", RECOMPUTED))
            patches.enter_context(self._noted(torch.Tensor, "register_hook", GRADIENT_HOOK))
            patches.enter_context(_replaced(torch.Tensor, "__bool__", self._decided_bool()))
            patches.callback(register_module_forward_pre_hook(self._enter).remove)
            patches.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            yield

    def note(self, path: str | None, reason: str) -> None:
        self.reasons.setdefault(path or "", reason)

    def _decided_bool(self) -> Callable[[torch.Tensor], bool]:
        """Return a `bool(tensor)` that gives the outcomes that were decided, since a trace has none."""
        original = torch.Tensor.__bool__

        def decided_bool(tensor: torch.Tensor) -> bool:
            location = None if self.is_paused else CodeLocation.of(sys._getframe(1))
            if location in self._decided:
                return self._decided[location]
            try:
                return original(tensor)
            except Exception:
                self.undecided = location
                raise

        return decided_bool

    @contextmanager
    def _noted(self, owner: Any, name: str, reason: str) -> Iterator[None]:
        original = getattr(owner, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            if not self.is_paused:
                self.note(self.paths.innermost(sys._getframe(1)), reason)
            return original(*args, **kwargs)

        with _replaced(owner, name, noting):
            yield

    def _recompute(self, function: Any, preserves_random_state: bool, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Replaces torch's code around a function that is recomputed in backward."""
        if self.is_paused:
            yield from _ORIGINAL_GENERATOR(function, preserves_random_state, *args, **kwargs)
            return
        self._note_recomputed(function, sys._getframe(1))
        self._recomputing = Recomputing(is_reentrant=False, preserves_random_state=preserves_random_state)
        yield
        self._recomputing = None

    def _recompute_reentrant(self, context: Any, function: Any, preserves_random_state: bool, *args: Any) -> Any:
        """Replaces torch's code for reentrant recomputation, in which a backward runs inside a backward."""
        if self.is_paused:
            return _ORIGINAL_FORWARD(context, function, preserves_random_state, *args)  # type: ignore[no-untyped-call]
        self._note_recomputed(function, sys._getframe(1))
        self._recomputing = Recomputing(is_reentrant=True, preserves_random_state=preserves_random_state)
        try:
            return function(*args)
        finally:
            self._recomputing = None

    def _note_recomputed(self, function: Any, frame: FrameType) -> None:
        """Make the recomputed module opaque; for a function, the module that calls it."""
        if not isinstance(function, _Opaque):
            path = self.paths.of(function)
            self.note(path if path is not None else self.paths.innermost(frame), RECOMPUTED)

    @contextmanager
    def _intercepted(self, function: type[Function]) -> Iterator[None]:
        original = function.forward
        has_context = function.setup_context is _SingleLevelFunction.setup_context

        def intercepting(*args: Any) -> Any:
            if self.is_paused:
                return original(*args)
            path = self.paths.innermost(sys._getframe(1)) or ""
            return self._stand_in(function, path, args[1:] if has_context else args)

        with _replaced(function, "forward", staticmethod(intercepting)):
            yield

    def _stand_in(self, function: type[Function], path: str, args: tuple[Any, ...]) -> Any:
        """Record a custom function as one opaque operation, or note that its module has to be opaque."""
        try:
            arguments, tensors = take_apart(path, (args, {}))
        except Untraceable:
            self.note(path, OWN_BACKWARD)
            return function.apply(*args)  # type: ignore[no-untyped-call]  # this trace is discarded
        return self.stand_in(OpaqueCall(path, function.apply, arguments), tensors, [])

    def stand_in_for(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Any:
        """Record a call of a function whose result has the shape and type of `result`."""
        path = self.paths.innermost(sys._getframe(2)) or ""
        arguments, tensors = take_apart(path, (args, kwargs))
        call = OpaqueCall(path, function, arguments, known_result=result)
        return self.stand_in(call, tensors, [])

    def stand_in(self, call: OpaqueCall, tensors: list[torch.Tensor], state: list[torch.Tensor]) -> Any:
        """Record a call as one operation, and return its results."""
        name = f"{call.path}#{len(self._calls)}"
        if call.is_module and call.path in self._measured:
            number = sum(1 for other in self._calls.values() if other.is_module and other.path == call.path)
            call.measured = self._measured[call.path][number]
        self._calls[name] = call
        call.recomputing = self._recomputing
        with self.paused():
            outputs = opaque_operation()(name, tensors, state)
        assert call.results is not None
        return call.results.fill(outputs)

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self.is_paused:
            self._entered.append((_generators(), False))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Note the innermost module that has drawn from a generator outside torch."""
        if self.is_paused or not self._entered:
            return
        before, has_noted_inner = self._entered.pop()
        if has_noted_inner:
            self._entered[-1:] = [(state, True) for state, _ in self._entered[-1:]]
        elif not _equal(before, _generators()):
            self.note(self.paths.of(module), DRAWS_OUTSIDE_TORCH)
            self._entered[-1:] = [(state, True) for state, _ in self._entered[-1:]]


def _generators() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _equal(before: tuple[Any, Any], after: tuple[Any, Any]) -> bool:
    (_, keys, position, *_), (_, keys_after, position_after, *_) = before[1], after[1]
    return before[0] == after[0] and position == position_after and bool((keys == keys_after).all())


def _custom_functions() -> list[type[Function]]:
    """Return every autograd function that is not torch's own. Code may hold their `apply`, so classes are searched."""
    custom: dict[type[Function], None] = {}
    waiting: list[type[Function]] = [Function]
    while waiting:
        for function in waiting.pop().__subclasses__():
            waiting.append(function)
            if not function.__module__.startswith(("torch.", "zooid.")):
                custom[function] = None
    return list(custom)


@contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    original = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if original is None:  # it is inherited
            delattr(owner, name)
        else:
            setattr(owner, name, original)


@contextmanager
def opaque_modules(model: nn.Module, reasons: dict[str, str], watch: Watch) -> Iterator[None]:
    """While inside, calling one of these modules records one opaque operation.

    The module's class is replaced meanwhile, so that its hooks and an overridden `__call__` belong to the call.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    chosen = {path: modules[path] for path in reasons}
    classes = {path: type(module) for path, module in chosen.items()}
    for path, module in chosen.items():
        module.__class__ = _opaque_class(path, module, reasons[path], watch)
    try:
        yield
    finally:
        for path, module in chosen.items():
            module.__class__ = classes[path]


class _Opaque:
    """Marks the classes of modules that are opaque while a trace is made."""


def _opaque_class(path: str, module: nn.Module, reason: str, watch: Watch) -> type[nn.Module]:
    original = type(module)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if watch.is_paused:
            return original.__call__(self, *args, **kwargs)
        arguments, tensors = take_apart(path.rpartition(".")[0], (args, kwargs))
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        opaque_call = OpaqueCall(
            path,
            module,
            arguments,
            (*parameters, *buffers),
            frozenset(buffers),
            draws_outside_torch=reason == DRAWS_OUTSIDE_TORCH,
        )
        return watch.stand_in(opaque_call, tensors, [*parameters.values(), *buffers.values()])

    return type(original.__name__, (original, _Opaque), {"__call__": call, "__module__": original.__module__})

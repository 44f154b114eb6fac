"""Watches a forward while it is traced, and finds the modules whose code a trace would lose."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.checkpoint import CheckpointFunction

from zooid.layers.tracing.opaque_calls import OpaqueCall, Recomputing, Results, Untraceable, opaque_operation, take_apart

_GENERATOR = "_checkpoint_without_reentrant_generator"
_ORIGINAL_GENERATOR = getattr(torch.utils.checkpoint, _GENERATOR)
_ORIGINAL_FORWARD = CheckpointFunction.forward

OWN_BACKWARD = "it has a backward of its own"
GRADIENT_HOOK = "it has a hook on gradients"
RECOMPUTED = "its activations are recomputed in backward"
DRAWS_OUTSIDE_TORCH = "it draws random numbers from Python or numpy"


class Paths:
    """Where each module of a model is. Tracers wrap modules in proxies, which share the modules' own attributes."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {id(vars(module)): path for path, module in model.named_modules()}

    def of(self, candidate: object) -> str | None:
        return self._paths.get(id(vars(candidate))) if isinstance(candidate, nn.Module) else None

    def innermost(self, frame: FrameType | None) -> str | None:
        """Path of the module whose method runs innermost in this stack of frames."""
        while frame is not None:
            path = self.of(frame.f_locals.get("self"))
            if path is not None:
                return path
            frame = frame.f_back
        return None

    def innermost_of_error(self, error: BaseException | None) -> str | None:
        """Path of the module in whose code an error, or what caused it, was raised."""
        found: str | None = None
        while error is not None:
            traceback: TracebackType | None = error.__traceback__
            while traceback is not None:
                path = self.of(traceback.tb_frame.f_locals.get("self"))
                found = path if path is not None else found
                traceback = traceback.tb_next
            error = error.__cause__ or error.__context__
        return found


@dataclass(frozen=True)
class CodeLocation:
    """A place in somebody's code."""

    code: CodeType
    line: int

    @staticmethod
    def of(frame: FrameType | None) -> "CodeLocation | None":
        """Where the innermost code runs that is not torch's."""
        while frame is not None and frame.f_globals.get("__name__", "").startswith("torch."):
            frame = frame.f_back
        return None if frame is None else CodeLocation(frame.f_code, frame.f_lineno)

    def is_raised_by(self, error: BaseException | None) -> bool:
        """Whether an error was raised by the very function that this place is in."""
        while error is not None:
            traceback = error.__traceback__
            while traceback is not None and traceback.tb_next is not None:
                traceback = traceback.tb_next
            if traceback is not None and traceback.tb_frame.f_code is self.code:
                return True
            error = error.__cause__ or error.__context__
        return False


def hooked_modules(model: nn.Module) -> dict[str, str]:
    """Modules with hooks on gradients, which a trace drops; by path, with the reason."""
    return {
        path: GRADIENT_HOOK
        for path, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    }


class Watch:
    """What was seen in one traced forward."""

    def __init__(
        self, model: nn.Module, calls: dict[str, OpaqueCall], measured: Results, decided: dict[CodeLocation, bool]
    ) -> None:
        """`measured` are results of real runs, for modules that only run on real values."""
        self.paths = Paths(model)
        self.undecided: CodeLocation | None = None
        """Where a condition on values has ended the trace."""
        self._measured = measured
        self._decided = decided
        self.found: dict[str, str] = {}
        """Modules that have to be opaque, with the reason."""
        self._calls = calls
        self.is_paused = False
        self._recomputing: Recomputing | None = None
        self._entered: list[tuple[Any, bool]] = []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While inside, code runs as it would untraced, and leaves no mark on generators outside torch."""
        before, states = self.is_paused, (random.getstate(), np.random.get_state())
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = before
            random.setstate(states[0])
            np.random.set_state(states[1])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While inside, custom functions become opaque operations, and what else a trace would lose is noted."""
        with ExitStack() as patches:
            for function in _custom_functions():
                patches.enter_context(self._intercepted(function))
            patches.enter_context(_replaced(CheckpointFunction, "forward", staticmethod(self._recompute_reentrant)))
            patches.enter_context(_replaced(torch.utils.checkpoint, _GENERATOR, self._recompute))
            patches.enter_context(self._noted(saved_tensors_hooks, "__enter__", RECOMPUTED))
            patches.enter_context(self._noted(torch.Tensor, "register_hook", GRADIENT_HOOK))
            patches.enter_context(_replaced(torch.Tensor, "__bool__", self._truth()))
            patches.callback(register_module_forward_pre_hook(self._enter).remove)
            patches.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            yield

    def note(self, path: str | None, reason: str) -> None:
        self.found.setdefault(path or "", reason)

    def _truth(self) -> Callable[[torch.Tensor], bool]:
        """`bool(tensor)`, which has no answer in a trace, but where one was decided on."""
        original = torch.Tensor.__bool__

        def truth(tensor: torch.Tensor) -> bool:
            site = None if self.is_paused else CodeLocation.of(sys._getframe(1))
            if site in self._decided:
                return self._decided[site]
            try:
                return original(tensor)
            except Exception:
                self.undecided = site
                raise

        return truth

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
        """In place of what torch does around a function that is to be computed again in backward."""
        if self.is_paused:
            yield from _ORIGINAL_GENERATOR(function, preserves_random_state, *args, **kwargs)
            return
        self._note_recomputed(function, sys._getframe(1))
        self._recomputing = Recomputing(is_reentrant=False, preserves_random_state=preserves_random_state)
        yield
        self._recomputing = None

    def _recompute_reentrant(self, context: Any, function: Any, preserves_random_state: bool, *args: Any) -> Any:
        """The same for the older way, in which backward runs inside backward."""
        if self.is_paused:
            return _ORIGINAL_FORWARD(context, function, preserves_random_state, *args)  # type: ignore[no-untyped-call]
        self._note_recomputed(function, sys._getframe(1))
        self._recomputing = Recomputing(is_reentrant=True, preserves_random_state=preserves_random_state)
        try:
            return function(*args)
        finally:
            self._recomputing = None

    def _note_recomputed(self, function: Any, frame: FrameType) -> None:
        """The function's own module is opaque where it is a module; otherwise the module that asks for it."""
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
        """One opaque operation in place of a custom function; where that cannot be, its module is to be opaque."""
        try:
            arguments, tensors = take_apart(path, (args, {}))
        except Untraceable:
            self.note(path, OWN_BACKWARD)
            return function.apply(*args)  # type: ignore[no-untyped-call]  # noted: this trace is thrown away
        return self.stand_in(OpaqueCall(path, function.apply, arguments), tensors, [])

    def stand_in_for(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Any:
        """Record a call of a function whose result is known to be like this one."""
        path = self.paths.innermost(sys._getframe(2)) or ""
        arguments, tensors = take_apart(path, (args, kwargs))
        call = OpaqueCall(path, function, arguments, known_result=result)
        return self.stand_in(call, tensors, [])

    def stand_in(self, call: OpaqueCall, tensors: list[torch.Tensor], state: list[torch.Tensor]) -> Any:
        """Record a call as one operation, and give back what it returns."""
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
    """Every autograd function that is not torch's own. They are found by class, since code may hold their `apply`."""
    found: dict[type[Function], None] = {}
    waiting: list[type[Function]] = [Function]
    while waiting:
        for function in waiting.pop().__subclasses__():
            waiting.append(function)
            if not function.__module__.startswith(("torch.", "zooid.")):
                found[function] = None
    return list(found)


@contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    own = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextmanager
def opaque_modules(model: nn.Module, reasons: dict[str, str], watch: Watch) -> Iterator[None]:
    """While inside, calling one of these modules records one opaque operation.

    The module's class is replaced for that time, so that its hooks and an overridden `__call__` belong to the call.
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
        made = OpaqueCall(
            path,
            module,
            arguments,
            (*parameters, *buffers),
            frozenset(buffers),
            draws_outside_torch=reason == DRAWS_OUTSIDE_TORCH,
        )
        return watch.stand_in(made, tensors, [*parameters.values(), *buffers.values()])

    return type(original.__name__, (original, _Opaque), {"__call__": call, "__module__": original.__module__})

"""Lets torch's optimizers work without importing torch's compiler, which takes 1.6 s of one core.

Optimizers import `torch._dynamo` when they are built and when they step, only to disable a compiler that is not there.
Here these methods are replaced by ones that do the same without the import. Torch's own methods run again as soon as
something else imports the compiler. A method that does not look as in torch 2.11 to 2.13 is not replaced.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import _compile
from torch.optim import Optimizer, optimizer

_COMPILER = "torch._dynamo"


def lighten_optimizers() -> None:
    """Replace the methods of all present optimizer classes. Further calls do no harm."""
    for kind in _with_subclasses(Optimizer):
        for name, method in list(vars(kind).items()):
            plain = _without_compiler(method)
            if plain is not None:
                setattr(kind, name, _until_compiler(plain, method))


def _with_subclasses(kind: type[Optimizer]) -> Iterator[type[Optimizer]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)


def _without_compiler(method: Any) -> Callable[..., Any] | None:
    """The method without the import of the compiler; None if it does not look as expected."""
    wrapped = getattr(method, "__wrapped__", None)
    if not isinstance(method, FunctionType) or not isinstance(wrapped, FunctionType):
        return None
    if _is_made_by(method, _compile, "_disable_dynamo"):
        return wrapped
    if _is_made_by(method, optimizer, "_use_grad_for_differentiable"):
        return _with_grad_setting(wrapped)
    return None


def _is_made_by(method: FunctionType, module: Any, decorator: str) -> bool:
    """Whether this decorator of torch made the method, and the method's code imports the compiler."""
    decorator_function = getattr(module, decorator, None)
    code = method.__code__
    is_inner = isinstance(decorator_function, FunctionType) and code in decorator_function.__code__.co_consts
    return is_inner and _COMPILER in (*code.co_names, *code.co_consts)


def _with_grad_setting(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step through which gradients flow only if its optimizer is differentiable."""

    @functools.wraps(step)
    def step_with_setting(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return step_with_setting


def _until_compiler(plain: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return (original if _COMPILER in sys.modules else plain)(*args, **kwargs)

    return method

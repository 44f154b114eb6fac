"""Lets torch's optimizers work without importing torch's compiler, which takes them 1.6 s of a core.

Optimizers import `torch._dynamo` when they are built and when they step, only to tell a compiler that is not there to
look away. The methods that do so are replaced by ones that do the same without a compiler, until one is imported: from
then on torch's own run again. A method that does not look as in torch 2.11 to 2.13 stays, and imports what it imports.
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
    """Replace the methods of all optimizer classes that are known now. To do so again is no harm."""
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
    """The same method without the compiler; None where it does not import one in a way that is known."""
    wrapped = getattr(method, "__wrapped__", None)
    if not isinstance(method, FunctionType) or not isinstance(wrapped, FunctionType):
        return None
    if _is_made_by(method, _compile, "_disable_dynamo"):
        return wrapped
    if _is_made_by(method, optimizer, "_use_grad_for_differentiable"):
        return _with_gradients_as_asked(wrapped)
    return None


def _is_made_by(method: FunctionType, module: Any, decorator: str) -> bool:
    """True where this decorator of torch has made the method, and its code imports nothing but the compiler."""
    made_by = getattr(module, decorator, None)
    code = method.__code__
    is_inner = isinstance(made_by, FunctionType) and code in made_by.__code__.co_consts
    return is_inner and _COMPILER in (*code.co_names, *code.co_consts)


def _with_gradients_as_asked(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step through which gradients flow only where its optimizer is asked to be differentiable."""

    @functools.wraps(step)
    def stepping(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return stepping


def _until_compiler(plain: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return (original if _COMPILER in sys.modules else plain)(*args, **kwargs)

    return method

"""Code that a trace cannot follow without loss, as single operations of the traced program.

A trace records tensor operations. It drops a custom autograd function's backward, gradient hooks and recomputation, and
it freezes Python state and control flow that depends on values. A module or function that does such a thing becomes one
opaque operation: the trace records its inputs, its parameters and the shapes of its outputs, and a stage runs the
original Python code.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.checkpoint import checkpoint

from zooid.core.errors import LayerError

_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
)
"""Types of arguments and results that a trace may keep as constants."""


class Untraceable(LayerError):
    """A call that cannot stand as one opaque operation; `path` names the module that has to be opaque instead."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path


class _Tensor:
    """Stands for a tensor among the leaves of arguments or results."""

    def __repr__(self) -> str:
        return "tensor"


_TENSOR = _Tensor()


@dataclass(frozen=True)
class Structure:
    """A nest of tensors and constants, without the tensors."""

    leaves: tuple[Any, ...]
    spec: TreeSpec

    def fill(self, tensors: Sequence[Any], device: torch.device | None = None) -> Any:
        """The nest with these tensors in it; devices among its constants become `device`."""
        remaining = iter(tensors)
        leaves = [next(remaining) if leaf is _TENSOR else _placed(leaf, device) for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


def _placed(leaf: Any, device: torch.device | None) -> Any:
    return device if device is not None and isinstance(leaf, torch.device) else leaf


def is_plain(leaf: Any) -> bool:
    """True for tensors, and for what a trace may keep as a constant."""
    return isinstance(leaf, (torch.Tensor, torch.SymInt, *_PLAIN))


def know_dataclasses(nest: Any) -> None:
    """Let torch look into the dataclasses in a nest, as it looks into tuples and dicts."""
    while unknown := {type(leaf) for leaf in tree_leaves(nest) if dataclasses.is_dataclass(leaf)}:
        for kind in unknown:
            torch.export.register_dataclass(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")


def without_objects(results: Any) -> Any:
    """Results without what is neither a tensor nor a constant, such as caches for generating text."""
    know_dataclasses(results)
    return tree_map(lambda leaf: leaf if is_plain(leaf) else None, results)


def take_apart(path: str, nest: Any) -> tuple[Structure, list[torch.Tensor]]:
    """The structure and the tensors of arguments or results."""
    know_dataclasses(nest)
    leaves, spec = tree_flatten(nest)
    for leaf in leaves:
        if not is_plain(leaf):
            raise Untraceable(path, f"it passes a {type(leaf).__name__} between its modules")
    kept = tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Structure(kept, spec), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True)
class Recomputing:
    """How torch.utils.checkpoint was asked to compute activations again."""

    is_reentrant: bool
    preserves_random_state: bool


@dataclass(eq=False)
class OpaqueCall:
    """One call of a module, or of a custom autograd function, in a traced forward."""

    path: str
    """Path of the module that is called, or whose forward calls the function."""
    target: Any
    """The module itself, or the function's `apply`."""
    arguments: Structure
    state_names: tuple[str, ...] = ()
    """Names of the module's parameters and buffers, as the module itself knows them."""
    buffer_names: frozenset[str] = frozenset()
    draws_outside_torch: bool = False
    """True where it draws from Python's or numpy's generators, which then have to be seeded, too."""
    recomputing: "Recomputing | None" = None
    """Given where its activations are computed again in backward, by torch.utils.checkpoint around the call."""
    results: Structure | None = field(default=None, repr=False)
    known_result: torch.Tensor | None = field(default=None, repr=False)
    """What it returns, without values, where that need not be found out."""
    measured: "MeasuredResults | None" = field(default=None, repr=False)
    """What real runs gave, for code that runs on nothing but real values."""

    @property
    def is_module(self) -> bool:
        return isinstance(self.target, nn.Module)

    def run(self, inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run it once on these tensors; what it returns is remembered in `results`."""
        args, kwargs = self.arguments.fill(inputs)
        if self.is_module:
            tensors = dict(zip(self.state_names, state, strict=True))
            found = functional_call(self.target, tensors, args, kwargs)
        else:
            found = self.target(*args, **kwargs)
        self.results, outputs = take_apart(self.path, without_objects(found))
        return outputs

    def caller(self, state: Sequence[torch.Tensor], mode: str, device: torch.device) -> Callable[..., list[Any]]:
        """The function that a stage calls, with the inputs, then the state.

        A module gets the stage's own parameters for good: code that runs again in backward, as recomputation does,
        must find them there.
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
        """What a fingerprint knows of it."""
        what = self.target if not self.is_module else type(self.target)
        name = f"{what.__module__}.{what.__qualname__}" if hasattr(what, "__qualname__") else repr(what)
        return f"{self.path} {name} {self.arguments.leaves} {self.state_names} {self.recomputing}"


def _with_state(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """A copy of the module around these parameters and buffers; none of its own are copied."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    try:
        copied = copy.deepcopy(module, dict(shared))
        _set_tensors(copied, tensors)
    except Exception as error:
        raise LayerError(
            f"a {type(module).__name__} cannot be copied ({type(error).__name__}: {error}), which its stage has to do; "
            "let it hold nothing that copy.deepcopy refuses"
        ) from error
    return copied


def _set_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Replace parameters and buffers, given by their names in the module."""
    for name, tensor in tensors.items():
        owner_path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(owner_path)
        (owner._parameters if leaf in owner._parameters else owner._buffers)[leaf] = tensor  # type: ignore[assignment]


_known: dict[str, OpaqueCall] = {}
"""Calls of the trace that is being made, by the names that the operation has for them."""


@contextmanager
def known_calls(calls: Mapping[str, OpaqueCall]) -> Iterator[dict[str, OpaqueCall]]:
    """While inside, the operation finds these calls, and further ones can be added."""
    before = dict(_known)
    _known.clear()
    _known.update(calls)
    try:
        yield _known
    finally:
        _known.clear()
        _known.update(before)


@cache
def opaque_operation() -> OpOverload[..., Any]:
    """`zooid::opaque(call, inputs, state) -> outputs`; it exists for traces only, and never runs on real tensors."""
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


@dataclass(frozen=True)
class MeasuredResults:
    """What a module returned in real runs on two and on three samples, which tells its sizes for any number."""

    structure: Structure
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Shape of each tensor with two samples, and with three."""
    dtypes: tuple[torch.dtype, ...]

    def outputs(self, path: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors without data, of the sizes that follow from the number of samples in the inputs."""
        num_samples = _num_samples(inputs)
        outputs = []
        for (small, large), dtype in zip(self.shapes, self.dtypes, strict=True):
            if len(small) != len(large) or num_samples is None:
                raise Untraceable(path.rpartition(".")[0], f"sizes of what {path} returns depend on values")
            slopes = [b - a for a, b in zip(small, large, strict=True)]
            sizes = [a + slope * (num_samples - 2) if slope else a for a, slope in zip(small, slopes, strict=True)]
            outputs.append(torch.empty(sizes, dtype=dtype, device=inputs[0].device))
        return outputs


def _num_samples(inputs: Sequence[torch.Tensor]) -> Any:
    """The symbol that stands for the number of samples in a trace; None where no input has it as a size."""
    sizes: list[Any] = [size for tensor in inputs for size in tensor.shape]
    return next((size for size in sizes if isinstance(size, torch.SymInt) and size.node.expr.is_symbol), None)


Results = dict[str, list[MeasuredResults]]
"""What the calls of each module returned, in order, by the path of the module."""


def measure_results(model: nn.Module, runs: Sequence[Callable[[], Any]]) -> Results:
    """Run the model for real, on two samples and on three, and note what each of its modules returns."""
    seen: list[dict[str, list[tuple[Structure, list[torch.Tensor]]]]] = []
    paths = {module: path for path, module in model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        path = paths.get(module)
        if path is not None:
            with contextlib.suppress(Untraceable):  # it can only be inside of something that is opaque
                structure, tensors = take_apart(path, without_objects(output))
                seen[-1].setdefault(path, []).append((structure, [tensor.detach().to("meta") for tensor in tensors]))

    hook = register_module_forward_hook(note)
    try:
        for run in runs:
            seen.append({})
            run()
    finally:
        hook.remove()
    small, large = seen
    return {
        path: [_together(*pair) for pair in zip(calls, large[path], strict=True)]
        for path, calls in small.items()
        if len(calls) == len(large.get(path, ())) and all(map(_are_alike, calls, large[path]))
    }


_Seen = tuple[Structure, list[torch.Tensor]]


def _are_alike(small: _Seen, large: _Seen) -> bool:
    return small[0] == large[0]


def _together(small: _Seen, large: _Seen) -> MeasuredResults:
    shapes = [(tuple(a.shape), tuple(b.shape)) for a, b in zip(small[1], large[1], strict=True)]
    return MeasuredResults(small[0], tuple(shapes), tuple(tensor.dtype for tensor in small[1]))

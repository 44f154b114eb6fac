"""Traces a model in training and in evaluation, with the batch dimension left open, and divides both into layers."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import fx, nn

from zooid.core.errors import LayerError
from zooid.layers.batches import Batch
from zooid.layers.chances import CertainChances
from zooid.layers.cutting import cut_alike
from zooid.layers.exported import NeedsWeights, export, read_program
from zooid.layers.layered import LayeredModel, parameter_hooks, persistent_names, tied_names
from zooid.layers.opaque import Results, Untraceable, known_calls, measure_results
from zooid.layers.program import Program, module_path
from zooid.layers.watch import Watch, hooked_modules, opaque_modules
from zooid.layers.whole import whole_model


def trace(model: nn.Module, example: Batch) -> LayeredModel:
    """Trace the model on an example of at least two samples (values do not matter; meta works).

    Modules whose code a trace would lose, or cannot follow, become opaque operations. Where that takes the whole model,
    it is one layer, and `why_whole` says why.
    """
    aliases = tied_names(model)
    example = example.with_values()
    opaque: dict[str, str] = hooked_modules(model)
    measured: Results = {}
    while True:
        opaque = _outermost(opaque)
        if "" in opaque:
            return whole_model(model, example, opaque[""])
        try:
            with _mode_kept(model):
                train = _traced(model.train(), example, aliases, opaque, measured)
                evaluation = _traced(model.eval(), example, aliases, opaque, measured)
        except _Unfinished as unfinished:
            opaque |= unfinished.opaque
            continue
        except _NeedsValues as needs:
            if _is_on_meta(model):
                raise NeedsWeights(str(needs)) from needs
            measured |= {needs.path: _measure(model, example).get(needs.path, [])}
            if not measured[needs.path]:
                opaque[_callable_path(model, needs.path.rpartition(".")[0])] = str(needs)
            continue
        train, evaluation = cut_alike((train, evaluation))
        return _layered(model, train, evaluation, aliases)


def _layered(model: nn.Module, train: Program, evaluation: Program, aliases: dict[str, str]) -> LayeredModel:
    names = [module_path(_first_with_parameters(train, start)) for start in train.starts]
    return LayeredModel(
        train, evaluation, _distinct(names), persistent_names(model, aliases), aliases, parameter_hooks(model)
    )


class _Unfinished(Exception):
    """A trace that has to be made again, with further opaque modules."""

    def __init__(self, opaque: dict[str, str]) -> None:
        super().__init__()
        self.opaque = opaque


class _NeedsValues(LayerError):
    """An opaque module that runs on nothing but real values."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path


def _traced(
    model: nn.Module, example: Batch, aliases: dict[str, str], opaque: dict[str, str], measured: Results
) -> Program:
    """The program of the model as it is, in training or evaluation."""
    with known_calls({}) as calls:
        watch = Watch(model, calls, measured)
        try:
            with watch.watching(), opaque_modules(model, opaque, watch), CertainChances():
                exported = export(model, example)
            program = read_program(exported, aliases, dict(calls))
        except NeedsWeights:
            raise
        except Exception as error:
            raise _next_attempt(model, error, watch, opaque) from error
    if watch.found:
        raise _Unfinished(watch.found)
    return program


def _next_attempt(model: nn.Module, error: Exception, watch: Watch, opaque: dict[str, str]) -> Exception:
    """What to do about a trace that failed: make the module opaque in whose code it failed, and those of its class."""
    reason = f"{type(error).__name__}: {_in_short(str(error))}"
    blamed = error
    while not isinstance(blamed, Untraceable) and (blamed.__cause__ or blamed.__context__) is not None:
        cause = blamed.__cause__ or blamed.__context__
        assert isinstance(cause, Exception)
        blamed = cause
    if isinstance(blamed, Untraceable):
        return _Unfinished({**watch.found, _callable_path(model, blamed.path): str(blamed)})
    path = watch.paths.innermost_of_error(error)
    if path is None:
        return _Unfinished({**watch.found, **_children(model, opaque, reason)})
    inside = next((outer for outer in opaque if _is_inside(path, outer)), None)
    if inside is not None:
        return _NeedsValues(inside, reason)
    failed = type(model.get_submodule(path))
    alike = {} if failed.__module__.startswith("torch.nn.") else _of_class(model, failed)
    return _Unfinished({**watch.found, **dict.fromkeys((*alike, path), reason)})


def _measure(model: nn.Module, example: Batch) -> Results:
    """Results of all modules in real runs on a copy of the model, on two samples and on three."""
    copied = copy.deepcopy(model)

    def run(size: int) -> None:
        resized = example.resized(size)
        with torch.no_grad():
            copied(*resized.args, **resized.kwargs)

    return measure_results(copied, [partial(run, 2), partial(run, 3)])


def _outermost(opaque: dict[str, str]) -> dict[str, str]:
    """Without modules that are inside of others."""
    return {
        path: reason
        for path, reason in opaque.items()
        if not any(path != other and _is_inside(path, other) for other in opaque)
    }


def _is_inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _callable_path(model: nn.Module, path: str) -> str:
    """This module, or the nearest one around it that is called at all."""
    while isinstance(model.get_submodule(path), (nn.ModuleList, nn.ModuleDict)):
        path = path.rpartition(".")[0]
    return path


def _children(model: nn.Module, opaque: dict[str, str], reason: str) -> dict[str, str]:
    """The modules that the model's own forward calls; the model itself where they are opaque already."""
    found: dict[str, str] = {}
    waiting = [(path, child) for path, child in model.named_children()]
    while waiting:
        path, child = waiting.pop(0)
        if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            waiting += [(f"{path}.{name}", inner) for name, inner in child.named_children()]
        elif path not in opaque:
            found[path] = reason
    return found or {"": reason}


def _of_class(model: nn.Module, kind: type[nn.Module]) -> list[str]:
    return [path for path, module in model.named_modules() if type(module) is kind]


def _is_on_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


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

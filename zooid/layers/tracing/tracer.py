"""Traces a model in training and in evaluation, with the batch dimension left open, and divides both into layers."""

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import fx, nn

from zooid.core.errors import LayerError
from zooid.layers.jobs.batches import Batch
from zooid.layers.jobs.model_builder import NeedsWeights, buffers_restored
from zooid.layers.stages.layered_model import LayeredModel, parameter_hooks, persistent_names, tied_names
from zooid.layers.stages.whole_model import whole_model
from zooid.layers.tracing.cut_points import cut_alike
from zooid.layers.tracing.exported_program import export, read_program
from zooid.layers.tracing.fixed_results import CertainResults
from zooid.layers.tracing.opaque_calls import OpaqueCall, Results, Untraceable, known_calls, measure_results
from zooid.layers.tracing.traced_program import TracedProgram, module_path
from zooid.layers.tracing.watch import CodeLocation, Watch, hooked_modules, opaque_modules


def trace(model: nn.Module, example: Batch) -> LayeredModel:
    """Trace the model on an example of at least two samples (values do not matter; meta works).

    Modules whose code a trace would lose, or cannot follow, become opaque operations. Where that takes the whole model,
    it is one layer, and `why_whole` says why.
    """
    _reject_lost_values(model)
    tracer = _Tracer(model, example.with_values())
    try:
        train, evaluation = cut_alike(tracer.programs())
    except _NotCut as refusal:
        return whole_model(model, example, str(refusal))
    names = [module_path(_first_with_parameters(train, start)) for start in train.starts]
    persistent = persistent_names(model, tracer.aliases)
    return LayeredModel(train, evaluation, _distinct(names), persistent, tracer.aliases, parameter_hooks(model))


AnyError = TypeVar("AnyError", bound=Exception)


class _NotCut(LayerError):
    """A model that only runs as it is."""


class _Tracer:
    """Traces a model again and again, until everything that a trace cannot follow is inside an opaque operation."""

    def __init__(self, model: nn.Module, example: Batch) -> None:
        self.aliases = tied_names(model)
        self._model = model
        self._example = example
        self._opaque: dict[str, str] = hooked_modules(model)
        """Opaque modules by path, with the reason."""
        self._measured: Results | None = None
        """What modules return in real runs, where that was needed."""
        self._by_value: set[str] = set()
        """Opaque modules that only run on real values."""
        self._decided: dict[CodeLocation, bool] = {}
        """Conditions on values of which only one outcome does not raise."""

    def programs(self) -> tuple[TracedProgram, TracedProgram]:
        """The programs of training and evaluation."""
        with _mode_kept(self._model):
            while True:
                train = self._traced(self._model.train())
                evaluation = self._traced(self._model.eval()) if train is not None else None
                if train is not None and evaluation is not None:
                    return train, evaluation

    def _traced(self, model: nn.Module) -> TracedProgram | None:
        """The program of the model in its present mode; None where it has to be traced again, with more opaque."""
        with known_calls({}) as calls:
            watch = self._watch(calls, self._decided)
            try:
                exported = self._export(watch)
                program = read_program(exported, self.aliases, dict(calls))
            except NeedsWeights:
                raise
            except Exception as error:  # noqa: BLE001  # whatever a trace, or the model's own code, raises
                known = self._known()
                self._learn_from(error, watch)
                if self._known() == known:  # the same attempt would fail again
                    self._make_opaque({"": _reason(error)})
                return None
        if watch.found:
            self._make_opaque(watch.found)
            return None
        return program

    def _known(self) -> tuple[set[str], set[str], dict[CodeLocation, bool]]:
        """What decides how the next attempt goes."""
        return set(self._opaque), set(self._by_value), dict(self._decided)

    def _watch(self, calls: dict[str, OpaqueCall], decided: dict[CodeLocation, bool]) -> Watch:
        measured = {path: results for path, results in (self._measured or {}).items() if path in self._by_value}
        return Watch(self._model, calls, measured, decided)

    def _export(self, watch: Watch) -> torch.export.ExportedProgram:
        with watch.watching(), opaque_modules(self._model, self._opaque, watch), CertainResults(watch):
            return export(self._model, self._example)

    def _learn_from(self, error: Exception, watch: Watch) -> None:
        """Make the module opaque in whose code a trace failed, and those of its class, which would fail alike."""
        if watch.undecided is not None and self._decide(watch.undecided):
            return
        reason = _reason(error)
        untraceable = _cause(error, Untraceable)
        path = untraceable.path if untraceable is not None else watch.paths.innermost_of_error(error)
        if untraceable is not None:
            self._make_opaque({**watch.found, _callable_path(self._model, untraceable.path): str(untraceable)})
        elif path is None:
            self._without_blame(watch, reason)
        elif (inside := next((outer for outer in self._opaque if _is_inside(path, outer)), None)) is not None:
            self._run_by_value([inside], reason)
        else:
            failed = type(self._model.get_submodule(path))
            alike = [] if failed.__module__.startswith("torch.nn.") else _of_class(self._model, failed)
            self._make_opaque({**watch.found, **dict.fromkeys((*alike, path), reason)})

    def _without_blame(self, watch: Watch, reason: str) -> None:
        """Nothing says where a trace failed: look into no module that the model calls, then run those by value."""
        children = _children(self._model)
        if new := [path for path in children if not any(_is_inside(path, outer) for outer in self._opaque)]:
            self._make_opaque({**watch.found, **dict.fromkeys(new, reason)})
        elif not self._by_value.issuperset(self._opaque):
            self._run_by_value(self._opaque, reason)
        else:
            self._make_opaque({"": reason})

    def _make_opaque(self, reasons: dict[str, str]) -> None:
        self._opaque = _outermost({**self._opaque, **reasons})
        if "" in self._opaque:
            if _is_on_meta(self._model):
                raise NeedsWeights(self._opaque[""])
            raise _NotCut(self._opaque[""])

    def _run_by_value(self, paths: Iterable[str], reason: str) -> None:
        """Take what these opaque modules return from real runs; where that varies, what calls them is opaque, too."""
        if _is_on_meta(self._model):
            raise NeedsWeights(reason)
        if self._measured is None:
            self._measured = _measure(self._model, self._example)
        for path in list(paths):
            if path in self._by_value or not self._measured.get(path):
                self._make_opaque({_callable_path(self._model, path.rpartition(".")[0]): reason})
            self._by_value.add(path)

    def _decide(self, site: CodeLocation) -> bool:
        """Whether a condition on values has one outcome that does nothing but raise; then the other one is taken."""
        for outcome in (True, False):
            with known_calls({}) as calls:
                watch = self._watch(calls, {**self._decided, site: outcome})
                try:
                    self._export(watch)
                except Exception as error:  # noqa: BLE001  # whatever the model's own code raises
                    if site.is_raised_by(error):
                        self._decided[site] = not outcome
                        return True
        return False


def _reason(error: Exception) -> str:
    """Why a trace failed, in words that say what the model does."""
    text = str(error)
    if isinstance(error, LayerError):
        return text
    place = _place(error)
    if type(error).__name__ in _VALUE_ERRORS or "data-dependent" in text:
        return f"its code depends on the values of tensors{place}"
    if "Constraints violated" in text or "specialized" in text:
        return f"its code fixes the number of samples{place}"
    return f"it cannot be traced{place}: {type(error).__name__}: {text.strip().partition(_NEW_LINE)[0]}"


_VALUE_ERRORS = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")
_NEW_LINE = "\n"
_OURS = ("torch.", "zooid.")


def _place(error: BaseException) -> str:
    """The innermost line of somebody else's code than torch's or ours, in words; empty where there is none."""
    found = ""
    cause: BaseException | None = error
    while cause is not None:
        for frame, line in traceback.walk_tb(cause.__traceback__):
            name = frame.f_globals.get("__name__", "")
            if not f"{name}.".startswith(_OURS):
                found = f" ({Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name})"
        cause = cause.__cause__ or cause.__context__
    return found


def _cause(error: BaseException | None, kind: type[AnyError]) -> AnyError | None:
    """The first error of a kind among an error and what caused it."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _measure(model: nn.Module, example: Batch) -> Results:
    """Results of all modules in real runs, on two samples and on three; none where it only takes the example."""

    def run(size: int) -> None:
        resized = example.resized(size)
        with torch.no_grad():
            model(*resized.args, **resized.kwargs)

    with buffers_restored(model):
        try:
            return measure_results(model, [partial(run, 2), partial(run, 3)])
        except Exception:  # noqa: BLE001  # whatever the model's own code raises
            return {}


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


def _children(model: nn.Module) -> list[str]:
    """The modules that the model's own forward calls, also those in lists and sequences."""
    found: list[str] = []
    waiting = list(model.named_children())
    while waiting:
        path, child = waiting.pop(0)
        if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            waiting += [(f"{path}.{name}", inner) for name, inner in child.named_children()]
        else:
            found.append(path)
    return found


def _of_class(model: nn.Module, kind: type[nn.Module]) -> list[str]:
    return [path for path, module in model.named_modules() if type(module) is kind]


def _is_on_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def _reject_lost_values(model: nn.Module) -> None:
    """On `meta`, tensors that are neither parameters nor buffers have lost their values for good."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise NeedsWeights(f"{path}.{name} is a tensor, but neither a parameter nor a buffer")


@contextmanager
def _mode_kept(model: nn.Module) -> Iterator[None]:
    """A model may have parts that are frozen in evaluation mode: each module gets back its own."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _first_with_parameters(program: TracedProgram, start: int) -> fx.Node:
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

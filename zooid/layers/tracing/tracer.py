"""Traces a model in training and in evaluation mode, with a dynamic batch dimension, and cuts both into layers."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import fx, nn

from zooid.core.errors import LayerError
from zooid.core.jobs.job import Job
from zooid.layers.jobs.batches import Batch
from zooid.layers.jobs.job_checks import default_device
from zooid.layers.jobs.model_builder import (
    NeedsWeights,
    buffers_restored,
    build_model,
    build_model_on_meta,
    modes_restored,
)
from zooid.layers.stages.autocast import note_autocast
from zooid.layers.stages.layered_model import LayeredModel, parameter_hooks, persistent_names, tied_names
from zooid.layers.stages.whole_model import whole_model
from zooid.layers.tracing.code_locations import CodeLocation, causes_of, describe_location
from zooid.layers.tracing.cut_points import cut_alike
from zooid.layers.tracing.exported_program import export, read_program
from zooid.layers.tracing.fixed_results import FixedResults
from zooid.layers.tracing.measured_results import Results, measure_results
from zooid.layers.tracing.opaque_calls import OpaqueCall, new_calls
from zooid.layers.tracing.structures import Untraceable
from zooid.layers.tracing.traced_program import TracedProgram, module_path
from zooid.layers.tracing.watch import Watch, hooked_modules, opaque_modules


def trace(model: nn.Module, example: Batch) -> LayeredModel:
    """Trace the model on an example of at least two samples, whose values do not matter and may be on `meta`.

    Modules whose code a trace would lose, or cannot follow, become opaque operations. If the whole model would become
    one, it is a single layer, and `why_whole` says why.
    """
    _check_plain_tensors(model)
    tracer = _Tracer(model, example.with_values())
    try:
        train, evaluation = cut_alike(tracer.programs())
    except _NotCut as error:
        return whole_model(model, example, str(error))
    names = [module_path(_first_with_parameters(train, start)) for start in train.starts]
    persistent = persistent_names(model, tracer.aliases)
    return LayeredModel(train, evaluation, _distinct(names), persistent, tracer.aliases, parameter_hooks(model))


def trace_job(job: Job, example: Batch, device: torch.device | None = None, *, why_whole: str = "") -> LayeredModel:
    """Return the layers of the job's model for this kind of device.

    `why_whole` is the reason where the model is known to be uncuttable; it is then one layer.
    """
    if why_whole:
        return whole_model(build_model(job), example, why_whole)
    try:
        layered = trace(build_model_on_meta(job), example)
    except NeedsWeights:
        layered = trace(build_model(job), example)
    if layered.whole is not None:
        return whole_model(build_model(job), example, layered.why_whole)
    if job.autocast is not None:
        note_autocast(layered, job.autocast, device or default_device())
    return layered


class _NotCut(LayerError):
    """The model cannot be cut into layers."""


class _Tracer:
    """Traces a model repeatedly, until all code that a trace cannot follow is inside an opaque operation."""

    def __init__(self, model: nn.Module, example: Batch) -> None:
        self.aliases = tied_names(model)
        self._model = model
        self._example = example
        self._opaque: dict[str, str] = hooked_modules(model)
        """Paths of opaque modules, with the reasons."""
        self._measured: Results | None = None
        """Results of modules in real runs, where they were needed."""
        self._by_value: set[str] = set()
        """Paths of opaque modules that only run on real values."""
        self._decided: dict[CodeLocation, bool] = {}
        """Outcomes of conditions on values whose other outcome only raises an error."""

    def programs(self) -> tuple[TracedProgram, TracedProgram]:
        """Return the programs of training and evaluation."""
        with modes_restored(self._model):
            while True:
                self._model.train()
                train = self._attempt()
                self._model.eval()
                evaluation = self._attempt() if train is not None else None
                if train is not None and evaluation is not None:
                    return train, evaluation

    def _attempt(self) -> TracedProgram | None:
        """Return the program in the current mode; None where more has to be opaque in the next attempt."""
        with new_calls() as calls:
            watch = self._watch(calls, self._decided)
            try:
                exported = self._export(watch)
                program = read_program(exported, self.aliases, dict(calls))
            except NeedsWeights:
                raise
            except Exception as error:  # noqa: BLE001  # whatever a trace, or the model's own code, raises
                before = self._conditions()
                self._learn_from(error, watch)
                if self._conditions() == before:  # the same attempt would fail again
                    self._make_opaque({"": _reason(error)})
                return None
        if watch.reasons:
            self._make_opaque(watch.reasons)
            return None
        return program

    def _conditions(self) -> tuple[set[str], set[str], dict[CodeLocation, bool]]:
        """Return everything that determines the next attempt."""
        return set(self._opaque), set(self._by_value), dict(self._decided)

    def _watch(self, calls: dict[str, OpaqueCall], decided: dict[CodeLocation, bool]) -> Watch:
        measured = {path: results for path, results in (self._measured or {}).items() if path in self._by_value}
        return Watch(self._model, calls, measured, decided)

    def _export(self, watch: Watch) -> torch.export.ExportedProgram:
        with watch.watching(), opaque_modules(self._model, self._opaque, watch), FixedResults(watch):
            return export(self._model, self._example)

    def _learn_from(self, error: Exception, watch: Watch) -> None:
        """Make the module opaque in whose code a trace failed, and others of its class, which would fail alike."""
        if watch.undecided is not None and self._decide(watch.undecided):
            return
        reason = _reason(error)
        untraceable = next((cause for cause in causes_of(error) if isinstance(cause, Untraceable)), None)
        path = untraceable.path if untraceable is not None else watch.paths.innermost_of_error(error)
        if untraceable is not None:
            self._make_opaque({**watch.reasons, _callable_path(self._model, untraceable.path): str(untraceable)})
        elif path is None:
            self._learn_without_path(watch, reason)
        elif (outer := next((outer for outer in self._opaque if _is_inside(path, outer)), None)) is not None:
            self._run_by_value([outer], reason)
        else:
            failed = type(self._model.get_submodule(path))
            alike = [name for name, module in self._model.named_modules() if type(module) is failed]
            is_torch_module = failed.__module__.startswith("torch.nn.")
            self._make_opaque({**watch.reasons, **dict.fromkeys((*([] if is_torch_module else alike), path), reason)})

    def _learn_without_path(self, watch: Watch, reason: str) -> None:
        """Make all modules opaque that the model calls, or run them by value, since nothing says which one failed."""
        children = _called_modules(self._model)
        if new := [path for path in children if not any(_is_inside(path, outer) for outer in self._opaque)]:
            self._make_opaque({**watch.reasons, **dict.fromkeys(new, reason)})
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
        """Take the results of these opaque modules from real runs; where they vary, make their callers opaque."""
        if _is_on_meta(self._model):
            raise NeedsWeights(reason)
        if self._measured is None:
            self._measured = _measure(self._model, self._example)
        for path in list(paths):
            if path in self._by_value or not self._measured.get(path):
                self._make_opaque({_callable_path(self._model, path.rpartition(".")[0]): reason})
            self._by_value.add(path)

    def _decide(self, location: CodeLocation) -> bool:
        """Decide a condition on values if one of its outcomes only raises an error; return whether it is decided."""
        for outcome in (True, False):
            with new_calls() as calls:
                watch = self._watch(calls, {**self._decided, location: outcome})
                try:
                    self._export(watch)
                except Exception as error:  # noqa: BLE001  # whatever the model's own code raises
                    if location.is_raised_by(error):
                        self._decided[location] = not outcome
                        return True
        return False


_VALUE_ERRORS = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")


def _reason(error: Exception) -> str:
    """Describe the code of the model that a trace cannot follow."""
    text = str(error)
    if isinstance(error, LayerError):
        return text
    location = describe_location(error)
    if type(error).__name__ in _VALUE_ERRORS or "data-dependent" in text:
        return f"its code depends on the values of tensors{location}"
    if "Constraints violated" in text or "specialized" in text:
        return f"its code fixes the number of samples{location}"
    first_line = text.strip().partition("\n")[0]
    return f"it cannot be traced{location}: {type(error).__name__}: {first_line}"


def _measure(model: nn.Module, example: Batch) -> Results:
    """Return the results of all modules in runs on two samples and on three; none if the model takes only two."""

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
    """Leave out modules that are inside of others."""
    return {
        path: reason
        for path, reason in opaque.items()
        if not any(path != other and _is_inside(path, other) for other in opaque)
    }


def _is_inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _callable_path(model: nn.Module, path: str) -> str:
    """Return the path of this module, or of the innermost module around it that is called at all."""
    while isinstance(model.get_submodule(path), (nn.ModuleList, nn.ModuleDict)):
        path = path.rpartition(".")[0]
    return path


def _called_modules(model: nn.Module) -> list[str]:
    """Return the paths of the modules that the model's own forward calls, including those in lists."""
    called: list[str] = []
    waiting = list(model.named_children())
    while waiting:
        path, child = waiting.pop(0)
        if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            waiting += [(f"{path}.{name}", inner) for name, inner in child.named_children()]
        else:
            called.append(path)
    return called


def _is_on_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def _check_plain_tensors(model: nn.Module) -> None:
    """Raise NeedsWeights for tensors on `meta` that are neither parameters nor buffers: their values are lost."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise NeedsWeights(f"{path}.{name} is a tensor, but neither a parameter nor a buffer")


def _first_with_parameters(program: TracedProgram, start: int) -> fx.Node:
    for operation in program.operations[start:]:
        if any(program.state_names.get(node) in program.parameter_names for node in operation.all_input_nodes):
            return operation
    return program.operations[start]


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Number the names of layers that begin in the same module."""
    plain = [name or "model" for name in names]
    return tuple(
        name if plain.count(name) == 1 else f"{name}#{plain[: index + 1].count(name)}"
        for index, name in enumerate(plain)
    )

"""The results of modules in real runs, for code that only runs on real values."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from zooid.layers.tracing.structures import Structure, Untraceable, take_apart, without_objects


@dataclass(frozen=True)
class MeasuredResults:
    """Results of a module in runs on two and on three samples, from which sizes for any number follow."""

    structure: Structure
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Shapes of each tensor with two samples and with three."""
    dtypes: tuple[torch.dtype, ...]

    def outputs(self, path: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors without data, whose sizes follow from the number of samples in the inputs."""
        num_samples = _num_samples(inputs)
        outputs = []
        for (small, large), dtype in zip(self.shapes, self.dtypes, strict=True):
            if len(small) != len(large) or num_samples is None:
                raise Untraceable(path.rpartition(".")[0], f"the sizes of the results of {path} depend on values")
            slopes = [b - a for a, b in zip(small, large, strict=True)]
            sizes = [a + slope * (num_samples - 2) if slope else a for a, slope in zip(small, slopes, strict=True)]
            outputs.append(torch.empty(sizes, dtype=dtype, device=inputs[0].device))
        return outputs


def _num_samples(inputs: Sequence[torch.Tensor]) -> Any:
    """Return the symbol for the number of samples in a trace; None where no input has it as a size."""
    sizes: list[Any] = [size for tensor in inputs for size in tensor.shape]
    return next((size for size in sizes if isinstance(size, torch.SymInt) and size.node.expr.is_symbol), None)


Results = dict[str, list[MeasuredResults]]
"""The results of each module's calls, in order, by the path of the module."""
_Call = tuple[Structure, list[torch.Tensor]]


def measure_results(model: nn.Module, runs: Sequence[Callable[[], Any]]) -> Results:
    """Run the model on two samples and on three, and return the results of its modules."""
    run_calls: list[dict[str, list[_Call]]] = []
    paths = {module: path for path, module in model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        path = paths.get(module)
        if path is not None:
            with contextlib.suppress(Untraceable):  # such a module can only be inside of an opaque one
                structure, tensors = take_apart(path, without_objects(output))
                on_meta = [tensor.detach().to("meta") for tensor in tensors]
                run_calls[-1].setdefault(path, []).append((structure, on_meta))

    hook = register_module_forward_hook(note)
    try:
        for run in runs:
            run_calls.append({})
            run()
    finally:
        hook.remove()
    small, large = run_calls
    return {
        path: [_combined(*pair) for pair in zip(calls, large[path], strict=True)]
        for path, calls in small.items()
        if [structure for structure, _ in calls] == [structure for structure, _ in large.get(path, ())]
    }


def _combined(small: _Call, large: _Call) -> MeasuredResults:
    shapes = [(tuple(a.shape), tuple(b.shape)) for a, b in zip(small[1], large[1], strict=True)]
    return MeasuredResults(small[0], tuple(shapes), tuple(tensor.dtype for tensor in small[1]))

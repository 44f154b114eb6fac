"""Autocast, which is applied when layers run: the forward computes in a smaller type where torch.autocast chooses so.

A trace contains no autocast, but the types of the values that cross a cut must be known beforehand. So the traced
operations run once under autocast on tensors without data, and the values take their types from there.
"""

import contextlib
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from zooid.core.errors import LayerError
from zooid.core.jobs.job import AutocastName
from zooid.layers.stages.layered_model import LayeredModel
from zooid.layers.tracing.traced_program import TracedProgram
from zooid.layers.tracing.values import facts_of, note_facts, value_of

DTYPES: dict[AutocastName, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NUM_SAMPLES = 2


def autocasting(name: AutocastName | None, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which a forward and its loss run."""
    if name is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[name])


def note_autocast(model: LayeredModel, name: AutocastName, device: torch.device) -> None:
    """Give every value the type that it has under autocast on this kind of device."""
    for program in (model.train, model.evaluation):
        with torch.no_grad(), FakeTensorMode() as fakes, autocasting(name, device):
            try:
                _run(program, fakes, device)
            except Exception as error:
                raise LayerError(
                    f"the types of the model's values under autocast are unknown: {type(error).__name__}: {error}; "
                    "leave out job.autocast, or convert the model to a smaller type yourself"
                ) from error


def _run(program: TracedProgram, fakes: FakeTensorMode, device: torch.device) -> None:
    values: dict[fx.Node, Any] = {}
    for node in (*program.inputs, *program.state_names):
        traced = value_of(node)
        if traced is None:
            values[node] = facts_of(node).literal
        else:
            values[node] = torch.empty(traced.shape(_NUM_SAMPLES), dtype=traced.dtype, device=device)
    for node, constant in program.constants.items():
        is_tensor = isinstance(constant, torch.Tensor)
        values[node] = fakes.from_tensor(constant).to(device) if is_tensor else constant

    def on_device(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    for operation in program.operations:
        arguments = fx.node.map_arg((operation.args, operation.kwargs), values.__getitem__)
        args, kwargs = tree_map(on_device, arguments)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": device}
        assert callable(operation.target)
        result = values[operation] = operation.target(*args, **kwargs)
        facts = facts_of(operation)
        if facts.value is not None and isinstance(result, torch.Tensor):
            note_facts(operation, replace(facts, value=replace(facts.value, dtype=result.dtype)))

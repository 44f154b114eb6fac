"""Builds a job's model, with its initial weights or without any.

A member needs the structure of the whole model, but only the weights of its own stage, which it reads from a
checkpoint. So it builds the model on the `meta` device, where tensors have shapes but no values. That fails for a
constructor that needs values, such as transformers' `from_pretrained`, and for tensors that are neither parameters nor
buffers. Such a model is built in main memory, and each parameter is emptied as soon as a module registers it, so that
the weights are never in memory all at once.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from zooid.core.errors import JobError, LayerError
from zooid.core.jobs.job import Job
from zooid.layers.disk_tensors import LargeTensorsOnDisk, settle
from zooid.layers.stages.randomness import seed_generators

_log = logging.getLogger(__name__)


class NeedsWeights(LayerError):
    """The model can only be traced when it is built with its weights."""


def build_model(job: Job) -> nn.Module:
    """Build the model with its initial weights, which follow from the job's seed; on disk if memory is too small."""
    seed_generators(job.seed)
    with LargeTensorsOnDisk():
        model = call("model", job.model)
    if not isinstance(model, nn.Module):
        raise JobError(f"job.model() returned a {type(model).__name__}; it must return an nn.Module")
    settle(model)
    return _uncompiled(model).train()


@contextmanager
def buffers_restored(model: nn.Module) -> Iterator[None]:
    """On exit, buffers such as batch-norm statistics have the values that they had on entry."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """On exit, each module is in the mode that it had on entry, since a model may keep parts in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def _uncompiled(model: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`, which computes the same and has plain parameter names."""
    original = getattr(model, "_orig_mod", None)
    if not isinstance(original, nn.Module):
        return model
    _log.info("job.model() returned a compiled module; the module inside is trained")
    return _uncompiled(original)


def build_model_on_meta(job: Job) -> nn.Module:
    """Build the model without weights, so that a member never holds more than its stage.

    NeedsWeights is raised where the model's structure could depend on the values of its weights.
    """
    emptied = _EmptyTensors()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty model does not take the weights of a checkpoint
        try:
            model = _build_on_meta(job)
        except JobError as error:
            _log.info("the model is built in main memory, since it cannot be built on meta: %s", error)
            model = _build_on_processor(job, emptied)
    for module in model.modules():
        parameters = module.named_parameters(recurse=False, remove_duplicate=False)
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        for name, tensor in [*parameters, *buffers]:
            if not tensor.is_meta:
                setattr(module, name, emptied.of(tensor))
    return model


def call(name: str, build: Any) -> Any:
    """Call one of the job's functions, and turn its error into a JobError."""
    try:
        return build()
    except Exception as error:
        raise JobError(f"job.{name}() raised {type(error).__name__}: {error}") from error


def _build_on_meta(job: Job) -> nn.Module:
    with torch.device("meta"):
        model = build_model(job)
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        held = [leaf for leaf in tree_leaves(vars(module)) if isinstance(leaf, torch.Tensor) and leaf.is_meta]
        if any(id(tensor) not in registered for tensor in held):
            raise JobError(f"{path or 'the model'} has a tensor that is neither a parameter nor a buffer")
    return model


def _build_on_processor(job: Job, emptied: "_EmptyTensors") -> nn.Module:
    """Build the model with real buffers and empty parameters."""
    try:
        with emptied.on_registration():
            model = build_model(job)
    except JobError as error:
        raise NeedsWeights(f"the model cannot be built without its weights: {error}") from error
    # Empty parameters are not initialised, so that later random numbers differ from those of the complete model.
    if not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(job.seed).get_state()):
        raise NeedsWeights("the model cannot be built without its weights: its constructor draws random numbers")
    if any(_leaves_ties_open(module) for module in model.modules()):
        raise NeedsWeights("the model cannot be built without its weights: their values decide which are tied")
    return model


def _leaves_ties_open(module: nn.Module) -> bool:
    """Whether transformers would tie two parameters only if their values are equal."""
    sources: dict[str, str] = getattr(module, "all_tied_weights_keys", None) or {}
    parameters = dict(module.named_parameters(remove_duplicate=False)) if sources else {}
    return any(parameters.get(name) is not parameters.get(source) for name, source in sources.items())


class _EmptyTensors:
    """Maps each tensor to one tensor on the meta device, so that tied parameters stay tied."""

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in self._known:
            self._known[tensor] = _emptied(tensor)
        empty: torch.Tensor = self._known[tensor]
        return empty

    @contextmanager
    def on_registration(self) -> Iterator[None]:
        """While inside, every parameter that a module registers is replaced by an empty one."""

        def replace(module: nn.Module, name: str, parameter: nn.Parameter) -> Any:
            return parameter if parameter.is_meta else self.of(parameter)

        hook = register_module_parameter_registration_hook(replace)
        try:
            yield
        finally:
            hook.remove()


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the meta device with the same attributes and hooks."""
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        for hook in (tensor._backward_hooks or {}).values():
            empty.register_hook(hook)  # type: ignore[no-untyped-call]
        for hook in (tensor._post_accumulate_grad_hooks or {}).values():
            empty.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    vars(empty).update(vars(tensor))
    return empty

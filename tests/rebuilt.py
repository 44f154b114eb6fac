"""Traced models, written as records and rebuilt from their bytes, as members do it; and what either computes, bit for
bit."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from zooid.layers import Batch, LayeredModel, Mode, build_stage, flatten_inputs, grain_randomness
from zooid.layers.record import decode_constants, decode_trace, encode_trace, rebuild

CPU = torch.device("cpu")


def through_bytes(layered: LayeredModel) -> LayeredModel | None:
    """The model from the bytes of its record; None where the record says that members have to trace it."""
    encoded = encode_trace(layered, CPU)
    trace = decode_trace(encoded.data, "the trace")
    if trace.layers is None:
        assert trace.why_traced
        return None
    return rebuild(trace.layers, decode_constants(encoded.constants, "the constants") if encoded.constants else {})


def assert_same_bits(traced: LayeredModel, rebuilt: LayeredModel, state: Mapping[str, Tensor], batch: Batch) -> None:
    """Everything that members ask a model for, and every number that its stages compute, is the same."""
    assert rebuilt.fingerprint == traced.fingerprint
    assert (rebuilt.names, rebuilt.aliases, rebuilt.tied) == (traced.names, traced.aliases, traced.tied)
    assert rebuilt.persistent_names == traced.persistent_names
    assert rebuilt.unused_names == traced.unused_names
    num_layers = traced.num_layers
    assert rebuilt.trained_bytes(0, num_layers) == traced.trained_bytes(0, num_layers)
    modes: tuple[Mode, ...] = ("train", "eval")
    for mode in modes:
        for layer in range(num_layers):
            assert rebuilt.values_into(layer, mode) == traced.values_into(layer, mode)
        for cuts in {(0, num_layers), (0, num_layers // 2, num_layers), tuple(range(num_layers + 1))}:
            if len({*cuts}) == len(cuts):
                found, wanted = (_numbers(model, cuts, state, batch, mode) for model in (rebuilt, traced))
                assert found.keys() == wanted.keys()
                for name, tensor in wanted.items():
                    assert _is_same(found[name], tensor), f"{name} differs in {mode}, cut at {cuts}"


def _numbers(
    layered: LayeredModel, cuts: tuple[int, ...], state: Mapping[str, Tensor], batch: Batch, mode: Mode
) -> dict[str, Tensor]:
    """Outputs, gradients and buffers of one grain, in stages whose values travel detached."""
    values: list[Any] = flatten_inputs(batch)
    numbers: dict[str, Tensor] = {}
    with grain_randomness(seed=5, step=2, grain=1):
        torch.manual_seed(3)
        for first, end in pairwise(cuts):
            own = {name: state[name].detach().clone() for name in layered.state_of(first, end)}
            stage = build_stage(layered, first, end, own, CPU, mode)
            flags = stage.differentiable_inputs
            inputs = [v.detach().requires_grad_(flag) if flag else v for v, flag in zip(values, flags, strict=True)]
            values = list(stage.run(*inputs))
            numbers |= {f"value {number} into {end}": v for number, v in enumerate(values) if isinstance(v, Tensor)}
            results = [v for v in values if isinstance(v, Tensor) and v.requires_grad]
            if mode == "train" and results:
                torch.autograd.backward(results, [torch.ones_like(result) for result in results])
            gradients = {name: p.grad for name, p in stage.module.named_parameters() if p.grad is not None}
            numbers |= {f"gradient of {name} from {first}": gradient for name, gradient in gradients.items()}
            numbers |= {f"buffer {name} from {first}": buffer for name, buffer in stage.module.named_buffers()}
    output = tree_leaves(stage.model_output(tuple(values)))
    return numbers | {f"output {number}": leaf for number, leaf in enumerate(output) if isinstance(leaf, Tensor)}


def _is_same(found: Tensor, wanted: Tensor) -> bool:
    return found.dtype == wanted.dtype and found.stride() == wanted.stride() and _bits(found).equal(_bits(wanted))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)

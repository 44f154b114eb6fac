"""Well-known architectures as layers: every stage that any cut can make computes what the untouched model computes.

A cut into any number of stages is a chain of stages. The values and gradients at every cut are recorded once, from
layers run one by one, and compared with the untouched model; then every stage [first, end) has to turn the recorded
values at its first cut into those at its end, and the recorded gradients back. So every cut into 2, 3, 4 or more
stages is covered, although most are not run as a chain. `--thorough` tries all of them in both modes and at all
sizes; without it, those that begin or end a model, and a random part of the others.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.models import Inputs, Specimen, specimens
from tests.rebuilt import assert_same_bits, through_bytes
from zooid.layers import Batch, LayeredModel, Mode, Stage, build_stage, flatten_inputs, grain_randomness, trace

NAMES = ("bert", "roberta", "gpt2", "vit", "resnet", "convnext", "t5", "unet", "lstm", "mlp")
SIZES = (1, 3)
TOLERANCE = 1e-9
SAMPLED_STAGES = 4
WITH_DROPOUT = ("bert", "roberta", "gpt2", "vit", "t5", "unet", "lstm", "mlp")


@cache
def specimen(name: str) -> Specimen:
    return specimens()[name]


def batch_of(inputs: Inputs, size: int) -> Batch:
    return Batch((), inputs, None, size) if isinstance(inputs, dict) else Batch(inputs, {}, None, size)


@cache
def layered_of(name: str, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> LayeredModel:
    """One trace, on meta and of two samples, serves every size."""
    with torch.device("meta"):
        model = specimen(name).build("small", dropout).to(dtype)
    return trace(model, batch_of(cast(specimen(name).inputs("small", 2), dtype), 2).to("meta"))


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    def converted(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    if isinstance(inputs, dict):
        return {name: converted(tensor) for name, tensor in inputs.items()}
    return tuple(converted(tensor) for tensor in inputs)


def model_of(name: str, mode: Mode) -> nn.Module:
    torch.manual_seed(0)
    return specimen(name).build("small", 0.0).double().train(mode == "train")


def inputs_of(name: str, size: int) -> Batch:
    torch.manual_seed(size)
    return batch_of(cast(specimen(name).inputs("small", size), torch.float64), size)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def stage_of(layered: LayeredModel, first: int, end: int, state: dict[str, Tensor], mode: Mode) -> Stage:
    own = {name: state[name].clone() for name in layered.state_of(first, end)}
    return build_stage(layered, first, end, own, "cpu", mode)


Gradients = dict[str, Tensor]


def gradients_of(module: nn.Module) -> Gradients:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@dataclass
class Passed:
    """One stage run on one grain."""

    inputs: list[Any]
    outputs: tuple[Any, ...]


def forward(stage: Stage, values: list[Any]) -> Passed:
    flags = stage.differentiable_inputs
    inputs = [v.detach().requires_grad_(flag) for v, flag in zip(values, flags, strict=True)]
    with grain_randomness(0, 0, 0):
        return Passed(inputs, stage.module(*inputs))


def backward(stage: Stage, passed: Passed, gradients: list[Tensor | None]) -> list[Tensor | None]:
    pairs = [
        (value, gradient)
        for value, gradient in zip(passed.outputs, gradients, strict=True)
        if gradient is not None and value.requires_grad
    ]
    torch.autograd.backward([value for value, _ in pairs], [gradient for _, gradient in pairs])
    return [value.grad for value in passed.inputs]


@dataclass(frozen=True)
class Recording:
    """What lies at every cut: `values[k]` and `gradients[k]` travel into layer k; the last are the model's outputs."""

    values: list[list[Any]]
    gradients: list[list[Tensor | None]]
    of_layers: list[Gradients]
    state: dict[str, Tensor]


def record(name: str, mode: Mode, size: int) -> Recording:
    """Run the layers one by one, and compare with the untouched model."""
    layered, batch = layered_of(name), inputs_of(name, size)
    model = model_of(name, mode)
    state = state_of(model)
    output = model(*batch.args, **batch.kwargs)
    loss = specimen(name).loss(output)
    loss.backward()  # type: ignore[no-untyped-call]

    stages = [stage_of(layered, layer, layer + 1, state, mode) for layer in range(layered.num_layers)]
    values = [flatten_inputs(batch)]
    passed = []
    for stage in stages:
        passed.append(forward(stage, values[-1]))
        values.append([v.detach() if isinstance(v, Tensor) else v for v in passed[-1].outputs])
    heads = [v.detach().requires_grad_() if is_float(v) else v for v in passed[-1].outputs]
    composed = specimen(name).loss(stages[-1].model_output(tuple(heads)))
    composed.backward()  # type: ignore[no-untyped-call]
    gradients: list[list[Tensor | None]] = [[v.grad if is_float(v) else None for v in heads]]
    for stage, run in zip(reversed(stages), reversed(passed), strict=True):
        gradients.insert(0, backward(stage, run, gradients[0]))

    assert_close([composed], [loss])
    assert_close(tree_leaves(stages[-1].model_output(tuple(values[-1]))), tree_leaves(output))
    of_layers = [gradients_of(stage.module) for stage in stages]
    assert_same(total_of(of_layers), gradients_of(model))
    if mode == "train":
        written = {name: b for stage in stages for name, b in stage.module.named_buffers() if "constant" not in name}
        assert_same(written, {name: b for name, b in model.named_buffers() if name in written})
    return Recording(values, gradients, of_layers, state)


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def assert_close(found: list[Any], wanted: list[Any]) -> None:
    for value, expected in zip(found, wanted, strict=True):
        if isinstance(expected, Tensor):
            torch.testing.assert_close(value, expected, rtol=0, atol=TOLERANCE)
        else:
            assert value == expected


def assert_same(found: Gradients, wanted: Gradients) -> None:
    assert found.keys() == wanted.keys()
    for name, expected in wanted.items():
        torch.testing.assert_close(found[name], expected, rtol=0, atol=TOLERANCE)


def stages_to_try(num_layers: int, *, every: bool, seed: str) -> Iterator[tuple[int, int]]:
    pairs = [(first, end) for first in range(num_layers) for end in range(first + 2, num_layers + 1)]
    edges = [pair for pair in pairs if pair[0] == 0 or pair[1] == num_layers]
    others = [pair for pair in pairs if pair not in edges]
    dice = random.Random(seed)
    if every:
        yield from pairs
    else:
        yield from dice.sample(edges, min(SAMPLED_STAGES, len(edges)))
        yield from dice.sample(others, min(SAMPLED_STAGES, len(others)))


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_every_stage_computes_what_the_model_does(name: str, mode: Mode, pytestconfig: pytest.Config) -> None:
    every = bool(pytestconfig.getoption("--thorough"))
    layered = layered_of(name)
    recordings = {size: record(name, mode, size) for size in SIZES}
    for first, end in stages_to_try(layered.num_layers, every=every, seed=f"{name} {mode}"):
        for size in SIZES:
            wanted = recordings[size]
            stage = stage_of(layered, first, end, wanted.state, mode)
            run = forward(stage, wanted.values[first])
            assert_close(list(run.outputs), wanted.values[end])
            assert_close(backward(stage, run, wanted.gradients[end]), wanted.gradients[first])
            assert_same(gradients_of(stage.module), total_of(wanted.of_layers[first:end]))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize(
    ("name", "num_stages"),
    [(name, 2 + number % 3) for number, name in enumerate(NAMES[::2]) if name != "t5"],  # it takes as long as the rest
)
def test_stages_in_a_chain_agree_under_bf16_autocast(name: str, num_stages: int) -> None:
    """Where a model is cut changes nothing but roundings of bf16; weights are float32 here, as autocast has it. Models
    with dropout are evaluated, since a stage draws other random numbers."""
    mode: Mode = "eval" if name in WITH_DROPOUT else "train"
    layered = layered_of(name, dropout=0.1, dtype=torch.float32)
    torch.manual_seed(4)
    batch = batch_of(specimen(name).inputs("small", 4), 4)
    model = model_of(name, mode).float()
    state = state_of(model)
    with torch.autocast("cpu", torch.bfloat16):
        try:
            output = model(*batch.args, **batch.kwargs)
        except RuntimeError as error:
            if "could not create a primitive" not in str(error):
                raise
            pytest.skip(f"PyTorch computes no {name} in bf16 on this processor")
        wanted = specimen(name).loss(output)
    wanted.backward()  # type: ignore[no-untyped-call]
    cuts = sorted(random.Random(name).sample(range(1, layered.num_layers), num_stages - 1))
    stages = [stage_of(layered, a, b, state, mode) for a, b in pairwise((0, *cuts, layered.num_layers))]
    loss, gradients = run_chain(name, stages, batch)
    torch.testing.assert_close(loss, wanted.detach(), rtol=0.02, atol=0.02)
    whole = gradients_of(model)
    assert gradients.keys() == whole.keys()
    difference = sum((gradients[n] - g).double().square().sum() for n, g in whole.items()) ** 0.5
    assert difference <= 0.05 * sum(g.double().square().sum() for g in whole.values()) ** 0.5


def run_chain(name: str, stages: list[Stage], batch: Batch) -> tuple[Tensor, Gradients]:
    values, passed = flatten_inputs(batch), []
    with torch.autocast("cpu", torch.bfloat16):
        for stage in stages:
            passed.append(forward(stage, values))
            values = [v.detach() if isinstance(v, Tensor) else v for v in passed[-1].outputs]
        heads = [v.detach().requires_grad_() if is_float(v) else v for v in passed[-1].outputs]
        loss = specimen(name).loss(stages[-1].model_output(tuple(heads)))
    loss.backward()  # type: ignore[no-untyped-call]
    gradients: list[Tensor | None] = [v.grad if is_float(v) else None for v in heads]
    for stage, run in zip(reversed(stages), reversed(passed), strict=True):
        gradients = backward(stage, run, gradients)
    return loss.detach(), total_of([gradients_of(stage.module) for stage in stages])


def total_of(parts: list[Gradients]) -> Gradients:
    """What two stages use, both find a part of."""
    totals: Gradients = {}
    for own in parts:
        totals |= {name: totals[name] + gradient if name in totals else gradient for name, gradient in own.items()}
    return totals


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_rebuilt_from_its_record_computes_the_same_bits(name: str) -> None:
    traced = layered_of(name)
    rebuilt = through_bytes(traced)
    assert rebuilt is not None
    assert_same_bits(traced, rebuilt, state_of(model_of(name, "train")), inputs_of(name, 3))


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_of_stages_is_one_of_the_model(name: str) -> None:
    layered = layered_of(name)
    model = model_of(name, "train")
    state = state_of(model)
    found: dict[str, Tensor] = {}
    for layer in range(layered.num_layers):
        found |= stage_of(layered, layer, layer + 1, state, "train").module.state_dict()
    mine = {n: t for n, t in found.items() if n in layered.persistent_names}
    mine |= {n: model.state_dict()[n] for n in layered.unused_names}
    model.load_state_dict(mine | {alias: mine[n] for alias, n in layered.aliases.items()}, strict=True)


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_training_and_evaluation_are_cut_alike(name: str) -> None:
    """Also where dropout is a part of one of the two traces only."""
    layered = layered_of(name, dropout=0.1, dtype=torch.float32)
    assert layered.num_layers == layered_of(name).num_layers
    assert layered.num_layers == layered.train.num_layers == layered.evaluation.num_layers >= 4
    for layer in range(layered.num_layers):
        of_training, of_evaluation = (
            {n for n in program.state_of(layer, layer + 1) if n in layered.parameter_names}
            for program in (layered.train, layered.evaluation)
        )
        assert of_training == of_evaluation

"""Layers composed in any way are the model itself: outputs, loss, gradients and statistics, number for number."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from tests.rebuilt import assert_same_bits, through_bytes
from tests.unit import layer_models as models
from zooid.layers import Batch, LayeredModel, Stage, build_stage, flatten_inputs, grain_randomness, trace
from zooid.layers.jobs.model_builder import NeedsWeights

Build = Callable[[], nn.Module]
Cuts = tuple[int, ...]

SEED, STEP, GRAIN = 7, 3, 1


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda size: torch.randn(size, *shape, dtype=torch.float64)


def whole_numbers(below: int, *shape: int) -> Callable[[int], Tensor]:
    return lambda size: torch.randint(below, (size, *shape))


INPUTS: dict[Build, tuple[Callable[[int], Tensor], ...] | dict[str, Callable[[int], Tensor]]] = {
    models.Perceptron: (normal(5),),
    models.ConvNet: (normal(1, 6, 6),),
    models.DroppingConvNet: (normal(1, 6, 6),),
    models.Skip: (normal(5),),
    models.TwoInputs: (normal(5), normal(2)),
    models.DictOutput: (normal(5),),
    models.OwnLoss: {"labels": whole_numbers(3), "x": normal(5)},  # not in the order of the signature
    models.OwnLossInDataclass: {"x": normal(5), "labels": whole_numbers(3)},
    models.Tied: (whole_numbers(11, 7),),
    models.Leftovers: (normal(5),),
    models.Frozen: (normal(5),),
    models.Attention: (normal(6, 4),),
    models.Transformer: (normal(6, 4),),
    models.WritesInPlace: (normal(5),),
    models.WritesThroughSlice: (normal(5),),
    models.WritesThroughCrossingView: (normal(5),),
    models.TensorAttribute: (normal(5),),
    models.TensorLiteral: (normal(5),),
    models.ChoosySequence: (normal(5),),
    models.ChoosyBlocks: (normal(5),),
}
RANDOM: list[Build] = [models.DroppingConvNet, models.Attention, models.Transformer]
HARD: list[Build] = [
    models.WritesThroughSlice,
    models.WritesThroughCrossingView,
    models.TensorAttribute,
    models.TensorLiteral,
]
BLOCKS: list[Build] = [models.ChoosySequence, models.ChoosyBlocks]
COMPOSED: list[Build] = [build for build in INPUTS if build not in (*HARD, *BLOCKS)]


def batch_of(build: Build, size: int) -> Batch:
    torch.manual_seed(size)
    makers = INPUTS[build]
    if isinstance(makers, dict):
        return Batch((), {name: make(size) for name, make in makers.items()}, None, size)
    return Batch(tuple(make(size) for make in makers), {}, None, size)


def model_of(build: Build) -> nn.Module:
    torch.manual_seed(0)
    return build().double().train()


@cache
def layered_of(build: Build) -> LayeredModel:
    """One trace of two samples, on meta where that is possible, serves every batch size."""
    with torch.device("meta"):
        model = model_of(build)
    try:
        return trace(model, batch_of(build, 2).to("meta"))
    except NeedsWeights:
        return trace(model_of(build), batch_of(build, 2))


def scalar(output: Any) -> Tensor:
    """A loss that depends on every number of the output, in a way that no symmetry hides."""
    total = torch.zeros((), dtype=torch.float64)
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            total = total + (leaf * torch.linspace(0.1, 1.0, leaf.numel(), dtype=torch.float64).view_as(leaf)).sum()
    return total


@dataclass(frozen=True)
class Result:
    """What a step on one grain leaves behind."""

    output: Any
    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def run_model(build: Build, batch: Batch) -> Result:
    """The untouched model."""
    model = model_of(build)
    output = model(*batch.args, **batch.kwargs)
    loss = scalar(output)
    torch.autograd.backward(loss)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Result(output, loss, gradients, dict(model.named_buffers()))


def run_stages(build: Build, batch: Batch, cuts: Cuts, *, step: int = STEP) -> Result:
    """As members do it: each builds its own stage from plain tensors; values and gradients travel detached."""
    layered = layered_of(build)
    model = model_of(build)
    state = {**model.state_dict(), **dict(model.named_buffers())}
    stages = [stage_of(layered, first, end, state) for first, end in pairwise((0, *cuts, layered.num_layers))]
    values: tuple[Any, ...] = tuple(flatten_inputs(batch))
    passed: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
    for stage in stages:
        crossing = zip(values, stage.differentiable_inputs, strict=True)
        inputs = tuple(value.detach().requires_grad_(is_differentiable) for value, is_differentiable in crossing)
        with grain_randomness(SEED, step, GRAIN):
            values = stage.module(*inputs)
        passed.append((inputs, values))
    output = stages[-1].model_output(values)
    loss = scalar(output)
    torch.autograd.backward(loss)
    for (_, sent), stage, (received, _) in reversed(list(zip(passed, stages, passed[1:], strict=False))):
        pairs = zip(sent, received, stage.differentiable_outputs, strict=True)
        heads = [(value, taken.grad) for value, taken, is_differentiable in pairs if is_differentiable]
        with_gradient = [(value, grad) for value, grad in heads if value.requires_grad and grad is not None]
        torch.autograd.backward([value for value, _ in with_gradient], [grad for _, grad in with_gradient])
    gradients, buffers = collect(stages)
    return Result(output, loss, gradients, buffers)


def stage_of(layered: LayeredModel, first: int, end: int, state: dict[str, Tensor]) -> Stage:
    own = {name: state[name].detach().clone() for name in layered.state_of(first, end)}
    return build_stage(layered, first, end, own, "cpu")


def collect(stages: list[Stage]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    gradients: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.module.named_parameters():
            if parameter.grad is not None:  # what two stages use, both find a part of
                gradients[name] = gradients[name] + parameter.grad if name in gradients else parameter.grad
        buffers |= {name: b for name, b in stage.module.named_buffers() if not name.startswith("_constant")}
    return gradients, buffers


def assert_equal(found: Result, wanted: Result) -> None:
    (values, form), (wanted_values, wanted_form) = tree_flatten(found.output), tree_flatten(wanted.output)
    assert form == wanted_form
    for value, wanted_value in zip(values, wanted_values, strict=True):
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, wanted_value, rtol=0, atol=1e-12)
        else:
            assert value == wanted_value
    torch.testing.assert_close(found.loss, wanted.loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.gradients, wanted.gradients, rtol=0, atol=1e-12)
    used = {name: wanted.buffers[name] for name in found.buffers}
    torch.testing.assert_close(found.buffers, used, rtol=0, atol=1e-12)


def partitions(layered: LayeredModel) -> Iterator[Cuts]:
    """No cut, every single cut, in small models every two cuts, and every cut there is."""
    places = range(1, layered.num_layers)
    for num_cuts in {0, 1, len(places)} | ({2} if len(places) <= 5 else set()):
        yield from combinations(places, num_cuts)


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("build", [build for build in COMPOSED if build not in RANDOM])
def test_stages_composed_in_any_way_are_the_untouched_model(build: Build, size: int) -> None:
    batch = batch_of(build, size)
    wanted = run_model(build, batch)
    for cuts in partitions(layered_of(build)):
        assert_equal(run_stages(build, batch, cuts), wanted)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("build", BLOCKS)
def test_what_cannot_be_traced_is_cut_between_its_blocks(build: Build, size: int) -> None:
    batch = batch_of(build, size)
    wanted = run_model(build, batch)
    assert layered_of(build).num_layers >= 4
    for cuts in partitions(layered_of(build)):
        assert_equal(run_stages(build, batch, cuts), wanted)


@pytest.mark.parametrize("build", [build for build in INPUTS if build not in BLOCKS])
def test_a_model_rebuilt_from_its_record_computes_the_same_bits(build: Build) -> None:
    traced, model = layered_of(build), model_of(build)
    rebuilt = through_bytes(traced)
    assert rebuilt is not None
    assert_same_bits(traced, rebuilt, {**model.state_dict(), **dict(model.named_buffers())}, batch_of(build, 3))


@pytest.mark.parametrize("build", BLOCKS)
def test_a_model_that_runs_python_code_has_no_record(build: Build) -> None:
    assert through_bytes(layered_of(build)) is None


def test_what_cannot_be_cut_is_one_layer_and_says_why() -> None:
    layered = trace(models.ChoosyThroughout(), Batch((torch.randn(2, 5),), {}, None, 2))
    assert layered.num_layers == 1
    assert "layer_models.py" in layered.why_whole


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("build", RANDOM)
def test_random_numbers_do_not_depend_on_where_the_model_is_cut(build: Build, size: int) -> None:
    batch = batch_of(build, size)
    wanted = run_stages(build, batch, ())
    for cuts in partitions(layered_of(build)):
        assert_equal(run_stages(build, batch, cuts), wanted)


@pytest.mark.parametrize("build", RANDOM)
def test_random_numbers_belong_to_the_step(build: Build) -> None:
    batch = batch_of(build, 8)
    assert not torch.equal(run_stages(build, batch, ()).loss, run_stages(build, batch, (), step=STEP + 1).loss)


@pytest.mark.parametrize("build", [models.WritesThroughSlice, models.WritesThroughCrossingView])
def test_what_is_written_through_a_view_is_seen_by_the_value(build: Build) -> None:
    batch = batch_of(build, 3)
    wanted = run_model(build, batch)
    for cuts in partitions(layered_of(build)):
        assert_equal(run_stages(build, batch, cuts), wanted)


@pytest.mark.parametrize("build", [models.TensorAttribute, models.TensorLiteral])
def test_a_tensor_that_is_no_buffer_keeps_its_values(build: Build) -> None:
    batch = batch_of(build, 3)
    cuts = tuple(range(1, layered_of(build).num_layers))
    assert cuts
    assert_equal(run_stages(build, batch, cuts), run_model(build, batch))


@pytest.mark.parametrize(
    ("build", "num_layers"),
    [
        (models.Perceptron, 3),
        (models.ConvNet, 6),
        (models.Skip, 4),
        (models.TwoInputs, 3),
        (models.Tied, 4),  # embedding and head are two layers, although they share their weight
        (models.Attention, 3),
        (models.WritesInPlace, 2),
    ],
)
def test_a_model_is_cut_wherever_parameters_allow(build: Build, num_layers: int) -> None:
    assert layered_of(build).num_layers == num_layers


def test_a_transformer_is_cut_between_its_blocks() -> None:
    names = layered_of(models.Transformer).names
    assert {name.split(".")[2] for name in names if name.startswith("body.layers.")} == {"0", "1", "2"}


def test_a_frozen_parameter_stays_frozen_in_its_stage() -> None:
    gradients = run_stages(models.Frozen, batch_of(models.Frozen, 3), (1, 2)).gradients
    assert set(gradients) == {"second.weight", "second.bias", "third.weight", "third.bias"}


@pytest.mark.parametrize("build", COMPOSED)
def test_stages_hold_every_name_of_the_state_dict(build: Build) -> None:
    layered = layered_of(build)
    model = model_of(build)
    used = [layered.state_of(layer, layer + 1) for layer in range(layered.num_layers)]
    names = {name for own in used for name in own if name in layered.persistent_names}
    assert names | layered.unused_names | set(layered.aliases) == set(model.state_dict())
    assert layered.parameter_names == {name for name, _ in model.named_parameters()}


def test_what_nothing_uses_and_what_a_state_dict_leaves_out_are_told_apart() -> None:
    layered = layered_of(models.Leftovers)
    assert layered.unused_names == {"spare", "count"}
    assert "scale" in layered.state_of(0, layered.num_layers)
    assert "scale" not in layered.persistent_names


def test_a_tied_name_points_to_the_tensor_it_shares() -> None:
    assert layered_of(models.Tied).aliases == {"head.weight": "embedding.weight"}


def test_layers_are_named_after_the_modules_they_begin_in() -> None:
    assert layered_of(models.Perceptron).names == ("first", "second", "third")


def test_the_bytes_that_cross_a_cut_include_skip_connections() -> None:
    layered = layered_of(models.Skip)
    assert [layered.bytes_into(layer, 1) for layer in range(4)] == [40, 80, 120, 80]


def traced(model: nn.Module) -> LayeredModel:
    return trace(model.double().train(), batch_of(models.Perceptron, 2))


class Rectified(models.Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.relu(self.second(torch.tanh(self.first(x)))))  # type: ignore[no-any-return]


def test_equal_models_have_equal_fingerprints() -> None:
    first, second = models.Perceptron(), models.Perceptron()
    assert traced(first).fingerprint == traced(second).fingerprint
    larger = trace(models.Perceptron().double().train(), batch_of(models.Perceptron, 5))
    assert larger.fingerprint == traced(first).fingerprint


@pytest.mark.parametrize("changed", [models.Perceptron(7), Rectified()], ids=["wider", "other operation"])
def test_another_model_has_another_fingerprint(changed: nn.Module) -> None:
    assert traced(changed).fingerprint != traced(models.Perceptron()).fingerprint


class Branching(models.Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class FixedBatch(models.Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(2, 5))


@pytest.mark.parametrize(
    ("build", "why"), [(Branching, "depends on the values"), (FixedBatch, "fixes the number of samples")]
)
def test_a_model_whose_own_forward_cannot_be_traced_is_one_layer(build: Build, why: str) -> None:
    layered = traced(build())
    assert layered.num_layers == 1
    assert why in layered.why_whole


class Causal(nn.Module):
    """Attention under a mask that follows from sizes alone, and one that follows from an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        size = x.shape[1]
        causal = torch.ones(size, size, dtype=torch.bool).tril().expand(x.shape[0], size, size)
        known = torch.arange(size).unsqueeze(0) < lengths.unsqueeze(1)
        mask = causal & known.unsqueeze(1)
        for layer in self.layers:
            weights = (x @ x.transpose(1, 2)).masked_fill(~mask, -1e9).softmax(-1)
            x = layer(weights @ x)
        return x


def test_masks_are_computed_again_where_that_takes_fewer_bytes() -> None:
    model = Causal().double()
    batch = Batch((torch.randn(2, 32, 6, dtype=torch.float64), torch.tensor([32, 7])), {}, None, 2)
    layered = trace(model, batch)
    assert layered.num_layers == 3
    of_x, of_length = 32 * 6 * 8, 8
    assert layered.bytes_into(1, 1) == of_x + of_length, "not the mask of 32 by 32"
    assert layered.bytes_into(2, 1) <= of_x + of_length
    values: Any = batch.args
    for layer in range(3):
        values = build_stage(layered, layer, layer + 1, dict(model.named_parameters()), "cpu").module(*values)
    torch.testing.assert_close(values[0], model(*batch.args))

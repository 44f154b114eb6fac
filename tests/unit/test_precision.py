"""Smaller types: losses are scaled as torch's own scaler does it, and what crosses a cut has the type that was said."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zooid
from tests.unit import layer_models as models
from zooid.core.errors import LayerError
from zooid.layers import Batch, LayeredModel, Mode, autocasting, build_stage, trace_job
from zooid.worker.state.loss_scaling import LossScale

pytestmark = pytest.mark.timeout(60)

CPU = torch.device("cpu")


class Layered(nn.Module):
    """What stays in float32 under autocast, and what does not, side by side: sums, norms, and whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        kept = self.embedding(tokens)
        first = self.first(kept)
        weights = torch.softmax(first, -1)
        second = self.second(self.norm(first * weights)) + kept
        is_large = second.sum(-1, keepdim=True) > 0
        return self.out(torch.where(is_large, second, first).mean(1)).float()  # type: ignore[no-any-return]


MODELS: dict[Callable[[], nn.Module], Callable[[], Tensor]] = {
    Layered: lambda: torch.arange(12).view(2, 6),
    models.ConvNet: lambda: torch.linspace(-1, 1, 72).view(2, 1, 6, 6),
    models.Skip: lambda: torch.linspace(-1, 1, 10).view(2, 5),
    models.ChoosySequence: lambda: torch.ones(2, 5),
    models.Attention: lambda: torch.linspace(-1, 1, 24).view(2, 3, 4),
}


@functools.cache
def traced(build: Callable[[], nn.Module], autocast: str | None = "bf16") -> LayeredModel:
    example = MODELS[build]()
    job = zooid.Job(
        model=build,
        loss=None,
        data=list,
        optimizer=torch.optim.SGD,
        batch_size=2,
        epochs=1,
        autocast=autocast,  # type: ignore[arg-type]
    )
    return trace_job(job, Batch((example,), {}, None, len(example)), CPU)


def really_cross(layered: LayeredModel, model: nn.Module, example: Tensor, mode: Mode) -> list[list[torch.dtype]]:
    """The types at every cut when the layers are run one after the other."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values: tuple[Tensor, ...] = (example,)
    found = []
    with autocasting("bf16", CPU):
        for layer in range(layered.num_layers - 1):
            values = build_stage(layered, layer, layer + 1, state, CPU, mode).module(*values)
            found.append([value.dtype for value in values])
    return found


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("build", [build for build in MODELS if build is not models.ChoosySequence])
def test_types_at_every_cut_are_those_of_a_real_run(build: Callable[[], nn.Module], mode: Mode) -> None:
    example = MODELS[build]()
    layered = traced(build)
    said = [[value.dtype for value in layered.values_into(cut, mode)] for cut in range(1, layered.num_layers)]
    assert said == really_cross(layered, build(), example, mode)
    assert any(torch.bfloat16 in types for types in said), "or autocast was not on"
    plain = traced(build, None)
    assert all(
        value.dtype is not torch.bfloat16 for cut in range(1, plain.num_layers) for value in plain.values_into(cut)
    )


def test_a_block_whose_types_depend_on_values_is_refused_with_the_way_out() -> None:
    with pytest.raises(LayerError, match=r"leave out job\.autocast, or convert the model to a smaller type yourself"):
        traced(models.ChoosySequence)


def test_losses_are_scaled_as_torchs_scaler_does() -> None:
    """After overflows in the beginning, within a long success, and one after the other."""
    steps = [False, False, *[True] * 1999, False, *[True] * 2003, False, True, False, *[True] * 2001]
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(parameter)
    scale = LossScale.for_job("fp16")
    factors = set()
    for number, is_finite in enumerate(steps):
        assert (scale.factor, scale.num_good_steps) == (scaler.get_scale(), scaler.state_dict()["_growth_tracker"]), (
            f"before step {number}"
        )
        parameter.grad = torch.ones(1) if is_finite else torch.full((1,), torch.inf)
        scaler.step(optimizer)
        scaler.update()
        scale = scale.after(is_finite)
        factors.add(scale.factor)
    assert len(factors) == 4


def test_only_fp16_scales() -> None:
    assert LossScale.for_job("bf16") == LossScale.for_job(None) == LossScale(1.0, 0)

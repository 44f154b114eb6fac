"""The first run of a stage before its process joins leaves no trace in what is trained."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zooid.layers import Batch, LayeredModel, Stage, build_stage, trace
from zooid.worker.member import warm_up as warming
from zooid.worker.member.warm_up import warm_up

GRAIN_SIZE = 3


class Counted(nn.Module):
    """Counts its forwards in a buffer, which it replaces."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.count += 1
        return x * 1.0


def model() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), Counted(), nn.Linear(8, 2)]
    return nn.Sequential(*blocks).train()


def role_of(layered: LayeredModel) -> Any:
    """As much of a role as a first run needs."""
    return SimpleNamespace(
        plan=SimpleNamespace(grain_size=GRAIN_SIZE),
        job=SimpleNamespace(autocast=None),
        layered=layered,
        device=torch.device("cpu"),
    )


def stages(layered: LayeredModel, state: dict[str, Tensor]) -> list[Stage]:
    cut = layered.num_layers // 2
    spans = [(0, layered.num_layers), (0, cut), (cut, layered.num_layers)]
    return [
        build_stage(layered, *span, {name: state[name].clone() for name in layered.state_of(*span)}, "cpu")
        for span in spans
    ]


def test_neither_state_nor_random_numbers_change() -> None:
    built = model()
    layered = trace(built, Batch((torch.randn(2, 4),), {}, None, 2))
    state = {name: tensor.detach() for name, tensor in built.state_dict().items()}
    for stage in stages(layered, state):
        runs: list[int] = []
        stage.module.register_forward_hook(lambda *_, runs=runs: runs.append(1))
        random_state = torch.get_rng_state()
        warm_up(role_of(layered), stage)
        assert runs, "it has run"
        assert torch.equal(torch.get_rng_state(), random_state)
        for name, tensor in stage.module.state_dict().items():
            assert torch.equal(tensor, state[name]), name
        assert all(parameter.grad is None for parameter in stage.module.parameters())


def test_a_stage_that_fails_on_zeros_joins_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model()
    layered = trace(built, Batch((torch.randn(2, 4),), {}, None, 2))
    stage, *_ = stages(layered, dict(built.state_dict()))
    told: list[str] = []
    monkeypatch.setattr(warming.logger, "info", lambda text, error: told.append(str(error)))

    def fail(*_: object) -> None:
        raise ValueError("zeros are not allowed")

    stage.module.register_forward_hook(fail)
    warm_up(role_of(layered), stage)
    assert told == ["zeros are not allowed"]
    assert torch.equal(stage.module.state_dict()["1.running_mean"], built.state_dict()["1.running_mean"])

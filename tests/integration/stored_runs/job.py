"""The job of the stored run: a small classifier of made-up points, with batch norm and AdamW."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import zooid


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def build_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    points = torch.randn(96, 4, generator=generator)
    return TensorDataset(points, points[:, :3].argmax(1))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target)


job = zooid.Job(
    model=build_model,
    loss=loss,
    data=build_data,
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-2),
    batch_size=32,
    epochs=4,
)

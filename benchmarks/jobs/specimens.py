"""Jobs around the well-known architectures of `benchmarks.models`."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

import zooid
from benchmarks.models import Specimen, specimens

NUM_SAMPLES = 256


class _Samples(Dataset[tuple[Any, None]]):
    def __init__(self, specimen: Specimen) -> None:
        torch.manual_seed(1)
        self._inputs = specimen.inputs("medium", NUM_SAMPLES)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, None]:
        if isinstance(self._inputs, dict):
            return {name: values[index] for name, values in self._inputs.items()}, None
        return tuple(values[index] for values in self._inputs), None


def specimen_job(name: str, batch_size: int, dropout: float = 0.0) -> zooid.Job:
    """A short job: two steps of one epoch, with AdamW."""
    specimen = specimens()[name]

    def loss(output: Any, target: None) -> Tensor:
        return specimen.loss(output)

    return zooid.Job(
        model=lambda: specimen.build("medium", dropout),
        loss=loss,
        data=lambda: _Samples(specimen),
        optimizer=lambda named: torch.optim.AdamW(named, lr=1e-4),
        batch_size=batch_size,
        epochs=1,
    )

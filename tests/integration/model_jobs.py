"""Jobs around small well-known models in float64, with everything on that a training loop may have."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

import zooid
from benchmarks.models import specimens

NUM_SAMPLES = 56
BATCH_SIZE = 32
GRAIN_SIZE = 4
"""Two steps an epoch: one of 8 grains, one of 6."""
NUM_STEPS = 10
IGNORED = -100


class Samples(Dataset[tuple[Any, Any]]):
    """Inputs of a specimen as samples; `weighted` leaves out a part of each sequence, another in each sample."""

    def __init__(
        self, name: str, *, weighted: bool = False, num_samples: int = NUM_SAMPLES, dtype: torch.dtype = torch.float64
    ) -> None:
        torch.manual_seed(1)
        self._inputs = specimens()[name].inputs("small", num_samples)
        self._weighted = weighted
        self._num_samples = num_samples
        self._dtype = dtype

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not isinstance(self._inputs, dict):
            return tuple(self._cast(values[index]) for values in self._inputs), torch.zeros(())
        inputs = {name: self._cast(values[index]) for name, values in self._inputs.items()}
        if not self._weighted:
            return inputs, None
        target = inputs.pop("labels").clone()
        target[len(target) - index % len(target) :] = IGNORED
        return inputs, target

    def _cast(self, values: Tensor) -> Tensor:
        return values.to(self._dtype) if values.is_floating_point() else values


def model_job(
    name: str, *, weighted: bool = False, dtype: torch.dtype = torch.float64, dropout: float = 0.1, **fields: Any
) -> zooid.Job:
    """With dropout, clipping that bites and a learning rate that changes with every step."""
    specimen = specimens()[name]

    def loss(output: Any, target: Any) -> Any:
        return _token_loss(output.logits, target) if weighted else specimen.loss(output)

    settings: dict[str, Any] = {
        "model": lambda: specimen.build("small", dropout).to(dtype),
        "loss": loss,
        "data": lambda: Samples(name, weighted=weighted, dtype=dtype),
        "optimizer": lambda named: torch.optim.AdamW(named, lr=1e-2),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=NUM_STEPS),
        "clip_norm": 0.05,
        "batch_size": BATCH_SIZE,
        "grain_size": GRAIN_SIZE,
        "epochs": NUM_STEPS // 2,
        "seed": 3,
    }
    return zooid.Job(**{**settings, **fields})


def write_model_job(file: Path, name: str, arguments: str = "") -> Path:
    """A job file; `arguments` is the source text of further arguments of `model_job`."""
    file.write_text(
        f"import torch\nfrom tests.integration import model_jobs\n\njob = model_jobs.model_job({name!r}, {arguments})\n"
    )
    return file


def _token_loss(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Summed over the tokens that count, and their number."""
    total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")
    return total, (target != IGNORED).sum()

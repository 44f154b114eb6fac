"""The jobs of disturbed runs: tiny models that take their time, so that faults hit them in the middle."""

from dataclasses import dataclass

from msgspec.structs import replace

from lab.footprints import SOURCE
from zooid.core.plans.plan import Plan

BATCH_SIZE = 8
GRAIN_SIZE = 2
NUM_SAMPLES = 44
EPOCHS = 4
STEPS_PER_EPOCH = 6
"""The last one has four samples."""
NUM_STEPS = EPOCHS * STEPS_PER_EPOCH
CHECKPOINTS = {"every_steps": 5, "keep": 2}

_TEMPLATE = f'''"""A tiny model that takes its time."""

import torch
from torch import nn
from torch.utils.data import Dataset

import zooid
{SOURCE}

class Samples(Dataset):
    """Reading takes time, and is noted if `is_noted` says so."""

    def __init__(self, num_samples, seed, is_noted):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.rand(num_samples, 6, generator=generator, dtype=torch.float64).to(DTYPE)
        self.targets = torch.rand(num_samples, 2, generator=generator, dtype=torch.float64).to(DTYPE)
        if is_noted:
            self.targets[STEEP] *= 100.0
        self.is_noted = is_noted

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        if self.is_noted:
            note("read", index)
        time.sleep(0.006)
        return self.inputs[index], self.targets[index]


def pause(event):
    time.sleep(0.01)


DTYPE = torch.{{dtype}}
STEEP = {{steep}}
job = zooid.Job(
    model=lambda: nn.Sequential({{layers}}).to(DTYPE),
    loss=nn.functional.mse_loss,
    data=lambda: Samples({NUM_SAMPLES}, 5, True),
    optimizer=lambda named: torch.optim.{{optimizer}},
    batch_size={BATCH_SIZE},
    grain_size={GRAIN_SIZE},
    epochs={EPOCHS},
    seed=3,
    evaluation=lambda: Samples(16, 6, False),
    on_event=pause,
    on_weights=note_applied,
    {{more}}
)
'''


@dataclass(frozen=True)
class JobKind:
    """One job, and how equal its runs are whoever computes what."""

    name: str
    layers: str = "nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Dropout(0.1), nn.Linear(12, 2)"
    dtype: str = "float64"
    optimizer: str = "AdamW(named, lr=1e-2)"
    steep: tuple[int, ...] = ()
    """Samples whose large targets make scaled fp16 gradients overflow."""
    more: str = ""
    """Source text of further fields of the job."""
    is_reproducible: bool = False
    """True if its runs must be bit-equal."""
    tolerance: float = 1e-9
    """Largest difference of a number of the state dict, or of a loss relative to its size."""

    def source(self) -> str:
        return _TEMPLATE.format(
            layers=self.layers,
            dtype=self.dtype,
            optimizer=self.optimizer,
            steep=list(self.steep),
            more=self.more,
        )

    def options(self, plan: Plan) -> Plan:
        """The plan with the options that the job needs."""
        return replace(plan, reproducible=True) if self.is_reproducible else plan


_NORMED = (
    "nn.Linear(6, 12, bias=False), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 12, bias=False), "
    "nn.BatchNorm1d(12, momentum=0.4), nn.Tanh(), nn.Linear(12, 2)"
)
KINDS = {
    kind.name: kind
    for kind in (
        JobKind("plain"),
        # AdamW would divide rounding by rounding, where a gradient is nearly 0, as that of a bias before a norm is
        JobKind("normed", layers=_NORMED, optimizer="SGD(named, lr=1e-2, momentum=0.9)"),
        JobKind(
            "scaled",
            dtype="float32",
            optimizer="SGD(named, lr=1e-3)",
            steep=(17, 30),
            more="autocast='fp16',",
            tolerance=1e-3,
        ),
        JobKind("reproducible", dtype="float32", is_reproducible=True, tolerance=0.0),
    )
}

"""The job that loses members: a small model whose samples take time to read, but hardly any processor time.

So a step takes as long as on machines of its own for each member, although all of them share this one.
"""

from pathlib import Path

from lab.footprints import SOURCE

BATCH_SIZE = 16
GRAIN_SIZE = 2
COMPUTE_S = 0.4
"""What a member takes for its samples of one step, while all members are there."""

MODEL_AND_DATA = f'''import torch
from torch import nn
from torch.utils.data import Dataset
{SOURCE}

class Samples(Dataset):
    """Reading a sample takes as long as computing it would."""

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.rand({{num_samples}}, 32, generator=generator, dtype=torch.float64)
        self.targets = torch.rand({{num_samples}}, 8, generator=generator, dtype=torch.float64)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        note("read", index)
        time.sleep({{sample_s}})
        return self.inputs[index], self.targets[index]


def build_model():
    layers = [nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(64, 8)).double()


def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)

'''
"""What both sides train, once it is formatted with `num_samples` and `sample_s`."""

_JOB = f"""
import zooid

job = zooid.Job(
    model=build_model,
    loss=nn.functional.mse_loss,
    data=Samples,
    optimizer=build_optimizer,
    batch_size={BATCH_SIZE},
    grain_size={GRAIN_SIZE},
    epochs=1,
    seed=3,
    on_weights=note_applied,
)
"""


def sample_s(num_replicas: int) -> float:
    """What one sample takes, so that every member computes for `COMPUTE_S` in a step."""
    return COMPUTE_S / (BATCH_SIZE / num_replicas)


def model_and_data(num_replicas: int, num_steps: int) -> str:
    return MODEL_AND_DATA.format(num_samples=num_steps * BATCH_SIZE, sample_s=sample_s(num_replicas))


def write_job(file: Path, num_replicas: int, num_steps: int) -> Path:
    """A job file in a new folder. In its one epoch, every sample belongs to one step."""
    file.parent.mkdir(parents=True)
    file.write_text(model_and_data(num_replicas, num_steps) + _JOB)
    return file

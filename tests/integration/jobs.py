"""Job files that are small, need no data from elsewhere and can be checked number for number; and plans for them."""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from lab.plans import bare_plan
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Plan, ScheduleName, TransportName
from zooid.layers import CheckedJob, LayeredModel, check_job, faithful_layers

BATCH_SIZE = 40
GRAIN_SIZE = 6
"""Seven grains a step, the last one smaller: neither the grain nor two replicas divide a step evenly."""
COARSE = {"grain_size": "14"}
"""Three grains a step: fewer messages, for stores that take milliseconds for each."""
SEED = 3
BAD_SAMPLE = 19
"""Not among those on which a job is tried before it starts."""
TORN = f"""
class Torn(TensorDataset):
    def __getitem__(self, index):
        if index == {BAD_SAMPLE}:
            raise OSError("the file is torn")
        return super().__getitem__(index)

"""
"""One sample that cannot be read."""
AUGMENTED = """
class Augmented(TensorDataset):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        shift = random.randrange(3)
        return image + shift * torch.rand(1, dtype=image.dtype), (label + shift + np.random.randint(2)) % 10

"""
"""Inputs and targets of one draw: stages that draw apart would train on pairs that do not belong together."""
CUT_INSIDE_SKIP = (2,)
"""Before the third convolution: two values cross, the branch and what it is added to."""

_TEMPLATE = '''"""A small classifier in float64."""

import itertools
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import zooid


class Model(nn.Module):
    """Convolutions around a skip connection, dropout in two layers, and state of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.full((1, 8, 8), 0.5))
        self.register_buffer("unsaved", torch.full((1,), 2.0), persistent=False)
        self.spare = nn.Parameter(torch.ones(3))
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 3, padding=1)
        self.hidden = nn.Linear(64, 24)
        self.frozen = nn.Linear(24, 24)
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(24, 10)

    def forward(self, images):
        values = F.relu(self.first((images - self.center) * self.unsaved))
        change = F.dropout(F.relu(self.second(values)), {dropout}, self.training)
        values = values + self.third(change)
        values = F.max_pool2d(F.relu(values), 2).flatten(1)
        values = F.dropout(F.relu(self.hidden(values)), {dropout}, self.training)
        return self.last(F.relu(self.frozen(values)))


def build_model():
    return Model().double()


def build_data():
    generator = torch.Generator().manual_seed(5)
    images = torch.rand({num_samples}, 1, 8, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(images, torch.randint(10, ({num_samples},), generator=generator))


{extra}
job = zooid.Job(
{fields}
)
'''

_FIELDS = {
    "model": "build_model",
    "loss": "F.cross_entropy",
    "data": "build_data",
    "optimizer": "lambda named: torch.optim.AdamW(named, lr=1e-2)",
    "batch_size": str(BATCH_SIZE),
    "grain_size": str(GRAIN_SIZE),
    "epochs": "5",
    "seed": str(SEED),
}


def write_job(
    file: Path,
    *,
    num_samples: int = 150,
    dropout: float = 0.25,
    extra: str = "",
    fields: Mapping[str, str] | None = None,
) -> Path:
    """A job file; `fields` replace the source text of the job's fields, `extra` is code that they may name."""
    lines = [f"    {name}={source}," for name, source in {**_FIELDS, **(fields or {})}.items()]
    text = _TEMPLATE.format(num_samples=num_samples, dropout=dropout, extra=extra, fields="\n".join(lines))
    file.write_text(text)
    return file


def plan_by_hand(
    job_file: Path,
    *,
    num_replicas: int = 1,
    cuts: tuple[int, ...] | int = CUT_INSIDE_SKIP,
    schedule: ScheduleName = "gpipe",
    ahead: int = 0,
    transport: TransportName = "store",
    shares: tuple[int, ...] = (),
) -> Plan:
    """A plan that was not searched for: stages begin at layer 0 and at the cuts, or are so many of about equal length;
    nothing is predicted."""
    job = load_job(job_file)
    checked, layered = traced_job(job_file)
    num_layers = layered.num_layers
    if isinstance(cuts, int):
        cuts = tuple(num_layers * number // cuts for number in range(1, cuts))
    assert job.grain_size is not None
    return bare_plan(
        job=job_file.stem,
        fingerprint=layered.fingerprint,
        why_whole=layered.why_whole,
        spans=list(pairwise((0, *cuts, num_layers))),
        batch_size=job.batch_size,
        grain_size=job.grain_size,
        num_steps=math.ceil(checked.num_samples / job.batch_size) * job.epochs,
        num_replicas=num_replicas,
        schedule=schedule,
        ahead=ahead,
        transport=transport,
        all_reduce="three_phase" if transport == "store" else "auto",
        shares=shares,
    )


_traced: dict[tuple[Path, bytes], tuple[CheckedJob, LayeredModel]] = {}
"""By path and content of the job file."""


def is_traced(job_file: Path) -> bool:
    """Whether this process knows the layers of a job file as it is now."""
    return (job_file, job_file.read_bytes()) in _traced


def traced_job(job_file: Path) -> tuple[CheckedJob, LayeredModel]:
    """The checked job and its layers, found once in a process."""
    key = job_file, job_file.read_bytes()
    if key not in _traced:
        checked = check_job(load_job(job_file))
        _traced[key] = checked, faithful_layers(checked)
    return _traced[key]

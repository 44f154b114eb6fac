"""The runs that are compared: a job with a number of workers that is fixed, or that AdaBatch doubles.

As in Hydrozoa, §5.4, each worker has the same number of samples of a batch. Fixed runs decay their learning rate by
0.375 whenever the growing run doubles its workers and decays it by 0.75.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

import zooid
from benchmarks.adabatch.recording import Recording
from zooid.core.plans.plan import Limits
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import Links
from zooid.predictor import stage_times

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fashion.py"
REAL_OFFER = "local:aws.lambda.1769"
"""One virtual core, so that each worker has one thread."""
REHEARSED_OFFER = "local:azure.aci.cpu.4x4"
"""A serverless container, as in Hydrozoa."""

_JOB = """from dataclasses import replace

import torch
from torch.utils.data import Subset

import fashion
import zooid


job = replace(
    fashion.job,
    model=lambda: fashion.build_model({width}),
    optimizer=lambda named: torch.optim.Adam(named, lr={rate}),
    data=lambda: Subset(fashion.Clothes("train"), range({num_samples})),
    batch_size={batch_size},
    grain_size={per_worker},
    epochs={epochs},
    evaluate_every={evaluate_every},
    scaling=zooid.scaling.adabatch(every=1, max_batch={max_batch}, per_replica={per_worker}),
)
"""


@dataclass(frozen=True)
class Size:
    """How large the runs of one comparison are."""

    width: int
    """Width of the network."""
    rate: float
    """Learning rate at the beginning."""
    per_worker: int
    """Number of samples of a batch for each worker."""
    num_samples: int
    epochs: int
    most: int
    """The largest number of workers."""
    evaluate_every: int
    """Number of steps of one worker between two evaluations."""


@dataclass(frozen=True)
class Workers:
    """The workers of one run: the first number, and the largest."""

    first: int
    most: int
    evaluate_every: int

    @property
    def name(self) -> str:
        return str(self.first) if self.first == self.most else f"{self.first} to {self.most}"


def compared(size: Size) -> list[Workers]:
    """One worker, the largest number of them, and a run that grows from one to the other."""
    often = max(2, size.evaluate_every // size.most)
    return [
        Workers(1, 1, size.evaluate_every),
        Workers(size.most, size.most, often),
        Workers(1, size.most, size.evaluate_every),
    ]


def write_job(folder: Path, size: Size, workers: Workers) -> Path:
    """Write a job file beside a copy of the example, which it imports."""
    own = folder / f"{workers.first}-to-{workers.most}"
    own.mkdir(parents=True, exist_ok=True)
    shutil.copy(EXAMPLE, own)
    file = own / "clothes.py"
    file.write_text(
        _JOB.format(
            width=size.width,
            rate=size.rate,
            num_samples=size.num_samples,
            batch_size=workers.first * size.per_worker,
            epochs=size.epochs,
            evaluate_every=workers.evaluate_every,
            max_batch=workers.most * size.per_worker,
            per_worker=size.per_worker,
        )
    )
    return file


def train(folder: Path, size: Size, workers: Workers) -> Recording:
    """Train for real, with one thread for each worker."""
    recording = Recording()
    job_file = write_job(folder, size, workers)
    zooid.train(
        job_file,
        store=(job_file.parent / "run").as_uri(),
        limits=Limits(num_replicas=workers.first, num_stages=1, transport="tcp"),
        profile=False,
        on=REAL_OFFER,
        on_event=recording.take,
    )
    return recording


def rehearsal(folder: Path, size: Size, step_s: float) -> Callable[[Workers], Recording]:
    """Profile the job, and return what trains it so that each worker computes for `step_s` seconds in a step."""
    profile = zooid.profile(write_job(folder, size, Workers(1, 1, 100)))
    links = zooid.probe(ends=("peers",), seconds=0.3)
    slower = step_s / _step_s(profile, size.per_worker)

    def rehearse(workers: Workers) -> Recording:
        return _rehearse(folder, size, workers, profile, links, slower)

    return rehearse


def _step_s(profile: Profile, per_worker: int) -> float:
    """How long this machine computes in a step of one worker."""
    times = stage_times(profile, 0, len(profile.layers), per_worker, is_direct=True)
    return times.forward_s + times.backward_s + times.update_s - profile.between_steps_s


def _rehearse(folder: Path, size: Size, workers: Workers, profile: Profile, links: Links, slower: float) -> Recording:
    recording = Recording()
    job_file = write_job(folder, size, workers)
    profile = structs.replace(profile, batch_size=workers.first * size.per_worker)
    limits = Limits(num_replicas=workers.first, num_stages=1, transport="tcp", max_members=workers.first)
    plan = zooid.plan(job_file, measured=profile, limits=limits, links=links, on=REHEARSED_OFFER)
    zooid.rehearse(
        plan,
        profile,
        job=job_file,
        store=(job_file.parent / "run").as_uri(),
        slower=slower,
        on_event=recording.take,
    )
    return recording

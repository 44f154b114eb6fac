"""What training through zooid costs one member: a 1×1 run against a hand-written PyTorch loop on the same data.

One process, one model each for both, the same samples in the same order. Blocks of steps are run in turn: bare, zooid,
bare again; a ratio compares zooid's samples a second with the mean of the two bare blocks around it, and the noise is
what these two differ by. Medians over all rounds.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
from torch.utils.data import DataLoader

from benchmarks.harness import Row, run_benchmark
from lab.runs import run_by_hand
from zooid.core.abort import Abort
from zooid.core.jobs.job import Job, load_job
from zooid.layers import build_model, check_data, default_device
from zooid.schedule.samples import SamplePlan
from zooid.worker.member import train_task

JOB_FILE = Path(__file__).parent / "jobs" / "plain.py"
CPU_JOBS = {"ResNet-like": "resnet,16", "GPT-2-like": "gpt2,8"}
GPU_JOBS = {"ResNet-like": "resnet,256,96,4,64", "GPT-2-like": "gpt2,16,768,12,50000,512"}
WARM_UP_STEPS = 3
NUM_ROUNDS = 15
STEPS_IN_A_BLOCK = 6

Step = Callable[[], None]


def jobs() -> dict[str, str]:
    return GPU_JOBS if torch.cuda.is_available() else CPU_JOBS


def measure(quick: bool) -> Iterator[Row]:
    torch.set_num_threads(1)
    for name, arguments in jobs().items():
        with mock.patch.dict(os.environ, {"ZOOID_BENCHMARK_JOB": arguments}):
            yield compare(name, 4 if quick else NUM_ROUNDS)


def compare(name: str, num_rounds: int) -> Row:
    job = load_job(JOB_FILE)
    bare = bare_steps(job)
    with zooid_steps() as zooid:
        for step in (bare, zooid):
            time_s(step, WARM_UP_STEPS)
        rounds = [(time_s(bare), time_s(zooid), time_s(bare)) for _ in range(num_rounds)]
    ratios = [(before_s + after_s) / 2 / own_s for before_s, own_s, after_s in rounds]
    return {
        "model": name,
        "ratio": statistics.median(ratios),
        "noise": statistics.median(abs(before_s / after_s - 1) for before_s, _, after_s in rounds),
        "step_ms": statistics.median(before_s for before_s, _, _ in rounds) * 1000,
        "samples_per_s": job.batch_size / statistics.median(own_s for _, own_s, _ in rounds),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "one core",
    }


def time_s(step: Step, num_steps: int = STEPS_IN_A_BLOCK) -> float:
    """Of one step, on average over a block of them."""
    synchronize()
    begin_s = time.perf_counter()
    for _ in range(num_steps):
        step()
    synchronize()
    return (time.perf_counter() - begin_s) / num_steps


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def bare_steps(job: Job) -> Step:
    """What a user would write."""
    device = default_device()
    model = build_model(job).to(device)
    optimizer = job.optimizer(list(model.named_parameters()))
    data = check_data(job)
    order = SamplePlan.of(job, len(data), job.batch_size)
    batches = ([int(index) for grain in order.grains(step) for index in grain] for step in range(order.num_steps))
    loader = iter(
        DataLoader(
            data, batch_sampler=_Batches(batches), num_workers=job.data_workers, pin_memory=device.type == "cuda"
        )
    )
    loss_of = job.loss
    assert loss_of is not None

    def step() -> None:
        inputs, target = next(loader)
        inputs, target = inputs.to(device, non_blocking=True), target.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), target)
        loss.backward()
        optimizer.step()
        if device.type == "cpu":
            loss.item()  # a loop that prints its loss

    return step


class _Batches:
    def __init__(self, batches: Iterator[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches


@contextlib.contextmanager
def zooid_steps() -> Iterator[Step]:
    """A member of a run of one."""
    with run_by_hand(JOB_FILE, 1) as (store, (spec,)):
        abort = Abort()
        with (
            train_task.open_member(spec, store, abort) as member,
            member.under(member.first_roster) as (trainer, _),
        ):
            yield trainer.run_step
        abort.set("the benchmark ends")


if __name__ == "__main__":
    run_benchmark("overhead of training through zooid", measure, lambda quick: len(jobs()))

"""What the option `reproducible` costs: steps with and without it in turn, by the same members over TCP.

Four members have 25 MB of gradients, and sleep while they would compute, since this machine may have fewer cores.
Two members compute in earnest. Both run everything of a step that the option changes: backwards, sums of gradients,
reduces that begin early, the norm, and an update by AdamW. The last line is JSON, with medians over all turns.
"""

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

import zooid
import zooid.comm  # registers the backend
from zooid.schedule.samples import even_shares, split_grains
from zooid.worker.gradients.bucket_gradients import ReplicaReduction
from zooid.worker.state.training_state import TrainedStage, TrainingState

NUM_GRAINS = 8
NUM_LAYERS = 8
ROWS, COLUMNS = 768, 1024
GRAIN_S = {"forward": 0.1, "backward": 0.2}
"""What a member sleeps for each grain: a core with 20 GFLOP/s takes as long for 160 tokens of a transformer of this
size."""
GRAIN_SIZE = 64
NUM_TURNS = 8
SIDES = ("plain", "reproducible")

Times = dict[str, list[float]]


class _Slept(torch.autograd.Function):
    """A layer that takes its time, and whose gradient is written as a real one is."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        time.sleep(GRAIN_S["backward"] / NUM_LAYERS)
        return gradient, torch.full_like(ctx.weight, 1e-3)


class Layers(nn.Module):
    """Layers that sleep or compute."""

    def __init__(self, *, sleeps: bool) -> None:
        super().__init__()
        shapes = [(ROWS, COLUMNS) if number % 2 else (COLUMNS, ROWS) for number in range(NUM_LAYERS)]
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(shape) / 30) for shape in shapes])
        self._sleeps = sleeps

    def forward(self, values: Tensor) -> Tensor:
        if self._sleeps:
            time.sleep(GRAIN_S["forward"])
        for weight in self.weights:
            values = _Slept.apply(values, weight) if self._sleeps else torch.tanh(values @ weight.t())  # type: ignore[no-untyped-call]
        return values.square().sum()


class Side:
    """One member's steps, with the option or without."""

    def __init__(self, replica: int, num_replicas: int, *, sleeps: bool, reproducible: bool) -> None:
        torch.manual_seed(1)
        self._module = Layers(sleeps=sleeps)
        self._inputs = torch.zeros(1) if sleeps else torch.randn(GRAIN_SIZE, ROWS)
        names = tuple(name for name, _ in self._module.named_parameters())[::-1]
        job = zooid.Job(
            model=nn.Module,
            loss=None,
            data=list,
            optimizer=lambda named: torch.optim.AdamW(named, lr=1e-4),
            batch_size=NUM_GRAINS,
            epochs=1,
        )
        group = dist.group.WORLD
        assert group is not None
        reduction = ReplicaReduction(
            group, replica, is_direct=True, num_grains=NUM_GRAINS, is_reproducible=reproducible
        )
        self._state = TrainingState(
            TrainedStage(self._module, names, frozenset(), has_loss=True), job, reduction=reduction
        )
        self._grains = split_grains(NUM_GRAINS, even_shares(NUM_GRAINS, num_replicas))
        self._own = self._grains[replica]

    def step(self) -> None:
        state = self._state
        state.begin(self._grains)
        for grain in self._own:
            state.begin_grain()
            loss = self._module(self._inputs)
            state.end_grain(grain)
            state.begin_backward(grain, is_last=grain == self._own[-1])
            loss.backward()
            state.end_backward(grain)
        losses = torch.zeros(NUM_GRAINS, 2, dtype=torch.float64)
        works = [state.reduce(number, losses) for number in range(state.num_buckets)]
        for work in (work for own in works for work in own):
            work.wait()
        float(state.square_sum())
        dist.all_reduce(torch.zeros(8, dtype=torch.float64))
        state.apply(1.0)


def member(rank: int, num_members: int, sleeps: bool, url: str, told: "SimpleQueue[tuple[Times, Times]]") -> None:
    """Run both sides in turn, each first as often as the other; the first member tells how long steps took."""
    torch.set_num_threads(1)
    dist.init_process_group("zooid", init_method=url, rank=rank, world_size=num_members)
    sides = {name: Side(rank, num_members, sleeps=sleeps, reproducible=name == "reproducible") for name in SIDES}
    times_s: Times = {name: [] for name in SIDES}
    cpu_times_s: Times = {name: [] for name in SIDES}
    for turn in range(NUM_TURNS + 1):
        for name in SIDES if turn % 2 else reversed(SIDES):
            dist.barrier()
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            sides[name].step()
            cpu_s = torch.tensor([time.process_time() - begin_cpu_s])
            dist.all_reduce(cpu_s)
            times_s[name].append(time.perf_counter() - begin_s)
            cpu_times_s[name].append(float(cpu_s))
    if rank == 0:
        told.put((times_s, cpu_times_s))
    dist.barrier()
    dist.destroy_process_group()


def compare(num_members: int, *, sleeps: bool) -> dict[str, float]:
    """Medians of both sides, and what the option costs as a part of a step.

    Where other work shares the cores, the shortest steps and the processor time of all members say more.
    """
    context = multiprocessing.get_context("spawn")
    told: SimpleQueue[tuple[Times, Times]] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/meeting?transport=tcp"
        members = [
            context.Process(target=member, args=(rank, num_members, sleeps, url, told)) for rank in range(num_members)
        ]
        for process in members:
            process.start()
        for process in members:
            process.join()
    failed = [process.exitcode for process in members if process.exitcode]
    assert not failed, f"members have ended with {failed}"
    times_s, cpu_times_s = told.get()
    plain_s, reproducible_s = (statistics.median(times_s[name][1:]) for name in SIDES)  # the first is a warm-up
    return {
        "plain_step_s": plain_s,
        "reproducible_step_s": reproducible_s,
        "overhead": reproducible_s / plain_s - 1,
        **{f"least_{name}_step_s": min(times_s[name][1:]) for name in SIDES},
        **{f"{name}_cpu_s": statistics.median(cpu_times_s[name][1:]) for name in SIDES},
    }


def main(arguments: Sequence[str] = ()) -> None:
    found = compare(4, sleeps=True)
    print(f"four members that sleep: {found}", file=sys.stderr)
    print(json.dumps({**found, "two_members_computing": compare(2, sleeps=False)}))


if __name__ == "__main__":
    main()

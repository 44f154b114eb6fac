"""One of two processes that train the same two stages in turn: by zooid over TCP, and by stock pipelining over Gloo.

`python -m lab.pair SPEC_URL SCHEDULE NUM_ROUNDS`; the first prints the times of both, by round, as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from zooid.core.abort import Abort
from zooid.core.jobs.job import load_job
from zooid.core.plans.plan import Plan
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.spec import WorkerSpec
from zooid.layers import build_model, build_stage, check_data, collate, trace_job
from zooid.schedule.samples import SamplePlan
from zooid.store import open_store
from zooid.worker.member import train_task

WARM_UP_STEPS = 3
STEPS_IN_A_BLOCK = 4

Step = Callable[[], None]


class OneTensor(nn.Module):
    """A stage as stock pipelining likes it: a tensor in, a tensor out."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        (result,) = self.module(value)
        return result  # type: ignore[no-any-return]


def main(spec_url: str, schedule: str, num_rounds: int) -> None:
    store_url, key = keys.split_spec_url(spec_url)
    store = open_store(store_url)
    spec = decode_record(bytes(store.get(key)), WorkerSpec, key)
    torch.set_num_threads(1)
    abort = Abort()
    stage = int(spec.member.removeprefix("r0s"))
    dist.init_process_group("gloo", init_method=f"{store_url}/stock", rank=stage, world_size=2)
    with train_task.open_member(spec, store, abort) as member, member.under(member.first_roster) as (trainer, _):
        plan = decode_record(bytes(store.get(keys.plan(0))), Plan, keys.plan(0))
        stock = stock_steps(spec, plan, schedule, dist.group.WORLD)
        steps = {"zooid": trainer.run_step, "stock": stock}
        for step in steps.values():
            time_s(step, WARM_UP_STEPS)
        times_s: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(num_rounds):
            for name in steps if number % 2 else reversed(steps):
                times_s[name].append(time_s(steps[name], STEPS_IN_A_BLOCK))
        if dist.get_rank() == 0:
            print(json.dumps(times_s), flush=True)
    abort.set("done")
    dist.destroy_process_group()


def time_s(step: Step, num_steps: int) -> float:
    """Of one step, from when both are there until both are done."""
    dist.barrier()
    begin_s = time.perf_counter()
    for _ in range(num_steps):
        step()
    dist.barrier()
    return (time.perf_counter() - begin_s) / num_steps


def stock_steps(spec: WorkerSpec, plan: Plan, schedule: str, group: Any) -> Step:
    """The same stage of the same model on the same samples, by torch's own schedules."""
    job = load_job(spec.job_file)
    data = check_data(job)
    layered = trace_job(job, collate(data, range(2), job))
    model = build_model(job)
    own = plan.stages[dist.get_rank()]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    module = OneTensor(build_stage(layered, own.first_layer, own.end_layer, state, "cpu").module)
    stage = PipelineStage(module, dist.get_rank(), 2, torch.device("cpu"), group=group)
    optimizer = job.optimizer(list(module.named_parameters()))
    num_grains = plan.batch_size // plan.grain_size
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    pipeline = kind(stage, num_grains, loss_fn=job.loss)
    samples = SamplePlan.of(job, len(data), plan.grain_size)
    count = 0

    def step() -> None:
        nonlocal count
        batch = collate(data, [index for grain in samples.grains(count % samples.num_steps) for index in grain], job)
        count += 1
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            pipeline.step(*batch.args)
        else:
            pipeline.step(target=batch.target, losses=[])
        optimizer.step()

    return step


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

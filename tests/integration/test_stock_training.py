"""PyTorch's own ways of training give the same numbers on zooid as on Gloo, and as in a single process."""

import functools
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import zooid.comm
from tests.integration.ranks import Program, Rank, Way, run

pytestmark = pytest.mark.timeout(120)

Numbers = dict[str, npt.NDArray[Any]]

TOLERANCE = 1e-12
NUM_STEPS = 3
BATCH_SIZE = 6
"""Of one rank."""
BUCKET_MB = 0.01
"""Less than two layers of `Net`, so that there are several buckets."""
OVERLAP_LIMIT_S = 20.0

ways = pytest.mark.parametrize("way", ["store", "tcp"])
groups = pytest.mark.parametrize(("way", "size"), [("store", 2), ("tcp", 3)])


def numbers(tensors: dict[str, Any]) -> Numbers:
    """Copies, which can be sent from process to process."""
    return {name: tensor.detach().double().numpy().copy() for name, tensor in tensors.items()}


def largest_difference(one: Numbers, other: Numbers) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def ranks_agree(results: list[Numbers]) -> bool:
    return all(largest_difference(results[0], other) == 0 for other in results[1:])


def train(way: Way, size: int, train_on: Program, *arguments: object) -> list[Any]:
    """What each rank of a group of its own returns."""
    with TemporaryDirectory() as folder:
        return run(in_group, size, way, f"{folder}/group", train_on, *arguments, limit_s=90)


def in_group(rank: Rank, way: Way, path: str, train_on: Program, *arguments: object) -> Any:
    rank.join(way, path)
    result = train_on(rank, *arguments)  # has let go of the group when it returns, which Gloo needs to end
    dist.destroy_process_group()
    return result


on_gloo = functools.cache(functools.partial(train, "gloo"))


# Data parallelism


class Net(nn.Module):
    """Layers that are all used, and one that a caller may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 32)
        self.middle = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)])
        self.optional = nn.Linear(32, 32)
        self.last = nn.Linear(32, 5)

    def forward(self, inputs: torch.Tensor, is_optional_used: bool = True) -> torch.Tensor:
        values = self.middle(torch.tanh(self.first(inputs)))
        if is_optional_used:
            values = values + self.optional(values)
        out: torch.Tensor = self.last(values)
        return out


def build_net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def batch_of(step: int, rank: int, part: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10_000 * step + 100 * rank + part)
    return torch.randn(BATCH_SIZE, 12, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Variant:
    """One way to use DistributedDataParallel."""

    options: dict[str, Any] = field(default_factory=dict)
    hook: Callable[[Any, Any], torch.futures.Future[torch.Tensor]] | None = None
    num_parts: int = 1
    """Batches that are accumulated in a step."""
    is_optional_used: Callable[[int, int], bool] = lambda step, rank: True
    is_exact: bool = True
    """Whether it computes what a single process would."""


def bf16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """PyTorch's own, under a name that DDP does not reserve for GPUs."""
    return default_hooks.bf16_compress_hook(state, bucket)


VARIANTS = {
    "plain": Variant(),
    "unused parameters": Variant(
        {"find_unused_parameters": True}, is_optional_used=lambda step, rank: step + rank == 2
    ),
    "gradients as views": Variant({"gradient_as_bucket_view": True}),
    "accumulation": Variant(num_parts=3),
    "static graph": Variant({"static_graph": True}),
    "bf16 hook": Variant(hook=bf16_hook, is_exact=False),
    "fp16 hook": Variant(hook=default_hooks.fp16_compress_hook, is_exact=False),
}


def train_data_parallel(rank: Rank, name: str) -> tuple[Numbers, int]:
    """Gradients of every step and the weights at the end; and how many buckets there were."""
    variant = VARIANTS[name]
    ddp = DistributedDataParallel(build_net(), bucket_cap_mb=BUCKET_MB, **variant.options)
    if variant.hook is not None:
        ddp.register_comm_hook(None, variant.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    result: Numbers = {}
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for part in range(variant.num_parts):
            is_last = part == variant.num_parts - 1
            with nullcontext() if is_last else ddp.no_sync():
                used = variant.is_optional_used(step, rank.number)
                ddp(batch_of(step, rank.number, part), used).square().mean().backward()
        result |= gradients_of(ddp.module, step)
        optimizer.step()
    result |= numbers(ddp.module.state_dict())
    facts = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return result, (facts.get("rebuilt_bucket_sizes") or facts["bucket_sizes"]).count(",") + 1


def train_alone(name: str, size: int) -> Numbers:
    """What a single process computes on all ranks' samples."""
    variant = VARIANTS[name]
    net = build_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    result: Numbers = {}
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            for part in range(variant.num_parts):
                out = net(batch_of(step, rank, part), variant.is_optional_used(step, rank))
                (out.square().mean() / size).backward()
        result |= gradients_of(net, step)
        optimizer.step()
    return result | numbers(net.state_dict())


def gradients_of(net: nn.Module, step: int) -> Numbers:
    return numbers(
        {
            f"{name} in step {step}": torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in net.named_parameters()
        }
    )


@groups
@pytest.mark.parametrize("name", VARIANTS)
def test_data_parallelism(way: Way, size: int, name: str) -> None:
    results = train(way, size, train_data_parallel, name)
    assert name == "static graph" or min(num_buckets for _, num_buckets in results) >= 3  # DDP logs no number there
    weights = [{key: value for key, value in result.items() if "in step" not in key} for result, _ in results]
    assert ranks_agree(weights)
    for (own, _), (gloo, _) in zip(results, on_gloo(size, train_data_parallel, name), strict=True):
        # Two numbers have one sum; of three, each backend adds two first, in bf16 too where a hook says so.
        assert largest_difference(own, gloo) <= (0 if size == 2 else TOLERANCE if VARIANTS[name].is_exact else 1e-2)
    if VARIANTS[name].is_exact:
        assert largest_difference(results[0][0], train_alone(name, size)) <= TOLERANCE


def train_on_uneven_inputs(rank: Rank) -> Numbers:
    """Rank r has r more batches than rank 0."""
    ddp = DistributedDataParallel(build_net(), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with ddp.join():
        for step in range(2 + rank.number):
            optimizer.zero_grad()
            ddp(batch_of(step, rank.number, 0)).square().mean().backward()
            optimizer.step()
    return numbers(ddp.module.state_dict())


@ways
def test_uneven_inputs(way: Way) -> None:
    results = train(way, 3, train_on_uneven_inputs)
    assert ranks_agree(results)
    assert largest_difference(results[0], on_gloo(3, train_on_uneven_inputs)[0]) <= TOLERANCE


class Gate(torch.autograd.Function):
    """Does nothing but call back when gradients pass it."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, on_backward: Callable[[], None]) -> torch.Tensor:
        context.on_backward = on_backward
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.on_backward()
        return gradient, None


class GatedNet(nn.Module):
    """The last gradients of a step, those of the first layer, come when the gate lets them."""

    def __init__(self, on_backward: Callable[[], None]) -> None:
        super().__init__()
        self.first = nn.Linear(12, 32)
        self.rest = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
        self._on_backward = on_backward

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.rest(Gate.apply(self.first(inputs), self._on_backward))  # type: ignore[no-untyped-call]
        return out


def count_messages_before_last_gradient(rank: Rank) -> list[int]:
    """Of every step: the buckets that have come from the other rank when the first layer has no gradient yet.

    DDP makes its buckets in the first step, which has but one.
    """
    arrived: list[int] = []
    before = step = 0

    def await_first_bucket() -> None:
        if step == 0:
            return
        deadline_s = time.monotonic() + OVERLAP_LIMIT_S
        while zooid.comm.statistics().num_messages_received == before and time.monotonic() < deadline_s:
            time.sleep(0.001)
        arrived.append(zooid.comm.statistics().num_messages_received - before)

    ddp = DistributedDataParallel(GatedNet(await_first_bucket), bucket_cap_mb=0.004)
    for step in range(NUM_STEPS):
        before = zooid.comm.statistics().num_messages_received
        ddp(batch_of(step, rank.number, 0).float()).square().mean().backward()
    return arrived


@ways
def test_buckets_arrive_while_the_backward_pass_still_runs(way: Way) -> None:
    for arrived in train(way, 2, count_messages_before_last_gradient):
        assert len(arrived) == NUM_STEPS - 1
        assert min(arrived) >= 1


# Pipelines


def pipeline_layers(count: int) -> list[nn.Sequential]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double() for _ in range(count)]


def pipeline_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(2, 8 * size, 6, generator=generator, dtype=torch.float64)
    return inputs, targets


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum()


def train_pipeline(rank: Rank, name: str) -> Numbers:
    """Gradients of this rank's stages after two steps."""
    schedule_class: Any = getattr(pipelining, name)
    is_looped = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
    num_stages = rank.size * (2 if is_looped else 1)
    own = range(rank.number, num_stages, rank.size)
    layers = pipeline_layers(num_stages)
    stages = [pipelining.PipelineStage(layers[i], i, num_stages, torch.device("cpu")) for i in own]
    schedule = schedule_class(
        stages if is_looped else stages[0], 2 * rank.size, loss_fn=squared_error, scale_grads=False
    )
    inputs, targets = pipeline_batch(rank.size)
    for _ in range(2):
        first = (inputs,) if rank.number == 0 else ()
        last = {"target": targets} if rank.number == rank.size - 1 else {}
        schedule.step(*first, **last)
    return {key: value for i in own for key, value in gradients_of(layers[i], i).items()}


@groups
@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_pipelines(way: Way, size: int, name: str) -> None:
    results = train(way, size, train_pipeline, name)
    for own, gloo in zip(results, on_gloo(size, train_pipeline, name), strict=True):
        assert largest_difference(own, gloo) == 0
    layers = pipeline_layers(sum(len(result) for result in results) // 2)  # a weight and a bias each
    inputs, targets = pipeline_batch(size)
    for _ in range(2):
        squared_error(nn.Sequential(*layers)(inputs), targets).backward()  # type: ignore[no-untyped-call]
    whole = {key: value for i, layer in enumerate(layers) for key, value in gradients_of(layer, i).items()}
    parts = {key: value for result in results for key, value in result.items()}
    assert largest_difference(parts, whole) <= TOLERANCE


# Sharded data parallelism


def train_sharded(rank: Rank, replicas: int, is_mixed: bool) -> Numbers:
    """Whole weights after a few steps of FSDP2, with `replicas` of the shards."""
    mesh = init_device_mesh("cpu", (replicas, rank.size // replicas), mesh_dim_names=("replicate", "shard"))
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mp_policy": mixed} if is_mixed else {}
    options["mesh"] = mesh if replicas > 1 else mesh["shard"]
    net = build_net()
    for part in (net.first, net.middle, net.last):
        fully_shard(part, **options)
    fully_shard(net, **options)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        net(batch_of(step, rank.number, 0)).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    return numbers({name: value.full_tensor() for name, value in net.state_dict().items()})


def train_unsharded(size: int) -> Numbers:
    net = build_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            (net(batch_of(step, rank, 0)).square().mean() / size).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    return numbers(net.state_dict())


@ways
@pytest.mark.parametrize(
    ("size", "replicas", "is_mixed"),
    [(2, 1, False), (3, 1, False), (2, 1, True), (4, 2, False)],
    ids=["2 ranks", "3 ranks", "mixed precision", "hybrid"],
)
def test_sharded_data_parallelism(way: Way, size: int, replicas: int, is_mixed: bool) -> None:
    results = train(way, size, train_sharded, replicas, is_mixed)
    assert ranks_agree(results)
    gloo = on_gloo(size, train_sharded, replicas, is_mixed)
    assert largest_difference(results[0], gloo[0]) <= (0 if size == 2 else TOLERANCE)
    if not is_mixed:
        assert largest_difference(results[0], train_unsharded(size)) <= 1e-9  # AdamW divides by tiny numbers

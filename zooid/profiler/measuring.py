"""Makes the profile of a job: checks it, measures its layers at several grain sizes, and the way to the store."""

import datetime
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from zooid.comm.tensors import Reduction, wire_view
from zooid.core.environment import profile_effort
from zooid.core.errors import JobError
from zooid.core.job import Job
from zooid.core.machine import forget_peak, memory_bytes, num_cores, peak_resident_bytes
from zooid.core.profile import Bytes, DeviceKind, GradientReady, LayerProfile, Profile, Spread, TiedParameter, TimePoint
from zooid.core.spec import ProfilerSpec
from zooid.core.version import VERSION
from zooid.layers import Batch, CheckedJob, LayeredModel, check_job, collate, faithful_layers
from zooid.predictor import grain_bytes
from zooid.profiler import memory
from zooid.profiler.company import busy_neighbours
from zooid.profiler.copying import measure_copies
from zooid.profiler.fitting import largest_that_fits, runs_on_gpu, runs_within
from zooid.profiler.interference import MessageCost, measure_message_cost
from zooid.profiler.knee import knee
from zooid.profiler.links import probe_store
from zooid.profiler.timing import LayerTimer, Measured, is_throttled
from zooid.store import ObjectStore

GRAINS_PER_BATCH = (1, 2, 4, 8, 16, 32)
"""Grain sizes are probed as these parts of the batch, as far as they fit."""
SECONDS_ALONE = 8.0
SECONDS_CROWDED = 4.0
GRAINS_UNDER_WAY = 5
LEAST_KEPT_BYTES = 2**24
"""Less says nothing about an allocator."""
MOST_OVERHEAD = 0.5
_SURELY_FITS = 0.75
"""Of the memory; what needs less by prediction is not tried."""

Progress = Callable[[int, int], None]


def measure_job(job: Job, spec: ProfilerSpec, store: ObjectStore, progress: Progress) -> Profile:
    """The whole profile; `progress` is told how many of how many parts are done. A known profile that still holds is
    returned as it is."""
    num_parts = 7
    progress(0, num_parts)
    effort = profile_effort()
    device = _device(spec.device)
    checked = check_job(job)
    layered = faithful_layers(checked)
    startup_cpu_s = time.process_time()
    progress(1, num_parts)
    kind = _device_kind(device)
    if spec.known is not None and still_holds(spec.known, layered, job, checked.num_samples, kind, spec.site):
        progress(num_parts, num_parts)
        return spec.known
    checked.model.to(device)
    timer = LayerTimer(job, layered, checked.model, device)
    sizes = _grain_sizes(job)
    held = _measure_memory(timer, checked, sizes)
    largest = _largest_grain(timer, checked, held, job.grain_size or job.batch_size, spec.memory_bytes)
    progress(2, num_parts)
    batches = [collate(checked.data, range(size), checked.job) for size in sizes if size <= largest]
    if not batches:
        raise JobError(
            f"a grain of {sizes[0]} samples does not fit into memory on {spec.site}; the largest that does has "
            f"{largest}: give a larger batch size, a smaller job.grain_size, or an offer with more memory"
        )
    alone = timer.measure(batches, seconds=SECONDS_ALONE * effort)
    progress(3, num_parts)
    crowded: list[Measured] = []
    if spec.num_neighbours and device.type == "cpu":
        with busy_neighbours(spec.num_neighbours, partial(timer.run_once, batches[len(batches) // 2])):
            crowded = timer.measure(batches, seconds=SECONDS_CROWDED * effort, num_rounds=2)
    progress(4, num_parts)
    gradients = timer.gradients(batches[len(alone) // 2])
    optimizer_s, optimizer_bytes = _measure_optimizer(checked)
    reduce_s = _measure_reducing(checked)
    load_s = _measure_loading(checked, batches[-1].num_samples)
    progress(5, num_parts)
    cost = MessageCost(0.0, 0.0)
    if device.type == "cpu":
        cost = measure_message_cost(partial(timer.run_once, batches[0]), store, spec.num_neighbours)
    progress(6, num_parts)
    links = probe_store(store, spec.site, cost)
    progress(7, num_parts)
    of_layers = _by_layer([m.points() for m in alone]), _by_layer([m.points() for m in crowded])
    layers = tuple(
        _layer_profile(layered, layer, held.lines(layer), of_layers, gradients[layer])
        for layer in range(layered.num_layers)
    )
    tied = tuple(
        TiedParameter(name=name, num_bytes=layered.state_bytes(users[0], users[0] + 1)[name], layers=users)
        for name, users in sorted(layered.tied.items())
    )
    parameter_bytes = sum(p.numel() * p.element_size() for p in checked.model.parameters()) or 1
    return Profile(
        job=Path(spec.job_file).stem,
        model_fingerprint=layered.fingerprint,
        why_whole=layered.why_whole,
        autocast=job.autocast,
        zooid_version=VERSION,
        torch_version=str(torch.__version__),
        date=datetime.date.today().isoformat(),
        device=kind,
        num_samples=checked.num_samples,
        batch_size=job.batch_size,
        largest_grain=largest,
        knee=knee([(m.num_samples, statistics.median(m.steps_s)) for m in alone], largest),
        epochs=job.epochs,
        load_s_per_sample=load_s,
        optimizer_s_per_byte=optimizer_s / parameter_bytes,
        optimizer_bytes_per_parameter_byte=optimizer_bytes / parameter_bytes,
        reduce_s_per_byte=reduce_s / parameter_bytes,
        startup_cpu_s=startup_cpu_s,
        runtime_bytes=held.runtime_bytes,
        inputs=Bytes(per_sample=layered.bytes_into(0, 1)),
        memory_overhead=held.overhead,
        spread=Spread(
            of_steps=statistics.median(m.step_spread for m in alone),
            of_runs=statistics.median(m.run_spread for m in alone),
        ),
        layers=layers,
        tied=tied,
        links=links,
    )


def still_holds(
    known: Profile, layered: LayeredModel, job: Job, num_samples: int, device: DeviceKind, site: str
) -> bool:
    """Whether nothing has changed since a profile was made: model, job, versions, device and where it stands."""
    return (
        known.model_fingerprint == layered.fingerprint
        and (known.zooid_version, known.torch_version) == (VERSION, str(torch.__version__))
        and (known.batch_size, known.epochs, known.num_samples) == (job.batch_size, job.epochs, num_samples)
        and known.autocast == job.autocast
        and (job.grain_size is None or known.layers[0].points[-1].num_samples == job.grain_size)
        and (known.device.name, known.device.num_threads) == (device.name, device.num_threads)
        and any(site in (link.from_site, link.to_site) for link in known.links)
        and not known.is_estimate
    )


@dataclass(frozen=True)
class _Held:
    """Memory of every layer at two grain sizes, and of the process around them."""

    small: tuple[int, list[memory.LayerMemory]]
    large: tuple[int, list[memory.LayerMemory]]
    runtime_bytes: int = 0
    overhead: float = 0.0
    """Of the allocator, when several grains are under way."""

    def lines(self, layer: int) -> tuple[Bytes, Bytes, Bytes]:
        """What a layer keeps, and its peaks in forward and backward, by grain size."""
        (few, at_few), (many, at_many) = self.small, self.large

        def line(field: str) -> Bytes:
            return memory.line_through((few, getattr(at_few[layer], field)), (many, getattr(at_many[layer], field)))

        return line("kept"), line("forward_peak"), line("backward_peak")

    def step_bytes(self, num_samples: int) -> float:
        """The most that a step of the whole model needs on top of weights and gradients."""
        return grain_bytes((self.lines(layer) for layer in range(len(self.small[1]))), num_samples)[1]


def _measure_memory(timer: LayerTimer, checked: CheckedJob, sizes: Sequence[int]) -> _Held:
    """At a small and at a larger grain size, of those to be probed; the larger tells what the process itself needs."""
    few, many = sizes[0], sizes[min(len(sizes) - 1, 2)]
    state = [*timer.stage.module.parameters(), *timer.stage.module.buffers()]

    def at(size: int) -> list[memory.LayerMemory]:
        batch = collate(checked.data, range(size), checked.job).to(timer.device)
        timer.run_once(batch)  # gradients of parameters have to be there
        before = [*state, *(p.grad for p in timer.stage.module.parameters() if p.grad is not None)]
        before += [value for value in (*batch.args, *batch.kwargs.values()) if isinstance(value, torch.Tensor)]
        return memory.measure_layers(timer.num_layers, before, lambda: timer.forward(batch))

    held = _Held((few, at(few)), (many, at(many)))
    batch = collate(checked.data, range(many), checked.job)
    counted = held.step_bytes(many) + 2 * sum(tensor.numel() * tensor.element_size() for tensor in state)
    if timer.device.type == "cuda":
        return _Held(held.small, held.large, _gpu_runtime_bytes(timer, batch, counted))
    one = _peak_of(timer, batch, 1)
    several = _peak_of(timer, batch, GRAINS_UNDER_WAY)
    kept = (GRAINS_UNDER_WAY - 1) * sum(layer.kept for layer in held.large[1])
    overhead = min(MOST_OVERHEAD, max(0.0, (several - one) / kept - 1)) if kept > LEAST_KEPT_BYTES else 0.0
    return _Held(held.small, held.large, max(0, round(one - counted)), overhead)


def _peak_of(timer: LayerTimer, batch: Batch, num_grains: int) -> int:
    """The most memory that this process has while so many grains are under way, as in a pipeline."""
    forget_peak()
    losses = [timer.forward(batch) for _ in range(num_grains)]
    while losses:
        torch.autograd.backward(losses.pop())
    return peak_resident_bytes()


def _gpu_runtime_bytes(timer: LayerTimer, batch: Batch, counted: float) -> int:
    """What the driver keeps for this process, and what operations use beside their results."""
    torch.cuda.reset_peak_memory_stats()
    timer.run_once(batch)
    free, total = torch.cuda.mem_get_info()
    of_driver = total - free - torch.cuda.memory_reserved()
    return round(of_driver + max(0.0, torch.cuda.max_memory_allocated() - counted))


def _largest_grain(timer: LayerTimer, checked: CheckedJob, held: _Held, most: int, allowed: int | None) -> int:
    """What fits for certain is not tried; where it is close, the device itself is asked."""
    if timer.device.type == "cuda":
        allowed = torch.cuda.get_device_properties(timer.device).total_memory
    limit = min(allowed or memory_bytes(), memory_bytes()) if timer.device.type == "cpu" else allowed
    assert limit is not None
    if held.runtime_bytes + held.step_bytes(most) < _SURELY_FITS * limit:
        return most

    def fits(size: int) -> bool:
        work = partial(_run_on, timer, checked, size)
        return runs_on_gpu(work) if timer.device.type == "cuda" else runs_within(work, limit)

    return largest_that_fits(most, fits)


def _run_on(timer: LayerTimer, checked: CheckedJob, size: int) -> None:
    timer.run_once(collate(checked.data, range(size), checked.job))


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def _device_kind(device: torch.device) -> DeviceKind:
    is_gpu = device.type == "cuda"
    return DeviceKind(
        kind="cuda" if is_gpu else "cpu",
        name=torch.cuda.get_device_name(device) if is_gpu else platform.processor() or platform.machine(),
        num_threads=torch.get_num_threads(),
        num_cores=float(num_cores()),
        score=_score(device),
        copies=measure_copies(device),
    )


def _score(device: torch.device) -> float:
    """Floating-point operations a second of a product of two matrices, in float32."""
    side = 8192 if device.type == "cuda" else 768
    left, right = torch.randn(2, side, side, device=device)
    times = []
    for _ in range(5):
        begin_s = time.perf_counter()
        left @ right
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin_s)
    return float(2 * side**3 / min(times))


def _grain_sizes(job: Job) -> list[int]:
    if job.grain_size is not None:
        return [job.grain_size]
    return sorted({max(1, job.batch_size // parts) for parts in GRAINS_PER_BATCH})


def _by_layer(sizes: list[list[TimePoint]]) -> list[tuple[TimePoint, ...]]:
    return [tuple(points) for points in zip(*sizes, strict=True)]


def _layer_profile(
    layered: LayeredModel,
    layer: int,
    held: tuple[Bytes, Bytes, Bytes],
    points: tuple[list[tuple[TimePoint, ...]], list[tuple[TimePoint, ...]]],
    gradients: list[GradientReady],
) -> LayerProfile:
    sizes = layered.state_bytes(layer, layer + 1)
    is_last = layer == layered.num_layers - 1
    fixed = 0 if is_last else layered.bytes_into(layer + 1, 0)
    per_sample = 0 if is_last else layered.bytes_into(layer + 1, 1) - fixed
    alone, crowded = points
    return LayerProfile(
        name=layered.names[layer],
        parameter_bytes=sum(size for name, size in sizes.items() if name in layered.parameter_names),
        buffer_bytes=sum(size for name, size in sizes.items() if name not in layered.parameter_names),
        boundary=Bytes(per_sample=per_sample, fixed=fixed),
        activations=held[0],
        forward_peak=held[1],
        backward_peak=held[2],
        points=alone[layer],
        crowded_points=crowded[layer] if crowded else (),
        gradients=tuple(gradients),
    )


def _measure_optimizer(checked: CheckedJob) -> tuple[float, int]:
    """Time of one update of the whole model, and the bytes of state it keeps."""
    named = [(name, parameter) for name, parameter in checked.model.named_parameters() if parameter.requires_grad]
    weights = [parameter.detach().clone() for _, parameter in named]
    optimizer = checked.job.optimizer(named)
    times = []
    for _ in range(5):
        for _, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
        begin_s = time.perf_counter()
        optimizer.step()
        _finish(checked)
        times.append(time.perf_counter() - begin_s)
    state_bytes = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    with torch.no_grad():
        for (_, parameter), weight in zip(named, weights, strict=True):
            parameter.copy_(weight)
    return _typical(times), state_bytes


def _typical(times_s: list[float]) -> float:
    """The median; the mean where this process is made to pause."""
    return statistics.fmean(times_s) if is_throttled() else statistics.median(times_s)


def _finish(checked: CheckedJob) -> None:
    if any(parameter.is_cuda for parameter in checked.model.parameters()):
        torch.cuda.synchronize()


def _measure_reducing(checked: CheckedJob) -> float:
    """Time to gather all gradients into one buffer, and to add those of one other replica."""
    gradients = [torch.zeros(p.numel(), dtype=p.dtype) for p in checked.model.parameters()]
    other = wire_view(torch.cat(gradients))
    times = []
    for _ in range(5):
        begin_s = time.perf_counter()
        own = torch.cat(gradients)
        Reduction(torch.distributed.ReduceOp.SUM, own.dtype).combine(own, [(1, other)], 0)
        times.append(time.perf_counter() - begin_s)
    return _typical(times)


def _measure_loading(checked: CheckedJob, num_samples: int) -> float:
    begin_s = time.perf_counter()
    collate(checked.data, range(num_samples), checked.job)
    return (time.perf_counter() - begin_s) / num_samples

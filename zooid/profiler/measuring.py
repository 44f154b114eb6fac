"""Makes the profile of a job: checks it, measures layers at several grain sizes, and the way to the store."""

import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from zooid.comm.tensors import Reduction, wire_view
from zooid.core.job import Job
from zooid.core.machine import num_cores
from zooid.core.profile import DeviceKind, LayerProfile, Profile, TimePoint
from zooid.core.spec import ProfilerSpec
from zooid.core.version import VERSION
from zooid.layers import CheckedJob, LayeredModel, build_model_on_meta, check_job, collate, trace
from zooid.profiler.company import busy_neighbours
from zooid.profiler.interference import measure_message_cost
from zooid.profiler.links import probe_store
from zooid.profiler.timing import LayerTimer
from zooid.store import ObjectStore

GRAINS_PER_BATCH = (2, 4, 8, 16)
"""Grain sizes are probed as these parts of the batch."""

Progress = Callable[[int, int], None]


def measure_job(job: Job, spec: ProfilerSpec, store: ObjectStore, progress: Progress) -> Profile:
    """The whole profile; `progress` is told how many of how many probes are done."""
    runtime_bytes = _resident_bytes()
    checked = check_job(job)
    layered = trace(build_model_on_meta(job), checked.example.to("meta"))
    startup_cpu_s = time.process_time()
    sizes = _grain_sizes(job)
    num_probes = 2 * len(sizes) + 2
    timer = LayerTimer.build(job, layered, checked.model)
    points, crowded = [], []
    for number, size in enumerate(sizes):
        batch = collate(checked.data, range(size))
        progress(2 * number, num_probes)
        points.append(timer.measure(batch))
        progress(2 * number + 1, num_probes)
        if spec.num_neighbours:
            with busy_neighbours(spec.num_neighbours, partial(timer.run_once, batch)):
                crowded.append(timer.measure(batch))
    progress(num_probes - 2, num_probes)
    activation_bytes = timer.activation_bytes(collate(checked.data, range(sizes[-1])))
    optimizer_s, optimizer_bytes = _measure_optimizer(checked)
    reduce_s = _measure_reducing(checked)
    load_s = _measure_loading(checked, sizes[-1])
    progress(num_probes - 1, num_probes)
    grain = collate(checked.data, range(sizes[0]))
    cost = measure_message_cost(partial(timer.run_once, grain), store, spec.num_neighbours)
    links = probe_store(store, spec.site, cost)
    progress(num_probes, num_probes)
    layers = tuple(
        _layer_profile(
            layered,
            layer,
            activation_bytes[layer] / sizes[-1],
            tuple(at[layer] for at in points),
            tuple(at[layer] for at in crowded),
        )
        for layer in range(layered.num_layers)
    )
    parameter_bytes = sum(layer.parameter_bytes for layer in layers) or 1
    return Profile(
        job=Path(spec.job_file).stem,
        model_fingerprint=layered.fingerprint,
        zooid_version=VERSION,
        torch_version=str(torch.__version__),
        device=DeviceKind(
            name=platform.processor() or platform.machine(),
            num_threads=torch.get_num_threads(),
            num_cores=num_cores(),
        ),
        num_samples=checked.num_samples,
        batch_size=job.batch_size,
        epochs=job.epochs,
        load_s_per_sample=load_s,
        optimizer_s_per_byte=optimizer_s / parameter_bytes,
        optimizer_bytes_per_parameter_byte=optimizer_bytes / parameter_bytes,
        reduce_s_per_byte=reduce_s / parameter_bytes,
        startup_cpu_s=startup_cpu_s,
        runtime_bytes=runtime_bytes,
        layers=layers,
        links=links,
    )


def _grain_sizes(job: Job) -> list[int]:
    if job.grain_size is not None:
        return [job.grain_size]
    return sorted({max(1, job.batch_size // parts) for parts in GRAINS_PER_BATCH})


def _layer_profile(
    layered: LayeredModel,
    layer: int,
    activation_bytes_per_sample: float,
    points: tuple[TimePoint, ...],
    crowded_points: tuple[TimePoint, ...],
) -> LayerProfile:
    sizes = layered.state_bytes(layer, layer + 1)
    is_last = layer == layered.num_layers - 1
    return LayerProfile(
        name=layered.names[layer],
        parameter_bytes=sum(size for name, size in sizes.items() if name in layered.parameter_names),
        buffer_bytes=sum(size for name, size in sizes.items() if name not in layered.parameter_names),
        boundary_bytes_per_sample=0.0 if is_last else layered.crossing_bytes_per_sample(layer + 1),
        activation_bytes_per_sample=activation_bytes_per_sample,
        points=points,
        crowded_points=crowded_points,
    )


def _measure_optimizer(checked: CheckedJob) -> tuple[float, int]:
    """Time of one update of the whole model, and the bytes of state it keeps."""
    named = [(name, parameter) for name, parameter in checked.model.named_parameters() if parameter.requires_grad]
    optimizer = checked.job.optimizer(named)
    times = []
    for _ in range(5):
        for _, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
        begin_s = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - begin_s)
    state_bytes = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    return statistics.median(times), state_bytes


def _measure_reducing(checked: CheckedJob) -> float:
    """Time to gather all gradients into one buffer, and to add those of one other replica."""
    gradients = [torch.zeros_like(parameter).reshape(-1) for parameter in checked.model.parameters()]
    other = wire_view(torch.cat(gradients))
    times = []
    for _ in range(5):
        begin_s = time.perf_counter()
        own = torch.cat(gradients)
        Reduction(torch.distributed.ReduceOp.SUM, own.dtype).combine(own, [(1, other)], 0)
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times)


def _measure_loading(checked: CheckedJob, num_samples: int) -> float:
    begin_s = time.perf_counter()
    collate(checked.data, range(num_samples))
    return (time.perf_counter() - begin_s) / num_samples


def _resident_bytes() -> int:
    """The peak of this process alone; what getrusage says is inherited from whoever started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

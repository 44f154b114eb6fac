"""The profile of a job: the job is checked, its layers are measured at several grain sizes, and so is the store."""

import datetime
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from zooid.core.jobs.job import Job
from zooid.core.plans.profile import (
    Bytes,
    DeviceKind,
    GradientReady,
    LayerProfile,
    Profile,
    Spread,
    TiedParameter,
    TimePoint,
)
from zooid.core.resources.machine import num_cores
from zooid.core.runs.spec import ProfilerSpec
from zooid.core.version import VERSION
from zooid.layers import CheckedJob, LayeredModel, check_job, collate, default_device, faithful_layers
from zooid.profiler.gpu_bandwidth import measure_copies
from zooid.profiler.grain_times import GrainTimes, steadied
from zooid.profiler.knee import knee
from zooid.profiler.memory_needs import memory_limit
from zooid.profiler.probes.probe_member import Progress
from zooid.profiler.spans import SpanMeasures, SpanTask, cut_spans, measure_spans, model_inputs
from zooid.profiler.start_times import measure_start
from zooid.profiler.store_messages import probe_store
from zooid.store import ObjectStore

GRAINS_PER_BATCH = (1, 2, 4, 8, 16, 32)
"""The batch is divided by these numbers for the grain sizes to probe, as far as they fit."""


def measure_job(
    job: Job, spec: ProfilerSpec, store: ObjectStore, progress: Progress, imported_cpu_s: float = 0.0
) -> Profile:
    """Measure a job's profile, or return the known profile if it is still valid.

    `imported_cpu_s` is the processor time that a member needs until it has imported the job.
    """
    num_parts = 7
    progress(0, num_parts)
    device = default_device() if spec.device == "auto" else torch.device(spec.device)
    checked = check_job(job)
    layered = faithful_layers(checked)
    progress(1, num_parts)
    kind = _device_kind(device)
    if spec.known is not None and still_holds(spec.known, layered, job, checked.num_samples, kind, spec.site):
        progress(num_parts, num_parts)
        return spec.known
    startup_cpu_s = imported_cpu_s + measure_start(job, layered, device)
    limit_bytes = memory_limit(device, spec.memory_bytes)
    spans = cut_spans(layered, limit_bytes)
    task = SpanTask(checked, layered, spans, device, limit_bytes, spec.num_neighbours, spec.site, store)
    inputs = model_inputs(checked, _grain_sizes(job))
    measured = measure_spans(task, inputs, lambda done: progress(1 + done, num_parts))
    largest = min(measures.largest_grain for measures in measured)
    load_s = _measure_loading(checked, max(size for size in inputs.sizes if size <= largest))
    progress(6, num_parts)
    links = probe_store(store, spec.site, measured[-1].message_cost)
    progress(7, num_parts)
    layers = _layer_profiles(layered, measured)
    tied = tuple(
        TiedParameter(name=name, num_bytes=layered.state_bytes(users[0], users[0] + 1)[name], layers=users)
        for name, users in sorted(layered.tied.items())
    )
    parameter_bytes = sum(measures.parameter_bytes for measures in measured) or 1
    return Profile(
        job=Path(spec.job_file).stem,
        model_fingerprint=layered.fingerprint,
        why_whole=layered.why_whole,
        autocast=job.autocast,
        has_policy=job.policy is not None,
        zooid_version=VERSION,
        torch_version=str(torch.__version__),
        date=datetime.date.today().isoformat(),
        device=kind,
        num_samples=checked.num_samples,
        batch_size=job.batch_size,
        largest_grain=largest,
        knee=knee(_step_times(measured), largest),
        epochs=job.epochs,
        load_s_per_sample=load_s,
        optimizer_s_per_byte=sum(measures.optimizer_s for measures in measured) / parameter_bytes,
        optimizer_bytes_per_parameter_byte=sum(measures.optimizer_bytes for measures in measured) / parameter_bytes,
        reduce_s_per_byte=sum(measures.reduce_s for measures in measured) / parameter_bytes,
        startup_cpu_s=startup_cpu_s,
        runtime_bytes=max(measures.memory.runtime_bytes for measures in measured),
        inputs=Bytes(per_sample=layered.bytes_into(0, 1)),
        memory_overhead=max(measures.memory.overhead for measures in measured),
        spread=Spread(
            of_steps=statistics.median(times.step_spread for measures in measured for times in measures.alone),
            of_runs=statistics.median(times.run_spread for measures in measured for times in measures.alone),
        ),
        layers=layers,
        tied=tied,
        links=links,
    )


def still_holds(
    known: Profile, layered: LayeredModel, job: Job, num_samples: int, device: DeviceKind, site: str
) -> bool:
    """Whether a profile is still valid: model, job, versions, device and site are the same."""
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
    """Return the floating-point operations per second of a float32 matrix product."""
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


def _step_times(measured: Sequence[SpanMeasures]) -> list[tuple[int, float]]:
    """Return the seconds of one grain through all layers, for each grain size at which every span was timed."""
    by_size = zip(*(measures.alone for measures in measured), strict=False)
    return [(spans[0].num_samples, sum(statistics.median(times.steps_s) for times in spans)) for spans in by_size]


def _points(spans: Sequence[Sequence[GrainTimes]]) -> list[tuple[TimePoint, ...]]:
    """Return the points of each layer at the grain sizes at which every span was timed."""
    num_sizes = min(len(sizes) for sizes in spans)
    span_points = [[times.points() for times in sizes[:num_sizes]] for sizes in spans]
    return [points for sizes in span_points for points in zip(*sizes, strict=True)]


def _layer_profiles(layered: LayeredModel, measured: Sequence[SpanMeasures]) -> tuple[LayerProfile, ...]:
    lines = [lines for measures in measured for lines in measures.memory.of_layers()]
    alone = _points([measures.alone for measures in measured])
    crowded = _points([measures.crowded for measures in measured]) or [()] * layered.num_layers
    completed: set[str] = set()
    gradients: list[tuple[GradientReady, ...]] = []
    for ready in (ready for measures in measured for ready in measures.gradients):
        # The first of several spans that use a parameter completes its gradient, since the backward reaches it last.
        gradients.append(tuple(gradient for gradient in ready if gradient.name not in completed))
        completed |= {gradient.name for gradient in ready}
    return tuple(
        _layer_profile(layered, layer, lines[layer], (alone[layer], crowded[layer]), gradients[layer])
        for layer in range(layered.num_layers)
    )


def _layer_profile(
    layered: LayeredModel,
    layer: int,
    memory: tuple[Bytes, Bytes, Bytes],
    points: tuple[tuple[TimePoint, ...], tuple[TimePoint, ...]],
    gradients: tuple[GradientReady, ...],
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
        activations=memory[0],
        forward_peak=memory[1],
        backward_peak=memory[2],
        points=alone,
        crowded_points=steadied(alone, crowded),
        gradients=gradients,
    )


def _measure_loading(checked: CheckedJob, num_samples: int) -> float:
    begin_s = time.perf_counter()
    collate(checked.data, range(num_samples), checked.job)
    return (time.perf_counter() - begin_s) / num_samples

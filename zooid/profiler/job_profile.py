"""Makes the profile of a job: checks it, measures its layers at several grain sizes, and the way to the store."""

import datetime
import platform
import statistics
import time
from collections.abc import Callable, Sequence
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
from zooid.layers import CheckedJob, LayeredModel, check_job, collate, faithful_layers, trace_job
from zooid.profiler.gpu_bandwidth import measure_copies
from zooid.profiler.knee import knee
from zooid.profiler.layer_times import Measured
from zooid.profiler.memory_needs import memory_limit
from zooid.profiler.spans import SpanMeasures, SpanTask, cut_spans, measure_spans, model_inputs
from zooid.profiler.store_messages import probe_store
from zooid.store import ObjectStore

GRAINS_PER_BATCH = (1, 2, 4, 8, 16, 32)
"""Grain sizes are probed as these parts of the batch, as far as they fit."""

Progress = Callable[[int, int], None]


def measure_job(job: Job, spec: ProfilerSpec, store: ObjectStore, progress: Progress) -> Profile:
    """The whole profile; `progress` is told how many of how many parts are done. A known profile that still holds is
    returned as it is."""
    num_parts = 7
    progress(0, num_parts)
    device = _device(spec.device)
    imported_cpu_s = time.process_time()
    checked = check_job(job)
    layered = faithful_layers(checked)
    startup_cpu_s = time.process_time()
    progress(1, num_parts)
    kind = _device_kind(device)
    if spec.known is not None and still_holds(spec.known, layered, job, checked.num_samples, kind, spec.site):
        progress(num_parts, num_parts)
        return spec.known
    limit_bytes = memory_limit(device, spec.memory_bytes)
    spans = cut_spans(layered, limit_bytes)
    if len(spans) > 1:  # whose check reads and writes all of the model several times, which no member does that trains
        startup_cpu_s = imported_cpu_s + _trace_cpu_s(checked)
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
        runtime_bytes=max(measures.held.runtime_bytes for measures in measured),
        inputs=Bytes(per_sample=layered.bytes_into(0, 1)),
        memory_overhead=max(measures.held.overhead for measures in measured),
        spread=Spread(
            of_steps=statistics.median(seen.step_spread for measures in measured for seen in measures.alone),
            of_runs=statistics.median(seen.run_spread for measures in measured for seen in measures.alone),
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


def _trace_cpu_s(checked: CheckedJob) -> float:
    begin_s = time.process_time()
    trace_job(checked.job, checked.example)
    return time.process_time() - begin_s


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


def _step_times(measured: Sequence[SpanMeasures]) -> list[tuple[int, float]]:
    """By grain size, the seconds of one grain through all layers, at the sizes that every span was timed at."""
    sizes = zip(*(measures.alone for measures in measured), strict=False)
    return [(seen[0].num_samples, sum(statistics.median(each.steps_s) for each in seen)) for seen in sizes]


def _points(spans: Sequence[Sequence[Measured]]) -> list[tuple[TimePoint, ...]]:
    """By layer, at the sizes that every span was timed at; none where there are none."""
    num_sizes = min(len(sizes) for sizes in spans)
    of_spans = [[seen.points() for seen in sizes[:num_sizes]] for sizes in spans]
    return [points for sizes in of_spans for points in zip(*sizes, strict=True)]


def _layer_profiles(layered: LayeredModel, measured: Sequence[SpanMeasures]) -> tuple[LayerProfile, ...]:
    lines = [lines for measures in measured for lines in measures.held.of_layers()]
    alone = _points([measures.alone for measures in measured])
    crowded = _points([measures.crowded for measures in measured]) or [()] * layered.num_layers
    completed: set[str] = set()
    gradients: list[tuple[GradientReady, ...]] = []
    for ready in (ready for measures in measured for ready in measures.gradients):
        # A parameter that several spans use is completed by the first of them, to which the backward comes last.
        gradients.append(tuple(gradient for gradient in ready if gradient.name not in completed))
        completed |= {gradient.name for gradient in ready}
    return tuple(
        _layer_profile(layered, layer, lines[layer], (alone[layer], crowded[layer]), gradients[layer])
        for layer in range(layered.num_layers)
    )


def _layer_profile(
    layered: LayeredModel,
    layer: int,
    held: tuple[Bytes, Bytes, Bytes],
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
        activations=held[0],
        forward_peak=held[1],
        backward_peak=held[2],
        points=alone,
        crowded_points=crowded,
        gradients=gradients,
    )


def _measure_loading(checked: CheckedJob, num_samples: int) -> float:
    begin_s = time.perf_counter()
    collate(checked.data, range(num_samples), checked.job)
    return (time.perf_counter() - begin_s) / num_samples

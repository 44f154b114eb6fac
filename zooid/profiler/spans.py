"""Measures a model's layers all together, or in spans where they do not fit into memory together.

A span is a run of layers that fits. It is measured like a whole model, with copies of its own weights, on the values
that the previous span passed on, and with gradients of ones from above. Only one span is in memory at a time.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

from zooid.core.environment import profile_effort, rough_repeats
from zooid.core.errors import JobError
from zooid.core.plans.profile import GradientReady
from zooid.core.resources.process_memory import anonymous_bytes
from zooid.layers import Batch, CheckedJob, LayeredModel, collate
from zooid.layers.disk_tensors import bring_to_memory, give_back_freed, room_for_state
from zooid.profiler.grain_times import GrainTimes
from zooid.profiler.interference import MessageCost, busy_neighbours, measure_message_cost
from zooid.profiler.largest_grain import largest_that_fits
from zooid.profiler.layer_times import LayerTimer
from zooid.profiler.memory_needs import SpanMemory, measure_memory, runs, surely_fits
from zooid.profiler.update_times import measure_optimizer, measure_reduction
from zooid.store import ObjectStore

SECONDS_ALONE = 8.0
SECONDS_CROWDED = 4.0
NUM_PARTS = 4
"""Number of parts in which progress is reported."""

Span = tuple[int, int]


@dataclass(frozen=True)
class SpanTask:
    """Everything that all spans of a model share."""

    checked: CheckedJob
    layered: LayeredModel
    spans: Sequence[Span]
    device: torch.device
    limit_bytes: int
    num_neighbours: int
    site: str
    store: ObjectStore

    @property
    def is_whole(self) -> bool:
        return len(self.spans) == 1


@dataclass(frozen=True)
class SpanInputs:
    """Batches of the values that cross into a span, for every grain size that is probed."""

    sizes: Sequence[int]
    batch_of: Callable[[int], Batch]


@dataclass(frozen=True)
class SpanMeasures:
    """All measurements of a span's layers."""

    memory: SpanMemory
    largest_grain: int
    alone: Sequence[GrainTimes]
    crowded: Sequence[GrainTimes]
    gradients: Sequence[Sequence[GradientReady]]
    """The gradients that each layer completes, by layer."""
    parameter_bytes: int
    optimizer_s: float
    optimizer_bytes: int
    reduce_s: float
    message_cost: MessageCost


def cut_spans(layered: LayeredModel, limit_bytes: int) -> list[Span]:
    """Cut the layers into as few spans as fit into this memory, each as long as possible.

    A layer that is too large is a span of its own, and is tried.
    """
    give_back_freed()
    room_bytes = room_for_state(limit_bytes, anonymous_bytes())
    starts = [0]
    for layer in range(1, layered.num_layers):
        if sum(layered.state_bytes(starts[-1], layer + 1).values()) > room_bytes:
            starts.append(layer)
    return list(pairwise([*starts, layered.num_layers]))


def model_inputs(checked: CheckedJob, sizes: Sequence[int]) -> SpanInputs:
    """Return the inputs of the first span: samples of the job's data."""
    return SpanInputs(sizes, lambda size: collate(checked.data, range(size), checked.job))


def measure_spans(task: SpanTask, inputs: SpanInputs, progress: Callable[[int], None]) -> list[SpanMeasures]:
    """Measure the spans in turn; `progress` is called with the number of finished parts, out of NUM_PARTS in all."""
    measured: list[SpanMeasures] = []
    num_reported = 0

    def report(done: int) -> None:
        nonlocal num_reported
        num_done = (NUM_PARTS * len(measured) + done) // len(task.spans)
        for number in range(num_reported + 1, num_done + 1):
            progress(number)
        num_reported = num_done

    with _frozen_garbage():
        for span in task.spans:
            gc.collect()  # frees the previous span: generated modules refer to themselves
            give_back_freed()
            measures, inputs = _measure_span(task, span, inputs, report)
            measured.append(measures)
    return measured


@contextmanager
def _frozen_garbage() -> Iterator[None]:
    """While inside, garbage collections skip existing objects, which saves a fifth of a second each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measure_span(
    task: SpanTask, span: Span, inputs: SpanInputs, progress: Callable[[int], None]
) -> tuple[SpanMeasures, SpanInputs]:
    """Return a span's measurements, and the inputs of the next span."""
    timer = _timer(task, span)
    memory = measure_memory(timer, inputs.sizes, inputs.batch_of)
    largest = _largest_grain(task, timer, memory, inputs)
    progress(1)
    batches = [inputs.batch_of(size) for size in inputs.sizes if size <= largest]
    if not batches:
        raise JobError(
            f"a grain of {inputs.sizes[0]} samples does not fit into memory on {task.site}; the largest grain that "
            f"fits has {largest}: give a larger batch size, a smaller job.grain_size, or an offer with more memory"
        )
    effort = profile_effort() * timer.num_layers / task.layered.num_layers
    alone = timer.measure(batches, seconds=SECONDS_ALONE * effort, num_rounds=rough_repeats(3))
    progress(2)
    crowded: list[GrainTimes] = []
    if task.num_neighbours and task.device.type == "cpu":
        with busy_neighbours(task.num_neighbours, partial(timer.run_once, batches[len(batches) // 2])):
            crowded = timer.measure(batches, seconds=SECONDS_CROWDED * effort, num_rounds=rough_repeats(2))
    progress(3)
    gradients = timer.gradients(batches[len(alone) // 2])
    # The optimizer of the whole model also updates parameters that no layer uses.
    module = task.checked.model if task.is_whole else timer.stage.module
    named = list(module.named_parameters())
    optimizer_s, optimizer_bytes = measure_optimizer(task.checked.job, named)
    timer.stage.module.zero_grad()  # the reduction needs as much memory again
    reduce_s = measure_reduction([parameter for _, parameter in named])
    progress(4)
    cost = MessageCost(0.0, 0.0)
    if task.device.type == "cpu" and timer.stage.is_last:
        cost = measure_message_cost(partial(timer.run_once, batches[0]), task.store, task.num_neighbours)
    measures = SpanMeasures(
        memory=memory,
        largest_grain=largest,
        alone=alone,
        crowded=crowded,
        gradients=gradients,
        parameter_bytes=sum(parameter.nbytes for _, parameter in named),
        optimizer_s=optimizer_s,
        optimizer_bytes=optimizer_bytes,
        reduce_s=reduce_s,
        message_cost=cost,
    )
    passed_on = {} if timer.stage.is_last else {batch.num_samples: timer.record(batch) for batch in batches}
    return measures, SpanInputs(list(passed_on), passed_on.__getitem__)


def _timer(task: SpanTask, span: Span) -> LayerTimer:
    job, model = task.checked.job, task.checked.model
    if not task.is_whole:
        return LayerTimer(job, task.layered, model, task.device, span)
    bring_to_memory(model)
    model.to(task.device)
    return LayerTimer(job, task.layered, model, task.device)


def _largest_grain(task: SpanTask, timer: LayerTimer, memory: SpanMemory, inputs: SpanInputs) -> int:
    """Return the largest grain that fits; sizes that may not fit are tried on the device.

    A later span can only try the probed sizes, since the previous span has passed on no others.
    """
    max_size = inputs.sizes[-1]
    if surely_fits(memory, max_size, task.limit_bytes):
        return max_size
    fits = partial(runs, timer, inputs.batch_of, task.limit_bytes)
    if task.is_whole:
        return largest_that_fits(max_size, fits)
    return next((size for size in reversed(inputs.sizes) if fits(size)), 0)

"""Measures a model's layers: all of them together, or in spans where they do not fit into memory together.

A span is a run of layers that fits. It is measured as the whole model would be, around copies of its own weights, on
what the spans before it have passed on, and with gradients of ones from above. No more than one span is in memory.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from zooid.core.environment import profile_effort, rough_repeats
from zooid.core.errors import JobError
from zooid.core.plans.profile import GradientReady
from zooid.core.resources.machine import anonymous_bytes
from zooid.layers import Batch, CheckedJob, LayeredModel, collate
from zooid.layers.disk_tensors import bring_to_memory, give_back_freed, room_for_state
from zooid.profiler.interference import MessageCost, measure_message_cost
from zooid.profiler.largest_grain import largest_that_fits
from zooid.profiler.layer_times import LayerTimer, Measured
from zooid.profiler.memory_needs import Held, measure_memory, runs, surely_fits
from zooid.profiler.shared_load import busy_neighbours
from zooid.profiler.update_times import measure_optimizer, measure_reduction
from zooid.store import ObjectStore

SECONDS_ALONE = 8.0
SECONDS_CROWDED = 4.0
NUM_PARTS = 4
"""Parts that progress is told of."""

Span = tuple[int, int]


@dataclass(frozen=True)
class SpanTask:
    """What is the same for all spans of a model."""

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
    """Batches of what crosses into a span, at every grain size that is probed."""

    sizes: Sequence[int]
    batch_of: Callable[[int], Batch]


@dataclass(frozen=True)
class SpanMeasures:
    """Everything that was measured of a span's layers."""

    held: Held
    largest_grain: int
    alone: Sequence[Measured]
    crowded: Sequence[Measured]
    gradients: Sequence[Sequence[GradientReady]]
    """Gradients that each layer completes, in the order of layers."""
    parameter_bytes: int
    optimizer_s: float
    optimizer_bytes: int
    reduce_s: float
    message_cost: MessageCost


def cut_spans(layered: LayeredModel, limit_bytes: int) -> list[Span]:
    """All layers as one span where they fit into this memory, else as few as possible, each as long as it fits.

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
    """What crosses into a model's first layer: samples."""
    return SpanInputs(sizes, lambda size: collate(checked.data, range(size), checked.job))


def measure_spans(task: SpanTask, inputs: SpanInputs, progress: Callable[[int], None]) -> list[SpanMeasures]:
    """The spans in turn; `progress` is told how many of NUM_PARTS equal parts of all of it are done."""
    measured: list[SpanMeasures] = []
    num_told = 0

    def tell(done: int) -> None:
        nonlocal num_told
        num_done = (NUM_PARTS * len(measured) + done) // len(task.spans)
        for number in range(num_told + 1, num_done + 1):
            progress(number)
        num_told = num_done

    with _settled_garbage():
        for span in task.spans:
            gc.collect()  # the span before this one: generated modules refer to themselves
            give_back_freed()
            measures, inputs = _measure_span(task, span, inputs, tell)
            measured.append(measures)
    return measured


@contextmanager
def _settled_garbage() -> Iterator[None]:
    """While inside, collections leave out what is there already, PyTorch's own objects above all: a fifth of a second
    each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measure_span(
    task: SpanTask, span: Span, inputs: SpanInputs, progress: Callable[[int], None]
) -> tuple[SpanMeasures, SpanInputs]:
    """A span's measures, and what it passes on to the next."""
    timer = _timer(task, span)
    held = measure_memory(timer, inputs.sizes, inputs.batch_of)
    largest = _largest_grain(task, timer, held, inputs)
    progress(1)
    batches = [inputs.batch_of(size) for size in inputs.sizes if size <= largest]
    if not batches:
        raise JobError(
            f"a grain of {inputs.sizes[0]} samples does not fit into memory on {task.site}; the largest that does has "
            f"{largest}: give a larger batch size, a smaller job.grain_size, or an offer with more memory"
        )
    effort = profile_effort() * timer.num_layers / task.layered.num_layers
    alone = timer.measure(batches, seconds=SECONDS_ALONE * effort, num_rounds=rough_repeats(3))
    progress(2)
    crowded: list[Measured] = []
    if task.num_neighbours and task.device.type == "cpu":
        with busy_neighbours(task.num_neighbours, partial(timer.run_once, batches[len(batches) // 2])):
            crowded = timer.measure(batches, seconds=SECONDS_CROWDED * effort, num_rounds=rough_repeats(2))
    progress(3)
    gradients = timer.gradients(batches[len(alone) // 2])
    named = _parameters(task, timer)
    optimizer_s, optimizer_bytes = measure_optimizer(task.checked.job, named)
    timer.stage.module.zero_grad()  # reducing takes as much memory again
    reduce_s = measure_reduction([parameter for _, parameter in named])
    progress(4)
    cost = MessageCost(0.0, 0.0)
    if task.device.type == "cpu" and timer.stage.is_last:
        cost = measure_message_cost(partial(timer.run_once, batches[0]), task.store, task.num_neighbours)
    measures = SpanMeasures(
        held=held,
        largest_grain=largest,
        alone=alone,
        crowded=crowded,
        gradients=gradients,
        parameter_bytes=sum(parameter.numel() * parameter.element_size() for _, parameter in named),
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


def _parameters(task: SpanTask, timer: LayerTimer) -> list[tuple[str, nn.Parameter]]:
    """Those that an update changes: of the whole model also what no layer uses."""
    module = task.checked.model if task.is_whole else timer.stage.module
    return list(module.named_parameters())


def _largest_grain(task: SpanTask, timer: LayerTimer, held: Held, inputs: SpanInputs) -> int:
    """What fits for certain is not tried; where it is close, the device itself is asked.

    Only the sizes that are probed have crossed into a later span, so that it can try no others.
    """
    most = inputs.sizes[-1]
    if surely_fits(held, most, task.limit_bytes):
        return most
    fits = partial(runs, timer, inputs.batch_of, task.limit_bytes)
    if task.is_whole:
        return largest_that_fits(most, fits)
    return next((size for size in reversed(inputs.sizes) if fits(size)), 0)

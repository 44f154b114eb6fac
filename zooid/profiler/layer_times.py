"""Times of layers, measured while the model, or a span of its layers, runs as a whole, as training runs it."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from zooid.core.jobs.job import Job
from zooid.core.plans.profile import GradientReady, TimePoint
from zooid.core.resources.machine import cpu_quota
from zooid.layers import (
    Batch,
    LayeredModel,
    Objective,
    autocasting,
    build_stage,
    flatten_inputs,
    grain_randomness,
    watching_cuts,
)
from zooid.layers.disk_tensors import release_pages, to_disk
from zooid.layers.stages.cut_watch import pass_cut
from zooid.profiler.cut_marks import Marks, clock_for, ones_above, run_backward

LEAST_SIZES = 2
MIN_REPEATS = 1
"""Of a grain size in each round."""
MAX_REPEATS = 40
ENOUGH = 0.005
"""Repeats end when the median of a step is known to this part of itself."""


@dataclass
class Measured:
    """Everything that was seen of one grain size."""

    num_samples: int
    is_throttled: bool = False
    """Held to a part of a core: work runs at full speed until a period's share is used up, and then pauses, so that
    only the mean tells what it takes."""
    forward_s: list[list[float]] = field(default_factory=list)
    """By repeat, then by layer."""
    backward_s: list[list[float]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    """Where each round's repeats begin."""

    bare_s: list[tuple[float, float]] = field(default_factory=list)
    """Forward and backward of the same work while nothing was watched."""

    def points(self) -> list[TimePoint]:
        """Typical times of each layer, without what watching the cuts takes, which is the same at each of them."""
        typical = statistics.fmean if self.is_throttled else statistics.median
        forward_s = _without_marks(typical, self.forward_s, [forward for forward, _ in self.bare_s])
        backward_s = _without_marks(typical, self.backward_s, [backward for _, backward in self.bare_s])
        return [
            TimePoint(num_samples=self.num_samples, forward_s=forward, backward_s=backward)
            for forward, backward in zip(forward_s, backward_s, strict=True)
        ]

    @property
    def steps_s(self) -> list[float]:
        return [forward + backward for forward, backward in self.bare_s]

    @property
    def step_spread(self) -> float:
        """From one repeat to the next, within rounds."""
        spreads = [relative_spread(self.steps_s[a:b]) for a, b in _spans(self.rounds, len(self.steps_s)) if b - a > 1]
        return statistics.median(spreads) if spreads else 0.0

    @property
    def run_spread(self) -> float:
        """Between the medians of rounds."""
        medians = [statistics.median(self.steps_s[a:b]) for a, b in _spans(self.rounds, len(self.steps_s))]
        return relative_spread(medians) if len(medians) > 1 else 0.0


def is_throttled() -> bool:
    """Whether this process gets less processor time than its threads would use."""
    return cpu_quota() < torch.get_num_threads()


class LayerTimer:
    """Layers in one module around the model's real weights, with a mark at every cut.

    They are all layers of the model, or a span of them around copies of their weights. A span that does not begin with
    the model takes batches of what crosses into it, as `record` makes them.
    """

    def __init__(
        self,
        job: Job,
        layered: LayeredModel,
        model: nn.Module,
        device: torch.device,
        span: tuple[int, int] | None = None,
    ) -> None:
        self.job = job
        self.device = device
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        first, end = span or (0, layered.num_layers)
        if span is not None:
            copied = {name: state[name].detach().to(device, copy=True) for name in layered.state_of(first, end)}
            release_pages(state.values())
            state = copied
        self.stage = build_stage(layered, first, end, state, device, marked=True)
        self._clock = clock_for(device)

    @property
    def layers(self) -> range:
        return range(self.stage.first_layer, self.stage.end_layer)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def record(self, batch: Batch) -> Batch:
        """Run the layers on a batch, for what crosses out of them, as a batch for the span that follows."""
        with torch.no_grad(), autocasting(self.job.autocast, self.device):
            values = self._run_stage(batch.to(self.device))
        passed = Batch(values, {}, batch.target, batch.num_samples)
        return passed.with_each(lambda tensor: to_disk(tensor.cpu()))

    def measure(self, batches: Iterable[Batch], *, seconds: float, num_rounds: int) -> list[Measured]:
        """Grain sizes in turn, several rounds of them, so that a slow phase of the machine meets all alike.

        Large grains for which there is no time are left out, but never all but two.
        """
        given = self._affordable([batch.to(self.device) for batch in batches], seconds / num_rounds)
        measured = [Measured(batch.num_samples, is_throttled()) for batch in given]
        gc.collect()
        share_s = seconds / num_rounds / len(given)
        for _ in range(num_rounds):
            for batch, seen in zip(given, measured, strict=True):
                seen.rounds.append(len(seen.forward_s))
                self._repeat(batch, seen, share_s)
        return measured

    def _affordable(self, batches: list[Batch], seconds: float) -> list[Batch]:
        """Warm up with each, and keep those that can be repeated within the time of a round."""
        kept: list[Batch] = []
        left_s = seconds
        per_sample_s = 0.0
        for batch in batches:
            repeat_s = 2 * per_sample_s * batch.num_samples  # each repeat is watched once, and once not
            if len(kept) >= LEAST_SIZES and repeat_s > left_s:
                break
            took_s = sum(self.run_bare(batch))
            per_sample_s = took_s / batch.num_samples
            left_s -= 2 * took_s
            kept.append(batch)
        return kept

    def _repeat(self, batch: Batch, seen: Measured, seconds: float) -> None:
        begin_s = time.perf_counter()
        first = len(seen.forward_s)
        while (done := len(seen.forward_s) - first) < MAX_REPEATS:
            is_enough = not seen.is_throttled and _is_enough(seen.steps_s[first:])
            if done >= MIN_REPEATS and (time.perf_counter() - begin_s > seconds or is_enough):
                return
            self.measure_once(batch, seen)

    def measure_once(self, batch: Batch, seen: Measured) -> None:
        """One repeat: watched, and not watched."""
        forward_s, backward_s = self.run_marked(batch)
        seen.forward_s.append(forward_s)
        seen.backward_s.append(backward_s)
        seen.bare_s.append(self.run_bare(batch))

    def run_marked(self, batch: Batch) -> tuple[list[float], list[float]]:
        """One forward and backward: seconds of every layer."""
        marks = self._run_watched(batch)
        upwards = {-cut: at for cut, at in marks.backward.items()}
        return self._durations(marks.forward), self._durations(upwards)[::-1]

    def run_bare(self, batch: Batch) -> tuple[float, float]:
        """One forward and backward, not watched: seconds of each."""
        begin, middle, end = self._run(batch)
        return self._clock.seconds(begin, middle), self._clock.seconds(middle, end)

    def _run_watched(self, batch: Batch) -> Marks:
        """One forward and backward, with the time at every cut, at both ends and between the two."""
        marks = Marks(self._clock.now)
        with watching_cuts(marks):
            begin, middle, end = self._run(batch)
        first, last = self.stage.first_layer, self.stage.end_layer
        marks.forward = {last: middle} | marks.forward | {first: begin}
        marks.backward = {last: middle} | marks.backward | {first: end}
        return marks

    def _run(self, batch: Batch) -> tuple[Any, Any, Any]:
        """When it began, when the backward did, and when all was done."""
        clock = self._clock
        clock.finish()
        begin = clock.now()
        loss = self.forward(batch)
        middle = clock.now()
        run_backward(loss)
        end = clock.now()
        clock.finish()
        return begin, middle, end

    def _durations(self, cuts: dict[int, Any]) -> list[float]:
        """From each cut to the next; where no mark divides several layers, each gets an equal part."""
        result: list[float] = []
        for begin, end in pairwise(sorted(cuts)):
            result += [self._clock.seconds(cuts[begin], cuts[end]) / (end - begin)] * (end - begin)
        return result

    def run_once(self, batch: Batch) -> None:
        """One forward and backward, not measured."""
        run_backward(self.forward(batch.to(self.device)))
        self._clock.finish()

    def gradients(self, batch: Batch) -> list[list[GradientReady]]:
        """For each layer, the parameters whose gradients it completes, and when in its backward."""
        runs = [self._gradient_moments(batch.to(self.device)) for _ in range(3)]
        names = runs[0].keys()
        layers = {name: statistics.median_low(run[name][0] for run in runs) for name in names}
        shares = {name: statistics.median(run[name][1] for run in runs) for name in names}
        sizes = {name: p.numel() * p.element_size() for name, p in self.stage.module.named_parameters()}
        found: list[list[GradientReady]] = [[] for _ in range(self.num_layers)]
        for name in sorted(names, key=lambda name: (-layers[name], shares[name])):
            found[layers[name] - self.stage.first_layer].append(
                GradientReady(name=name, num_bytes=sizes[name], at_share=shares[name])
            )
        return found

    def _gradient_moments(self, batch: Batch) -> dict[str, tuple[int, float]]:
        """By parameter: the layer in whose backward its gradient was complete, and at which part of it."""
        clock = self._clock
        moments: dict[str, Any] = {}

        def is_ready(name: str, parameter: torch.Tensor) -> None:
            moments[name] = clock.now()

        handles = [
            parameter.register_post_accumulate_grad_hook(partial(is_ready, name))  # type: ignore[no-untyped-call]
            for name, parameter in self.stage.module.named_parameters()
            if parameter.requires_grad
        ]
        try:
            cuts = self._run_watched(batch).backward
        finally:
            for handle in handles:
                handle.remove()
        result: dict[str, tuple[int, float]] = {}
        pairs = list(pairwise(sorted(cuts, reverse=True)))
        for name, at in moments.items():
            above, below = next((pair for pair in pairs if clock.seconds(at, cuts[pair[1]]) >= 0), pairs[-1])
            whole_s = clock.seconds(cuts[above], cuts[below])
            share = clock.seconds(cuts[above], at) / whole_s if whole_s > 0 else 1.0
            result[name] = (above - 1, min(1.0, max(0.0, share)))
        return result

    def forward(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch that is on the device; of a span before the last, one whose gradients are ones."""
        with autocasting(self.job.autocast, self.device):
            outputs = self._run_stage(batch)
            if not self.stage.is_last:
                return self._passed_on(outputs)
            output = self.stage.model_output(outputs)
            total, _ = Objective(self.job).sum_and_weight(output, batch.target, float(batch.num_samples))
        return total

    def _passed_on(self, outputs: tuple[Any, ...]) -> torch.Tensor:
        flags = self.stage.differentiable_outputs
        passed = [value for value, flag in zip(outputs, flags, strict=True) if flag]
        return ones_above(*(pass_cut(self.stage.end_layer, *passed) if passed else ()))

    def _run_stage(self, batch: Batch) -> tuple[Any, ...]:
        inputs = flatten_inputs(batch)
        if self.stage.first_layer > 0:
            flags = self.stage.differentiable_inputs
            inputs = [
                value.detach().requires_grad_(flag) if isinstance(value, torch.Tensor) else value
                for value, flag in zip(inputs, flags, strict=True)
            ]
        with grain_randomness(self.job.seed, 0, 0):
            return self.stage.run(*inputs)


def _without_marks(
    typical: Callable[[Iterable[float]], float], watched_s: list[list[float]], bare_s: list[float]
) -> list[float]:
    layers = range(len(watched_s[0]))
    times_s = [typical([times[layer] for times in watched_s]) for layer in layers]
    mark_s = max(0.0, sum(times_s) - typical(bare_s)) / len(times_s)
    return [max(0.0, time_s - mark_s) for time_s in times_s]


def median_is_known(values: list[float], to: float) -> bool:
    """Whether the standard error of the median is below this part of it; never where the median is not above 0."""
    return statistics.median(values) > 0 and 1.2533 * relative_spread(values) / math.sqrt(len(values)) < to


def relative_spread(times_s: list[float]) -> float:
    """Standard deviation as the middle half of the times suggests it, in parts of their median."""
    if len(times_s) < 2:
        return 0.0
    middle = statistics.median(times_s)
    deviation = statistics.median(abs(time_s - middle) for time_s in times_s) * 1.4826
    return deviation / middle if middle > 0 else 0.0


def _is_enough(times_s: list[float]) -> bool:
    return len(times_s) >= 5 and median_is_known(times_s, ENOUGH)


def _spans(starts: list[int], end: int) -> list[tuple[int, int]]:
    return list(zip(starts, [*starts[1:], end], strict=True))

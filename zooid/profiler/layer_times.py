"""Times of layers, measured while the model, or a span of its layers, runs as one module, as in training."""

import gc
import statistics
import time
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from zooid.core.jobs.job import Job
from zooid.core.plans.profile import GradientReady
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
from zooid.profiler.grain_times import GrainTimes, is_throttled, median_is_known

_MIN_SIZES = 2
_MAX_REPEATS = 40
"""Largest number of repeats of a grain size in each round."""
_PRECISION = 0.005
"""Repeats end when the median time of a step is known to this fraction of it."""


class LayerTimer:
    """Times layers as one module around the model's real weights, with a mark at every cut.

    It times all layers of the model, or a span of them with copies of their weights. A span that does not begin with
    the first layer takes batches of the values that cross into it, as `record` returns them.
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
        """Run the layers, and return the values that cross out of them as a batch for the next span."""
        with torch.no_grad(), autocasting(self.job.autocast, self.device):
            values = self._run_stage(batch.to(self.device))
        passed = Batch(values, {}, batch.target, batch.num_samples)
        return passed.with_each(lambda tensor: to_disk(tensor.cpu()))

    def measure(self, batches: Iterable[Batch], *, seconds: float, num_rounds: int) -> list[GrainTimes]:
        """Time grain sizes in turn, in several rounds, so that a slow phase of the machine affects all sizes alike.

        Large grains for which there is no time are left out, but at least two sizes are timed.
        """
        affordable = self._affordable([batch.to(self.device) for batch in batches], seconds / num_rounds)
        measured = [GrainTimes(batch.num_samples, is_throttled()) for batch in affordable]
        gc.collect()
        size_s = seconds / num_rounds / len(affordable)
        for _ in range(num_rounds):
            for batch, times in zip(affordable, measured, strict=True):
                times.round_starts.append(len(times.forward_s))
                self._repeat(batch, times, size_s)
        return measured

    def _affordable(self, batches: list[Batch], seconds: float) -> list[Batch]:
        """Warm up with each batch, and keep the batches that can be repeated within the time of a round."""
        kept: list[Batch] = []
        left_s = seconds
        per_sample_s = 0.0
        for batch in batches:
            repeat_s = 2 * per_sample_s * batch.num_samples  # each repeat runs once watched and once not
            if len(kept) >= _MIN_SIZES and repeat_s > left_s:
                break
            took_s = sum(self.run_bare(batch))
            per_sample_s = took_s / batch.num_samples
            left_s -= 2 * took_s
            kept.append(batch)
        return kept

    def _repeat(self, batch: Batch, times: GrainTimes, seconds: float) -> None:
        begin_s = time.perf_counter()
        first = len(times.forward_s)
        for _ in range(_MAX_REPEATS):
            self.measure_once(batch, times)
            steps_s = times.steps_s[first:]
            is_known = not times.is_throttled and len(steps_s) >= 5 and median_is_known(steps_s, _PRECISION)
            if is_known or time.perf_counter() - begin_s > seconds:
                return

    def measure_once(self, batch: Batch, times: GrainTimes) -> None:
        """Run one repeat, once watched and once not."""
        forward_s, backward_s = self.run_marked(batch)
        times.forward_s.append(forward_s)
        times.backward_s.append(backward_s)
        times.bare_s.append(self.run_bare(batch))

    def run_marked(self, batch: Batch) -> tuple[list[float], list[float]]:
        """Run one forward and backward, and return the seconds of every layer in each."""
        marks = self._run_watched(batch)
        upwards = {-cut: moment for cut, moment in marks.backward.items()}
        return self._durations(marks.forward), self._durations(upwards)[::-1]

    def run_bare(self, batch: Batch) -> tuple[float, float]:
        """Run one forward and backward without watching the cuts, and return the seconds of each."""
        begin, middle, end = self._run(batch)
        return self._clock.seconds(begin, middle), self._clock.seconds(middle, end)

    def _run_watched(self, batch: Batch) -> Marks:
        """Run one forward and backward, and return the time at every cut, at both ends and in between."""
        marks = Marks(self._clock.now)
        with watching_cuts(marks):
            begin, middle, end = self._run(batch)
        first, last = self.stage.first_layer, self.stage.end_layer
        marks.forward = {last: middle} | marks.forward | {first: begin}
        marks.backward = {last: middle} | marks.backward | {first: end}
        return marks

    def _run(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Run one forward and backward; return the moments before, between and after them."""
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
        """Return the seconds of each layer; layers that no mark divides get equal parts."""
        result: list[float] = []
        for begin, end in pairwise(sorted(cuts)):
            result += [self._clock.seconds(cuts[begin], cuts[end]) / (end - begin)] * (end - begin)
        return result

    def run_once(self, batch: Batch) -> None:
        """Run one forward and backward without measuring."""
        run_backward(self.forward(batch.to(self.device)))
        self._clock.finish()

    def gradients(self, batch: Batch) -> list[list[GradientReady]]:
        """Return, for each layer, the parameters whose gradients its backward completes, and when."""
        runs = [self._gradient_moments(batch.to(self.device)) for _ in range(3)]
        names = runs[0].keys()
        layers = {name: statistics.median_low(run[name][0] for run in runs) for name in names}
        fractions = {name: statistics.median(run[name][1] for run in runs) for name in names}
        sizes = {name: parameter.nbytes for name, parameter in self.stage.module.named_parameters()}
        completed: list[list[GradientReady]] = [[] for _ in range(self.num_layers)]
        for name in sorted(names, key=lambda name: (-layers[name], fractions[name])):
            completed[layers[name] - self.stage.first_layer].append(
                GradientReady(name=name, num_bytes=sizes[name], at_share=fractions[name])
            )
        return completed

    def _gradient_moments(self, batch: Batch) -> dict[str, tuple[int, float]]:
        """Return, by parameter, the layer whose backward completed its gradient, and at which fraction of it."""
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
        for name, moment in moments.items():
            above, below = next((pair for pair in pairs if clock.seconds(moment, cuts[pair[1]]) >= 0), pairs[-1])
            whole_s = clock.seconds(cuts[above], cuts[below])
            fraction = clock.seconds(cuts[above], moment) / whole_s if whole_s > 0 else 1.0
            result[name] = (above - 1, min(1.0, max(0.0, fraction)))
        return result

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch that is on the device; a span before the last gets gradients of ones."""
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
            inputs = self.stage.detached(inputs)
        with grain_randomness(self.job.seed, 0, 0):
            return self.stage.run(*inputs)

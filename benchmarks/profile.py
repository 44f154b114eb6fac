"""Whether a profile can be trusted: what it says beside what is measured, both in one run, nothing normalised.

- `stages`: every stage of 2-, 3- and 4-cuts, run alone as a member runs it, beside the sum of its layers' times.
- `sizes`: steps at grain sizes that were not probed, beside the times between the probed ones.
- `gradients`: when DDP's hook sees each bucket of gradients, beside the moments that the profile predicts.
- `memory`: the peak of a process that trains one stage, beside the prediction.
Ratios are predicted / measured.
"""

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Row, run_benchmark
from benchmarks.models import Specimen, specimens
from zooid.core.jobs.job import Job
from zooid.core.plans.profile import TimePoint, times_at
from zooid.layers import Batch, build_stage, flatten_inputs, trace
from zooid.profiler.grain_times import GrainTimes
from zooid.profiler.layer_times import LayerTimer

MODELS = ("bert", "gpt2", "vit", "resnet", "convnext")
QUICK_MODELS = ("mlp",)
SIZES = (1, 2, 4, 8, 16)
"""Grain sizes that are probed."""
UNPROBED = (3, 6, 12)
STAGE_SIZE = 4
"""Grain size of the stages that are run alone."""
POWERS = (1.0, 0.6)
"""Cuts even by time, and drawn towards the end."""
REPEATS = 15
NUM_BUCKETS = 6

Partition = tuple[tuple[int, int], ...]


def measure(quick: bool) -> Iterator[Row]:
    torch.set_num_threads(1)
    every = specimens()
    for name in QUICK_MODELS if quick else MODELS:
        subject = _Subject(name, every[name])
        yield from subject.rows()


class _Subject:
    """One model with its timer. Both sides of every comparison are measured in turn, in several rounds."""

    def __init__(self, name: str, specimen: Specimen) -> None:
        torch.manual_seed(0)
        self._name = name
        self._specimen = specimen
        self._model = specimen.build("medium", 0.0).train()
        self._batches = {size: self._batch(size) for size in (*SIZES, *UNPROBED)}
        with torch.device("meta"):
            outline = specimen.build("medium", 0.0)
        self._layered = trace(outline, self._batches[2].to("meta"))
        job = Job(
            model=lambda: self._model, loss=self._loss, data=list, optimizer=torch.optim.SGD, batch_size=32, epochs=1
        )
        self._timer = LayerTimer(job, self._layered, self._model, torch.device("cpu"))

    def rows(self) -> Iterator[Row]:
        layers = self._timer.measure([self._batches[size] for size in SIZES], seconds=0.1, num_rounds=1)
        partitions = self._partitions([p.forward_s + p.backward_s for p in layers[-1].points()])
        stages = sorted({stage for partition in partitions for stage in partition})
        alone = {stage: self._stage_alone(*stage) for stage in stages}
        times: dict[tuple[int, int], list[float]] = {stage: [] for stage in stages}
        unprobed: dict[int, list[float]] = {size: [] for size in UNPROBED}
        measured = [GrainTimes(size) for size in SIZES]
        buckets = _Buckets(copy.deepcopy(self._model), self._batches[STAGE_SIZE], self._eager_loss)
        for _ in range(REPEATS):  # in turn, so that a slow phase of the machine meets both sides
            for seen, size in zip(measured, SIZES, strict=True):
                self._timer.measure_once(self._batches[size], seen)
            for stage, run in alone.items():
                times[stage].append(_timed(run))
            for size, seconds in unprobed.items():
                seconds.append(sum(self._timer.run_bare(self._batches[size])))
            buckets.measure()
        points = _by_layer([seen.points() for seen in measured])
        yield from self._stage_rows(partitions, points, times)
        yield from self._size_rows(points, unprobed)
        yield from self._gradient_rows(points, buckets)

    def _stage_rows(
        self, partitions: list[Partition], points: list[list[TimePoint]], times: dict[tuple[int, int], list[float]]
    ) -> Iterator[Row]:
        for partition in partitions:
            for first, end in partition:
                predicted = sum(sum(times_at(points[layer], STAGE_SIZE)) for layer in range(first, end))
                yield self._row("stage", f"{first}-{end} of {len(partition)}", predicted, times[first, end])

    def _size_rows(self, points: list[list[TimePoint]], unprobed: dict[int, list[float]]) -> Iterator[Row]:
        for size, seconds in unprobed.items():
            predicted = sum(sum(times_at(of_layer, size)) for of_layer in points)
            yield self._row("size", f"{size} samples", predicted, seconds)

    def _gradient_rows(self, points: list[list[TimePoint]], buckets: "_Buckets") -> Iterator[Row]:
        ready = self._timer.gradients(self._batches[STAGE_SIZE])
        backward_s = [times_at(of_layer, STAGE_SIZE)[1] for of_layer in points]
        moments = {
            gradient.name: sum(backward_s[layer + 1 :]) + gradient.at_share * backward_s[layer]
            for layer, gradients in enumerate(ready)
            for gradient in gradients
        }
        for names, seconds in buckets.seen:
            predicted = max(moments[name] for name in names)
            yield self._row("gradients", f"{names[-1]} and {len(names) - 1} more", predicted, seconds)

    def _row(self, what: str, which: str, predicted_s: float, measured_s: list[float]) -> Row:
        middle_s = statistics.median(measured_s)
        return {
            "model": self._name,
            "what": what,
            "which": which,
            "predicted_s": predicted_s,
            "measured_s": middle_s,
            "ratio": predicted_s / middle_s,
        }

    def _partitions(self, times_s: list[float]) -> list[Partition]:
        """Cuts into 2, 3 and 4 stages: even by time, and uneven."""
        num_layers = len(times_s)
        total = list(accumulate(times_s))
        found = []
        for num_stages in (2, 3, 4):
            for power in POWERS:
                shares = [(number / num_stages) ** power * total[-1] for number in range(1, num_stages)]
                cuts = [next(at + 1 for at in range(num_layers) if total[at] >= share) for share in shares]
                edges = sorted({0, *(min(cut, num_layers - 1) for cut in cuts), num_layers})
                if len(edges) == num_stages + 1:
                    found.append(tuple(pairwise(edges)))
        return found

    def _stage_alone(self, first: int, end: int) -> Callable[[], None]:
        """A stage as a member runs it, on the values that really reach it."""
        state = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        before = build_stage(self._layered, 0, first, state, "cpu") if first else None
        stage = build_stage(self._layered, first, end, state, "cpu")
        batch = self._batches[STAGE_SIZE]
        with torch.no_grad():
            values = flatten_inputs(batch) if before is None else before.module(*flatten_inputs(batch))
            after = stage.module(*values)
        flags_after = stage.differentiable_outputs or (False,) * len(after)
        gradients = [torch.randn_like(v) * 1e-3 for v, flag in zip(after, flags_after, strict=True) if flag]

        def run() -> None:
            flags = stage.differentiable_inputs
            inputs = [v.detach().requires_grad_(flag) for v, flag in zip(values, flags, strict=True)]
            outputs = stage.module(*inputs)
            if stage.is_last:
                torch.autograd.backward(self._loss(stage.model_output(outputs), batch.target))
            else:
                heads = [v for v, flag in zip(outputs, stage.differentiable_outputs, strict=True) if flag]
                torch.autograd.backward(heads, gradients)

        return run

    def _batch(self, size: int) -> Batch:
        inputs = self._specimen.inputs("medium", size)
        return Batch((), inputs, None, size) if isinstance(inputs, dict) else Batch(inputs, {}, None, size)

    def _loss(self, output: Any, target: Any) -> torch.Tensor:
        return self._specimen.loss(output)

    def _eager_loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return self._specimen.loss(model(*batch.args, **batch.kwargs))


class _Buckets:
    """DDP around the untouched model, alone in its group: the moment at which each bucket of gradients is complete."""

    def __init__(self, model: nn.Module, batch: Batch, loss: Callable[[nn.Module, Batch], torch.Tensor]) -> None:
        self.seen: list[tuple[list[str], list[float]]] = []
        self._batch = batch
        self._loss = loss
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self._model = DistributedDataParallel(model, bucket_cap_mb=num_bytes / 2**20 / NUM_BUCKETS)
        self._model.register_comm_hook(None, self._on_bucket)
        self._moments: list[tuple[list[str], float]] = []
        for _ in range(3):  # DDP orders its buckets after what it saw first
            self._step()

    def measure(self) -> None:
        self._step()
        if not self.seen:
            self.seen = [(names, []) for names, _ in self._moments]
        for (_, seconds), (_, moment) in zip(self.seen, self._moments, strict=True):
            seconds.append(moment)

    def _step(self) -> None:
        self._moments = []
        loss = self._loss(self._model, self._batch)
        begin_s = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        self._moments = [(names, at_s - begin_s) for names, at_s in self._moments]

    def _on_bucket(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        self._moments.append(([self._names[id(p)] for p in bucket.parameters()], time.perf_counter()))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


def _by_layer(sizes: list[list[TimePoint]]) -> list[list[TimePoint]]:
    return [list(points) for points in zip(*sizes, strict=True)]


def _timed(run: Callable[[], None]) -> float:
    begin_s = time.perf_counter()
    run()
    return time.perf_counter() - begin_s


def summary(rows: list[Row]) -> list[Row]:
    """Mean and worst error by what was compared."""
    found: list[Row] = []
    for what in dict.fromkeys(str(row["what"]) for row in rows):
        errors = [abs(float(str(row["ratio"])) - 1) for row in rows if row["what"] == what]
        found.append({"what": what, "mean_error": statistics.mean(errors), "worst_error": max(errors)})
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        meeting = dist.FileStore(f"{folder}/meeting", 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=meeting, rank=0, world_size=1, timeout=timedelta(seconds=60))
        run_benchmark("profile against measurement", measure, lambda quick: 0, summary)
        dist.destroy_process_group()

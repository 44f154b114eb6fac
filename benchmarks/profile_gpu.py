"""The profiler on a CUDA GPU: a ResNet-50 and a GPT-2 of 124 million parameters, measured as any job is.

Rows compare the sum of the layers' times with a whole step that nothing watches, at every probed grain size, and with
stages that are run alone. Each profile also says where its knee is, and how fast pinned memory is copied.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.harness import Row, run_benchmark
from zooid.core.jobs.job import Job
from zooid.core.plans.profile import Profile
from zooid.core.runs.spec import ProfilerSpec
from zooid.layers import build_model, build_stage, collate, flatten_inputs, trace_job
from zooid.planner.partition import smallest_need
from zooid.planner.partition.problem import span_sums
from zooid.profiler.job_profile import measure_job
from zooid.store import open_store

LENGTH = 256
REPEATS = 20


class Made(Dataset[tuple[Any, None]]):
    """Random samples, made when they are asked for."""

    def __init__(self, sample: Callable[[], dict[str, torch.Tensor]]) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], None]:
        torch.manual_seed(index)
        return self._sample(), None


def jobs() -> dict[str, Job]:
    import transformers as hf

    def image() -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.randn(3, 224, 224), "labels": torch.randint(0, 1000, ())}

    def text() -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 50000, (LENGTH,))
        return {"input_ids": tokens, "labels": tokens}

    def job(build: Callable[[], Any], sample: Callable[[], dict[str, torch.Tensor]]) -> Job:
        return Job(
            model=build,
            loss=None,
            data=lambda: Made(sample),
            optimizer=lambda named: torch.optim.AdamW(named, lr=1e-4),
            batch_size=64,
            epochs=1,
        )

    return {
        "resnet50": job(lambda: hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000)), image),
        "gpt2": job(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, loss_type="ForCausalLMLoss")), text),
    }


def measure(quick: bool) -> Iterator[Row]:
    for name, job in jobs().items():
        with tempfile.TemporaryDirectory() as folder:
            spec = ProfilerSpec(
                run="gpu", member="profiler", store=f"file://{folder}", job_file=f"{name}.py", num_threads=4,
                site="here", num_neighbours=0, memory_bytes=2**40, device="cuda",
            )  # fmt: skip
            begin_s = time.perf_counter()
            profile = measure_job(job, spec, open_store(f"file://{folder}"), lambda done, total: None)
            wall_s = time.perf_counter() - begin_s
        keep = os.environ.get("OUT")
        if keep:
            from zooid.core.records import encode_record

            Path(keep, f"{name}.profile.json").write_bytes(encode_record(profile))
        assert profile.device.copies is not None
        yield {
            "model": name,
            "what": "profile",
            "device": profile.device.name,
            "layers": len(profile.layers),
            "parameters_mb": profile.parameter_bytes(0, len(profile.layers)) / 1e6,
            "knee": profile.knee,
            "largest_grain": profile.largest_grain,
            "spread_of_steps": profile.spread.of_steps,
            "copies_to_device_gb_per_s": profile.device.copies.to_device_bytes_per_s / 1e9,
            "copies_to_host_gb_per_s": profile.device.copies.to_host_bytes_per_s / 1e9,
            "profiling_s": wall_s,
        }
        yield from compare(name, job, profile)


def compare(name: str, job: Job, profile: Profile) -> Iterator[Row]:
    """Stages of a cut into two and into four, run alone, beside the sums of their layers."""
    size = 16
    batch = collate(job.data(), range(size), job)
    layered = trace_job(job, batch)
    model = build_model(job).cuda()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    times = [layer.forward_s(size) + layer.backward_s(size) for layer in profile.layers]
    for num_stages in (1, 2, 4):
        values: Any = [value.cuda() for value in flatten_inputs(batch)]
        for first, end in smallest_need(span_sums(times), num_stages):
            stage = build_stage(layered, first, end, state, "cuda")
            inputs = [v.detach().requires_grad_(f) for v, f in zip(values, stage.differentiable_inputs, strict=True)]
            measured_s = _median_s(stage, inputs)
            predicted_s = sum(times[first:end])
            yield {
                "model": name,
                "what": f"stage {first}-{end} of {num_stages}",
                "predicted_s": predicted_s,
                "measured_s": measured_s,
                "ratio": predicted_s / measured_s,
            }
            with torch.no_grad():
                values = stage.module(*values)


def _median_s(stage: Any, inputs: list[torch.Tensor]) -> float:
    seconds = []
    for repeat in range(REPEATS + 3):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        outputs = stage.module(*inputs)
        if stage.is_last:
            torch.autograd.backward(stage.model_output(outputs).loss)
        else:
            heads = [v for v, flag in zip(outputs, stage.differentiable_outputs, strict=True) if flag]
            torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
        end.record()
        torch.cuda.synchronize()
        if repeat >= 3:
            seconds.append(begin.elapsed_time(end) / 1000)
    return float(statistics.median(seconds))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA GPU here")
    run_benchmark("profiler on a GPU", measure, lambda quick: 16)

"""Plans a run without a profile in a given layout, with stages as even as a trace can tell.

A trace knows bytes, but not seconds. The weight of a layer adds its fractions of three totals: the model's parameters,
the bytes that layers pass on, and the number of layers. The cuts minimize the weight of the heaviest stage.
"""

import itertools
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from zooid.core.errors import PlanError
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import FixedLayout, Plan, StagePlan
from zooid.layers import LayeredModel
from zooid.schedule.samples import SamplePlan

_GRAINS_PER_STAGE = 2
"""Number of grains of a replica for each of its stages: a pipeline of 4 stages then idles for 3 of 11 turns."""


def even_plan(
    job: Job,
    num_samples: int,
    layered: LayeredModel,
    layout: FixedLayout,
    job_file: str,
    grain_size: int | None = None,
) -> Plan:
    """A plan in this layout, without predictions. Raises PlanError if the model or the batch is too small for it.

    `grain_size` is that of a run that trains already.
    """
    if layout.num_stages > layered.num_layers:
        raise PlanError(
            f"{layout.num_stages} stages are asked for, but the model has {layered.num_layers} layer(s); ask for at "
            f"most {layered.num_layers}"
        )
    grain_size = grain_size or _grain_size(job, layout)
    num_grains = math.ceil(job.batch_size / grain_size)
    if num_grains < layout.num_replicas:
        raise PlanError(
            f"{layout.num_replicas} replicas are asked for, but a batch of {job.batch_size} samples has "
            f"{num_grains} grain(s) of {grain_size}; ask for at most {num_grains}, or give a smaller job.grain_size"
        )
    ends = even_cuts(_weights(layered), layout.num_stages)
    return Plan(
        job=Path(job_file).stem,
        model_fingerprint=layered.fingerprint,
        why_whole=layered.why_whole,
        autocast=job.autocast,
        batch_size=job.batch_size,
        grain_size=grain_size,
        num_replicas=layout.num_replicas,
        stages=tuple(
            StagePlan(
                first_layer=first,
                end_layer=end,
                offer=layout.offer_at(stage if layout.num_replicas == 1 else 0).name,
                memory_bytes=0,
            )
            for stage, (first, end) in enumerate(zip((0, *ends), ends, strict=False))
        ),
        schedule=layout.schedule,
        transport=layout.transport,
        all_reduce="auto",
        reproducible=layout.reproducible,
        insured=layout.insured,
        offers=tuple({offer.name: offer for offer in layout.offers}.values()),
        replica_offers=_replica_offers(layout),
        unpredicted_steps=SamplePlan.of(job, num_samples, grain_size).num_steps,
    )


def _replica_offers(layout: FixedLayout) -> tuple[str, ...]:
    """The offers of replicas, if they differ."""
    if len(layout.offers) == 1 or layout.num_replicas == 1:
        return ()
    return tuple(layout.offer_at(replica).name for replica in range(layout.num_replicas))


def even_cuts(weights: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Ends of the stages whose heaviest is as light as possible. Each stage has at least one layer."""
    before = list(itertools.accumulate(weights, initial=0.0))

    @cache
    def best(first: int, num_left: int) -> tuple[float, tuple[int, ...]]:
        """Weight of the heaviest of `num_left` stages from layer `first` on, and the ends of these stages."""
        if num_left == 1:
            return before[-1] - before[first], (len(weights),)
        candidates = []
        for end in range(first + 1, len(weights) - num_left + 2):
            heaviest, ends = best(end, num_left - 1)
            candidates.append((max(heaviest, before[end] - before[first]), (end, *ends)))
        return min(candidates)

    return best(0, num_stages)[1]


def _grain_size(job: Job, layout: FixedLayout) -> int:
    """The job's grain size, or one that gives every replica enough grains for its stages."""
    if job.grain_size is not None:
        return job.grain_size
    num_grains = 1 if layout.num_stages == 1 else _GRAINS_PER_STAGE * layout.num_stages
    return max(1, job.batch_size // (layout.num_replicas * num_grains))


def _weights(layered: LayeredModel) -> list[float]:
    layers = range(layered.num_layers)
    parameters = _fractions([sum(layered.trained_bytes(layer, layer + 1).values()) for layer in layers])
    crossing = _fractions([layered.bytes_into(layer, 1) for layer in layers])
    return [sum(parts) + 1 / len(layers) for parts in zip(parameters, crossing, strict=True)]


def _fractions(sizes: Sequence[int]) -> list[float]:
    return [size / (sum(sizes) or 1) for size in sizes]

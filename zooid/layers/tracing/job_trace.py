"""Traces a job's model, without its weights where that is possible."""

import torch

from zooid.core.jobs.job import Job
from zooid.layers.jobs.batches import Batch
from zooid.layers.jobs.job_checks import default_device
from zooid.layers.jobs.model_builder import NeedsWeights, build_model, build_model_on_meta
from zooid.layers.stages.autocast import note_autocast
from zooid.layers.stages.layered_model import LayeredModel
from zooid.layers.stages.whole_model import whole_model
from zooid.layers.tracing.tracer import trace


def trace_job(job: Job, example: Batch, device: torch.device | None = None, *, why_whole: str = "") -> LayeredModel:
    """Return the layers of the job's model for this kind of device.

    `why_whole` is the reason where the model is known to be uncuttable; it is then one layer.
    """
    if why_whole:
        return whole_model(build_model(job), example, why_whole)
    try:
        layered = trace(build_model_on_meta(job), example)
    except NeedsWeights:
        layered = trace(build_model(job), example)
    if layered.whole is not None:
        return whole_model(build_model(job), example, layered.why_whole)
    if job.autocast is not None:
        note_autocast(layered, job.autocast, device or default_device())
    return layered

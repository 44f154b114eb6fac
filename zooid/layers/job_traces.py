"""The layers of a job's model, traced without its weights where that is possible."""

import torch

from zooid.core.job import Job
from zooid.layers.batches import Batch
from zooid.layers.building import NeedsWeights, build_model, build_model_on_meta
from zooid.layers.casting import note_autocast
from zooid.layers.checking import default_device
from zooid.layers.layered import LayeredModel
from zooid.layers.tracing import trace
from zooid.layers.whole import whole_model


def trace_job(job: Job, example: Batch, device: torch.device | None = None, *, why_whole: str = "") -> LayeredModel:
    """The model's layers, without its weights where that is possible; to be run on this kind of device.

    `why_whole` is given where it is known that the model cannot be cut.
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

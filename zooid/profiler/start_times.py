"""The processor time in which a member becomes ready to train, apart from importing the job."""

import time

import torch

from zooid.core.jobs.job import Job
from zooid.layers import EXAMPLE_SIZE, LayeredModel, check_data, collate, trace_job
from zooid.layers.record import UnknownClass, decode_constants, decode_trace, encode_trace, rebuild


def measure_start(job: Job, layered: LayeredModel, device: torch.device) -> float:
    """Return the processor time in which a member builds its data and its layers.

    Members rebuild the layers from a record of the trace. Only if there is none, each of them traces the model.
    """
    encoded = encode_trace(layered, device)
    begin_s = time.process_time()
    data = check_data(job)
    try:
        if encoded.trace.layers is not None:
            constants = decode_constants(encoded.constants, "the trace") if encoded.constants else {}
            recorded = decode_trace(encoded.data, "the trace").layers
            assert recorded is not None
            rebuild(recorded, constants)
            return time.process_time() - begin_s
    except UnknownClass:  # members then trace the model themselves
        pass
    trace_job(job, collate(data, range(EXAMPLE_SIZE), job), why_whole=layered.why_whole)
    return time.process_time() - begin_s

"""The model's trace in the run's folder, written once before members start, and read by each of them."""

import logging
import time
from collections.abc import Callable
from typing import Any

from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.jobs.job import Job
from zooid.core.runs import keys
from zooid.core.runs.events import Event, ModelTraced
from zooid.core.runs.trace import digest_of
from zooid.layers import EXAMPLE_SIZE, LayeredModel, collate, default_device
from zooid.layers.record import UnknownClass, decode_constants, decode_trace, encode_trace, rebuild
from zooid.layers.stages.autocast import note_autocast
from zooid.store import ObjectStore

_log = logging.getLogger(__name__)


def write_trace(store: ObjectStore, layered: LayeredModel, tell: Callable[[Event], None]) -> str:
    """Store the trace of a model, and tell and return the digest by which members find it."""
    encoded = encode_trace(layered, default_device())
    data, digest = encoded.data, digest_of(encoded.data)
    if encoded.trace.layers is not None and encoded.constants:
        store.put(keys.trace_constants(encoded.trace.layers.constants_digest), encoded.constants)
    store.put(keys.trace(digest), data)
    if encoded.trace.why_traced:
        _log.info("every member traces the model itself: %s", encoded.trace.why_traced)
    tell(ModelTraced(at_s=time.time(), digest=digest, why_traced=encoded.trace.why_traced))
    return digest


def layers_of(store: ObjectStore, digest: str, job: Job, data: Any, *, why_whole: str = "") -> LayeredModel:
    """The layers of a job's model, from the trace of this digest, or traced here if it cannot be used."""
    layered = _recorded_layers(store, digest, job) if digest else None
    if layered is not None:
        return layered
    from zooid.layers import trace_job

    return trace_job(job, collate(data, range(EXAMPLE_SIZE), job), why_whole=why_whole)


def _recorded_layers(store: ObjectStore, digest: str, job: Job) -> LayeredModel | None:
    """The layers from a trace in the store; None if this member must trace the model itself."""
    key = keys.trace(digest)
    trace = decode_trace(_read(store, key, digest), f"{store.url}/{key}")
    if trace.layers is None:
        return None
    constants = {}
    if digest := trace.layers.constants_digest:
        constants_key = keys.trace_constants(digest)
        constants = decode_constants(_read(store, constants_key, digest), f"{store.url}/{constants_key}")
    try:
        layered = rebuild(trace.layers, constants)
    except UnknownClass as error:
        _log.info("this member traces the model itself: %s", error)
        return None
    if layered.fingerprint != trace.fingerprint:
        raise RecordError(
            f"{store.url}/{key} rebuilds a model whose fingerprint differs from the traced one: this member has "
            "another version of torch or zooid than the one that prepared the run; use one version everywhere"
        )
    device = default_device()
    if job.autocast is not None and device.type != trace.layers.device:
        note_autocast(layered, job.autocast, device)
    return layered


def _read(store: ObjectStore, key: str, digest: str) -> bytes:
    try:
        data = bytes(store.get(key))
    except ObjectNotFound as error:
        raise RecordError(
            f"{store.url}/{key}, from which members build the model, is missing; `zooid resume` writes it again"
        ) from error
    if digest_of(data) != digest:
        raise RecordError(
            f"{store.url}/{key} has been altered since this member was launched (its digest differs); `zooid resume` "
            "writes it again"
        )
    return data

"""The task `check`: whether a job is still the one that a run's last checkpoint is of.

Which samples a step owns and what it does with them must be the same as before: otherwise the run would go on, but not
as the run that it was.
"""

import time
from typing import Any

from msgspec import structs

from zooid.core import keys
from zooid.core.checkpoint import CheckpointManifest, SampleFacts
from zooid.core.errors import JobError
from zooid.core.events import OptimizerChanged
from zooid.core.job import load_job
from zooid.core.plan import Plan
from zooid.core.records import decode_record
from zooid.core.spec import WorkerSpec
from zooid.layers import check_job, trace_job
from zooid.store import EventWriter, ObjectStore
from zooid.store.checkpoints import last_step, read_manifest
from zooid.worker.checkpoints.contents import digest_of_shards, sample_facts, whole_optimizer
from zooid.worker.checkpoints.optimizer_state import optimizer_settings

_WORDS = {
    "num_samples": "number of samples",
    "batch_size": "batch size",
    "grain_size": "grain size",
    "epochs": "number of epochs",
    "seed": "seed",
    "is_in_order": "data set being read in order",
}


def check(spec: WorkerSpec, store: ObjectStore) -> None:
    """Try the job as before a run, and compare it with the checkpoint. What the optimizer is given may change."""
    manifest = read_manifest(store, last_step(store))
    checked = check_job(load_job(spec.job_file))
    plan = decode_record(bytes(store.get(keys.plan(spec.roster))), Plan, keys.plan(spec.roster))
    fingerprint = trace_job(checked.job, checked.example, why_whole=plan.why_whole).fingerprint
    facts = sample_facts(checked.job, checked.data, checked.job.grain_size or manifest.samples.grain_size)
    changes = changes_since(manifest, facts, checked.data, fingerprint)
    optimizer = whole_optimizer(checked)
    if (kind := type(optimizer).__name__) != manifest.optimizer_class:
        changes.append(f"its optimizer was {manifest.optimizer_class}, and is {kind}")
    if (meaning := checked.loss_form.meaning) != manifest.loss_form.meaning:
        changes.append(f"its loss was {manifest.loss_form.meaning}, and is {meaning}")
    if changes:
        raise JobError(
            f"{spec.job_file} has changed since the checkpoint of step {manifest.step} in {store.url}: "
            f"{'; '.join(changes)}. Put that back to resume the run, or train anew in another folder"
        )
    settings, before = optimizer_settings(optimizer), manifest.optimizer_settings
    if before and settings != before:
        with EventWriter(store, spec.member, spec.roster) as events:
            events.write(OptimizerChanged(at_s=time.time(), settings=settings, before=before))


def changes_since(manifest: CheckpointManifest, now: SampleFacts, data: Any, fingerprint: str) -> list[str]:
    """What would make the run another one, in words."""
    before = manifest.samples
    changes = [
        f"its {_WORDS[field]} was {value}, and is {getattr(now, field)}"
        for field, value in structs.asdict(before).items()
        if value != getattr(now, field)
    ]
    if digest_of_shards(data) != manifest.data_shards:
        changes.append("its data set is divided into other shards, which changes the order of samples")
    if fingerprint != manifest.model_fingerprint:
        changes.append("its model is another one (the fingerprint of its operations and parameters differs)")
    return changes

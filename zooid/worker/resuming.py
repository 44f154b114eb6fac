"""The task `check`: whether a job is still the one that a run's last checkpoint is of.

Which samples a step owns and what it does with them must be the same as before: otherwise the run would go on, but not
as the run that it was.
"""

from msgspec import structs

from zooid.core.checkpoint import CheckpointManifest
from zooid.core.errors import JobError
from zooid.core.job import load_job
from zooid.core.spec import WorkerSpec
from zooid.layers import CheckedJob, check_job, trace_job
from zooid.store import ObjectStore
from zooid.store.checkpoints import last_step, read_manifest
from zooid.worker.checkpoint import digest_of_shards, optimizer_class, sample_facts

_WORDS = {
    "num_samples": "number of samples",
    "batch_size": "batch size",
    "grain_size": "grain size",
    "epochs": "number of epochs",
    "seed": "seed",
}


def check(spec: WorkerSpec, store: ObjectStore) -> None:
    """Try the job as before a run, and compare it with the checkpoint."""
    manifest = read_manifest(store, last_step(store))
    checked = check_job(load_job(spec.job_file))
    fingerprint = trace_job(checked.job, checked.example).fingerprint
    if changes := changes_since(manifest, checked, fingerprint):
        raise JobError(
            f"{spec.job_file} has changed since the checkpoint of step {manifest.step} in {store.url}: "
            f"{'; '.join(changes)}. Put that back to resume the run, or train anew in another folder"
        )


def changes_since(manifest: CheckpointManifest, checked: CheckedJob, fingerprint: str) -> list[str]:
    """What would make the run another one, in words."""
    before = manifest.samples
    now = sample_facts(checked.job, checked.num_samples, checked.job.grain_size or before.grain_size)
    changes = [
        f"its {_WORDS[field]} was {value}, and is {getattr(now, field)}"
        for field, value in structs.asdict(before).items()
        if value != getattr(now, field)
    ]
    if digest_of_shards(checked.data) != manifest.data_shards:
        changes.append("its data set is divided into other shards, which changes the order of samples")
    if fingerprint != manifest.model_fingerprint:
        changes.append("its model is another one (the fingerprint of its operations and parameters differs)")
    if (optimizer := optimizer_class(checked)) != manifest.optimizer_class:
        changes.append(f"its optimizer was {manifest.optimizer_class}, and is {optimizer}")
    return changes

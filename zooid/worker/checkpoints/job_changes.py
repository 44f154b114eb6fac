"""What differs between a job and the run that a checkpoint is of."""

from typing import Any

from msgspec import structs

from zooid.core.runs.checkpoint import CheckpointManifest, SampleFacts
from zooid.worker.checkpoints.contents import digest_of_shards

_WORDS = {
    "num_samples": "number of samples",
    "batch_size": "batch size",
    "grain_size": "grain size",
    "epochs": "number of epochs",
    "seed": "seed",
    "is_in_order": "data set being read in order",
}


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

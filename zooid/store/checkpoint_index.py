"""The checkpoints in a run's folder, without their tensors: the complete ones, and those to delete."""

from zooid.core.errors import CheckpointError, ObjectNotFound
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.store.folders import clear
from zooid.store.store_protocol import ObjectStore
from zooid.store.stored_records import read_record


def complete_steps(store: ObjectStore) -> list[int]:
    """Steps of the complete checkpoints, in ascending order."""
    return [step for step, is_complete in _checkpoints(store).items() if is_complete]


def last_step(store: ObjectStore) -> int:
    """The step of the latest complete checkpoint."""
    steps = complete_steps(store)
    if not steps:
        raise CheckpointError(f"{store.url} holds no complete checkpoint; give the folder of a run or of a checkpoint")
    return steps[-1]


def read_manifest(store: ObjectStore, step: int) -> CheckpointManifest:
    key = keys.checkpoint_manifest(step)
    try:
        return read_record(store, key, CheckpointManifest)
    except ObjectNotFound as error:
        raise CheckpointError(f"{store.url} holds no complete checkpoint of step {step} ({key} is missing)") from error


def reject_missing_shards(store: ObjectStore, manifest: CheckpointManifest) -> None:
    """Reject a checkpoint that lacks shards which its manifest names; this takes one listing."""
    present = set(store.list(keys.CHECKPOINTS))
    if missing := [key for key in _named(manifest) if key not in present]:
        raise CheckpointError(
            f"the checkpoint of step {manifest.step} in {store.url} lacks {missing[0]}"
            f"{f' and {len(missing) - 1} more' if missing[1:] else ''}, which its manifest names; "
            f"{how_to_do_without(manifest.step)}"
        )


def how_to_do_without(step: int) -> str:
    """Advice for a user whose checkpoint is damaged."""
    return f"restore it, or delete {keys.checkpoint(step)} to continue from the checkpoint before it"


def prune(store: ObjectStore, keep: int, best_step: int | None = None) -> None:
    """Delete all complete checkpoints except the best one and the last `keep`, and remains of earlier deletions.

    The manifest is deleted first, so that a half-deleted checkpoint is invisible. A pending checkpoint is newer than
    all complete ones, and is left alone.
    """
    assert keep >= 1, "the newest checkpoint stays"
    is_complete_at = _checkpoints(store)
    complete = [step for step, is_complete in is_complete_at.items() if is_complete]
    if not complete:
        return
    kept = {*complete[-keep:], best_step}
    for step in is_complete_at:
        if step < complete[-1] and step not in kept:
            _remove(store, step)


def remove_strays(store: ObjectStore, step: int) -> None:
    """Delete shards of a replaced roster from a checkpoint that is complete without them."""
    named = _named(read_manifest(store, step))
    shards = {key for key in store.list(keys.checkpoint(step)) if key.endswith(keys.SHARD_SUFFIX)}
    if strays := shards.difference(named):
        store.delete(sorted(strays))


def sweep_incomplete(store: ObjectStore) -> int:
    """Delete incomplete checkpoints, and return their number of objects; nobody may be writing one."""
    incomplete = [step for step, is_complete in _checkpoints(store).items() if not is_complete]
    return sum(_remove(store, step) for step in incomplete)


def sweep_strays(store: ObjectStore) -> None:
    """Delete what excluded members have written too late; nobody may be writing a checkpoint."""
    sweep_incomplete(store)
    for step in complete_steps(store):
        remove_strays(store, step)


def _named(manifest: CheckpointManifest) -> list[str]:
    return [shard.key for shard in (*manifest.shards, *manifest.optimizer, *manifest.constants)]


def _checkpoints(store: ObjectStore) -> dict[int, bool]:
    return keys.checkpoint_steps(store.list(keys.CHECKPOINTS))


def _remove(store: ObjectStore, step: int) -> int:
    store.delete([keys.checkpoint_manifest(step)])
    return clear(store, keys.checkpoint(step))

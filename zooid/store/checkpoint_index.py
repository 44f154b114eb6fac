"""The checkpoints in a run's folder, as far as that needs no tensors: which are complete, and which have to go."""

from zooid.core.errors import CheckpointError, ObjectNotFound
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.store.objects import clear
from zooid.store.store_protocol import ObjectStore
from zooid.store.stored_records import read_record


def complete_steps(store: ObjectStore) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    return [step for step, is_complete in _checkpoints(store).items() if is_complete]


def last_step(store: ObjectStore) -> int:
    """The latest complete checkpoint of a run."""
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


def refuse_missing_shards(store: ObjectStore, manifest: CheckpointManifest) -> None:
    """Everything that a manifest names has to be there; one listing tells."""
    present = set(store.list(keys.CHECKPOINTS))
    named = [shard.key for shard in (*manifest.shards, *manifest.optimizer, *manifest.constants)]
    if missing := [key for key in named if key not in present]:
        raise CheckpointError(
            f"the checkpoint of step {manifest.step} in {store.url} lacks {missing[0]}"
            f"{f' and {len(missing) - 1} more' if missing[1:] else ''}, which its manifest names; "
            f"{how_to_do_without(manifest.step)}"
        )


def how_to_do_without(step: int) -> str:
    """What to tell a user whose checkpoint is damaged."""
    return f"put it back, or delete {keys.checkpoint(step)} to go on from the checkpoint before it"


def prune(store: ObjectStore, keep: int, best_step: int | None = None) -> None:
    """Delete all complete checkpoints but the best one and the last `keep`, and what earlier deletions have left.

    The manifest goes first, so that what is half deleted is invisible; the newest always stays. A checkpoint that is
    being written is newer than all complete ones, and is left alone.
    """
    assert keep >= 1, "the newest checkpoint stays"
    found = _checkpoints(store)
    complete = [step for step, is_complete in found.items() if is_complete]
    if not complete:
        return
    kept = {*complete[-keep:], best_step}
    for step in found:
        if step < complete[-1] and step not in kept:
            _remove(store, step)


def remove_strays(store: ObjectStore, step: int) -> None:
    """Delete what a roster that was replaced has written of a checkpoint that is complete without it."""
    manifest = read_manifest(store, step)
    named = {part.key for part in (*manifest.shards, *manifest.optimizer, *manifest.constants)}
    shards = {key for key in store.list(keys.checkpoint(step)) if key.endswith(keys.SHARD_SUFFIX)}
    if strays := shards - named:
        store.delete(sorted(strays))


def sweep_incomplete(store: ObjectStore) -> int:
    """Delete what there is of checkpoints that never became complete; how many objects. Nobody may be writing one."""
    incomplete = [step for step, is_complete in _checkpoints(store).items() if not is_complete]
    return sum(_remove(store, step) for step in incomplete)


def sweep_strays(store: ObjectStore) -> None:
    """Delete what members have written that were left out and woke up too late. Nobody may be writing a checkpoint."""
    sweep_incomplete(store)
    for step in complete_steps(store):
        remove_strays(store, step)


def _checkpoints(store: ObjectStore) -> dict[int, bool]:
    return keys.checkpoint_steps(store.list(keys.CHECKPOINTS))


def _remove(store: ObjectStore, step: int) -> int:
    store.delete([keys.checkpoint_manifest(step)])
    return clear(store, keys.checkpoint(step))

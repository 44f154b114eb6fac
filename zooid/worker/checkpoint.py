"""Checkpoints in the object store: safetensors shards with the model's names, and a manifest that makes them count."""

from collections.abc import Iterable, Sequence

import torch
from safetensors.torch import load, save
from torch import nn

from zooid.core import keys
from zooid.core.checkpoint import CheckpointManifest, Shard
from zooid.core.errors import CheckpointError, ObjectNotFound
from zooid.core.records import decode_record, encode_record
from zooid.layers import LayeredModel
from zooid.store import ObjectStore, open_store

Tensors = dict[str, torch.Tensor]


def load_checkpoint(url: str) -> Tensors:
    """The state dict of a checkpoint's folder, or of the last checkpoint of a run's folder.

    The names are the model's own: `model.load_state_dict(zooid.load_checkpoint("s3://bucket/run-7"))`.
    """
    folder = url.rstrip("/")
    head, separator, name = folder.rpartition(f"/{keys.CHECKPOINTS}/")
    store = open_store(head if separator else folder)
    step = int(name) if separator else last_step(store)
    manifest = read_manifest(store, step)
    state: Tensors = {}
    for shard in manifest.shards:
        state |= _read_shard(store, shard)
    return state | {alias: state[name] for alias, name in manifest.aliases.items()}


def last_step(store: ObjectStore) -> int:
    """The latest complete checkpoint of a run."""
    steps = [key.split("/")[1] for key in store.list(keys.CHECKPOINTS) if key.endswith("/manifest.json")]
    if not steps:
        raise CheckpointError(f"{store.url} holds no complete checkpoint; give the folder of a run or of a checkpoint")
    return max(int(step) for step in steps)


def read_manifest(store: ObjectStore, step: int) -> CheckpointManifest:
    key = keys.checkpoint_manifest(step)
    try:
        data = bytes(store.get(key))
    except ObjectNotFound as error:
        raise CheckpointError(f"{store.url} holds no complete checkpoint of step {step} ({key} is missing)") from error
    return decode_record(data, CheckpointManifest, f"{store.url}/{key}")


def read_tensors(store: ObjectStore, manifest: CheckpointManifest, names: Iterable[str]) -> Tensors:
    """These parameters, buffers and constants, reading only the shards that hold them."""
    wanted = set(names)
    found: Tensors = {}
    for shard in (*manifest.shards, *manifest.constants):
        if wanted.intersection(shard.names):
            found |= {name: tensor for name, tensor in _read_shard(store, shard).items() if name in wanted}
    if missing := wanted - found.keys():
        raise CheckpointError(f"the checkpoint of step {manifest.step} in {store.url} lacks {sorted(missing)}")
    return found


def shard_key(step: int, part: int, num_parts: int) -> str:
    return f"{keys.checkpoint(step)}/model-{part + 1:05d}-of-{num_parts:05d}.safetensors"


def write_shard(store: ObjectStore, step: int, part: int, num_parts: int, tensors: Tensors) -> Shard:
    """Write one shard; it stays invisible until a manifest names it."""
    return _write(store, shard_key(step, part, num_parts), tensors)


def write_manifest(store: ObjectStore, manifest: CheckpointManifest) -> None:
    """Make a checkpoint visible, after all of its shards are written."""
    store.put(keys.checkpoint_manifest(manifest.step), encode_record(manifest))


def write_initial(
    store: ObjectStore, model: nn.Module, stage_names: Sequence[Sequence[str]], layered: LayeredModel
) -> None:
    """Checkpoint 0: the model's initial weights, cut by stage so that each member reads no more than its own."""
    state: Tensors = dict(model.state_dict(keep_vars=True))
    constants = {name: buffer for name, buffer in model.named_buffers() if name not in state}
    manifest = CheckpointManifest(
        step=0,
        model_fingerprint=layered.fingerprint,
        shards=tuple(
            write_shard(store, 0, part, len(stage_names), {name: state[name] for name in names})
            for part, names in enumerate(stage_names)
        ),
        constants=(_write(store, f"{keys.checkpoint(0)}/constants.safetensors", constants),) if constants else (),
        aliases=layered.aliases,
    )
    write_manifest(store, manifest)


def _write(store: ObjectStore, key: str, tensors: Tensors) -> Shard:
    store.put(key, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}))
    return Shard(key=key, names=tuple(sorted(tensors)))


def _read_shard(store: ObjectStore, shard: Shard) -> Tensors:
    try:
        tensors = load(bytes(store.get(shard.key)))
    except ObjectNotFound as error:
        raise CheckpointError(f"{store.url}/{shard.key} is missing, although its manifest is there") from error
    if set(tensors) != set(shard.names):
        raise CheckpointError(f"{store.url}/{shard.key} does not hold the tensors that its manifest names")
    return tensors

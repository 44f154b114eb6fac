"""Writes checkpoints while training goes on: every member its part in a thread, and the first member the manifest."""

import threading
from collections.abc import Mapping

import torch
from msgspec import structs

from zooid.core.abort import Abort
from zooid.core.errors import ObjectExists, StoreError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, Division, Ledger
from zooid.store import Fence, ObjectStore
from zooid.store.checkpoint_index import read_manifest, reject_missing_shards
from zooid.worker.checkpoints.optimizer_state import parameter_of
from zooid.worker.checkpoints.safetensors_file import pack
from zooid.worker.state.loss_scaling import LossScale

_LOOK_S = 0.05


class CheckpointWriter:
    """Writes one member's parts of checkpoints, one at a time."""

    def __init__(self, store: ObjectStore, division: Division, stage: int, replica: int | None, abort: Abort) -> None:
        """`replica` is None for a copy, which contributes nothing."""
        self._store = store
        self._division = division
        self._stage = stage
        self._replica = replica
        self._abort = abort
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.done_step: int | None = None
        """Step of the last checkpoint whose part was written when `poll` was last called."""

    @property
    def is_busy(self) -> bool:
        """Whether a part is pending, or has ended without having been polled."""
        return self._thread is not None

    def begin(
        self, step: int, model_tensors: Mapping[str, torch.Tensor], optimizer_tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Copy this member's part of the state after `step` steps, and begin to write it.

        The tensors may be the whole stage's, and may change as soon as this returns.
        """
        assert not self.is_busy, "a checkpoint is begun when the one before is written"
        part = None if self._replica is None else self._division.part(step, self._stage, self._replica)
        packed: list[tuple[str, memoryview]] = []
        for shard in part.model if part is not None else ():
            packed.append((shard.key, pack({name: model_tensors[name] for name in shard.names})))
        for shard in part.optimizer if part is not None else ():
            names = set(shard.names)
            entries = {entry: tensor for entry, tensor in optimizer_tensors.items() if parameter_of(entry) in names}
            packed.append((shard.key, pack(entries)))
        name = f"checkpoint of step {step}"
        self._thread = threading.Thread(target=self._write, args=(step, packed), name=name, daemon=True)
        self._step = step
        self._thread.start()

    def poll(self) -> int | None:
        """The step of the last checkpoint whose part is written, without waiting. Raises what went wrong with it."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self.done_step = self._step
        return self.done_step

    def wait(self) -> int | None:
        """Wait for the pending part, then poll."""
        while self._thread is not None and self._thread.is_alive():
            self._abort.check()
            self._thread.join(_LOOK_S)
        return self.poll()

    def _write(self, step: int, packed: list[tuple[str, memoryview]]) -> None:
        try:
            while packed:
                key, data = packed.pop(0)
                self._store.put(key, data)
        except StoreError as error:
            self._error = StoreError(
                f"the checkpoint of step {step} could not be written: {error}; those before it are untouched, and when "
                f"the store works again, `zooid resume {self._store.url}` goes on from the last one"
            )
            self._error.__cause__ = error
        except Exception as error:  # noqa: BLE001  # every error must reach the caller's thread
            self._error = error


def write_manifest(
    store: ObjectStore,
    before: CheckpointManifest,
    division: Division,
    step: int,
    scale: LossScale,
    ledger: Ledger,
) -> str:
    """Complete a checkpoint after all members have written their parts, and return the URL of its folder.

    `before` is the manifest that the roster started from, which has the facts of the whole run.
    """
    parts = division.parts(step)
    manifest = structs.replace(
        before,
        step=step,
        shards=tuple(shard for part in parts for shard in part.model),
        optimizer=tuple(shard for part in parts for shard in part.optimizer),
        loss_scale=scale.factor,
        num_good_steps=scale.num_good_steps,
        ledger=ledger,
    )
    Fence(store, division.roster).check()  # a replaced roster must not complete anything
    reject_missing_shards(store, manifest)
    try:
        store.create(keys.checkpoint_manifest(step), encode_record(manifest))
    except ObjectExists:  # it completes a checkpoint of the same state, and stays
        store.delete(sorted(_keys_of(manifest) - _keys_of(read_manifest(store, step))))
    return f"{store.url}/{keys.checkpoint(step)}"


def replace_ledger(store: ObjectStore, manifest: CheckpointManifest, roster: int) -> str:
    """Write the manifest of a checkpoint again, and return the URL of its folder.

    Only the ledger may differ: the run has stopped before any step, which the checkpoint did not know.
    """
    Fence(store, roster).check()
    reject_missing_shards(store, manifest)
    store.put(keys.checkpoint_manifest(manifest.step), encode_record(manifest))
    return f"{store.url}/{keys.checkpoint(manifest.step)}"


def _keys_of(manifest: CheckpointManifest) -> set[str]:
    return {shard.key for shard in (*manifest.shards, *manifest.optimizer, *manifest.constants)}

"""Checkpoints in the object store: safetensors shards with the model's names, and a manifest that completes them."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from zooid.core.errors import CheckpointError, ObjectNotFound
from zooid.core.jobs.job import Job
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, Division, SampleFacts, Shard
from zooid.core.text import quoted
from zooid.layers import CheckedJob, LayeredModel, is_in_order
from zooid.store import ObjectStore, open_store
from zooid.store.checkpoint_index import how_to_do_without, last_step, read_manifest
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors, optimizer_settings, parameter_of
from zooid.worker.checkpoints.safetensors_file import Tensors, pack

_DAMAGED = (SafetensorError, ValueError, LookupError, RuntimeError, TypeError, ArithmeticError)
"""Errors of safetensors and torch for damaged files: a broken header, an unknown dtype, an absurd shape."""


def load_checkpoint(url: str, *, best: bool = False) -> Tensors:
    """The state dict from a checkpoint's folder, or from the last or best checkpoint of a run's folder.

    The names are the model's own: `model.load_state_dict(zooid.load_checkpoint("s3://bucket/run-7"))`.
    """
    store, manifest = open_checkpoint(url, best=best)
    state: Tensors = {}
    for shard in manifest.shards:
        state |= _read_shard(store, shard, manifest.step)
    if missing := sorted(set(manifest.aliases.values()) - state.keys()):
        raise CheckpointError(
            f"the checkpoint of step {manifest.step} in {store.url} lacks {quoted(str(missing))}, which other names in "
            f"its manifest refer to; {how_to_do_without(manifest.step)}"
        )
    return state | {alias: state[name] for alias, name in manifest.aliases.items()}


def load_optimizer(
    url: str, optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]]
) -> int:
    """Load an optimizer's state from a checkpoint, and return the number of steps that the checkpoint contains.

    The folder is a checkpoint's or a run's, as in `load_checkpoint`, and the parameters are those of the plain model:
    `zooid.load_optimizer("s3://bucket/run-7", optimizer, model.named_parameters())`.
    """
    store, manifest = open_checkpoint(url)
    if type(optimizer).__name__ != manifest.optimizer_class:
        raise CheckpointError(
            f"{store.url} was trained with {manifest.optimizer_class}, whose state means nothing to "
            f"{type(optimizer).__name__}; give a {manifest.optimizer_class}"
        )
    named = list(named_parameters)
    tensors = read_optimizer_tensors(store, manifest, [name for name, _ in named])
    load_optimizer_tensors(optimizer, named, tensors)
    return manifest.step


def read_tensors(store: ObjectStore, manifest: CheckpointManifest, names: Iterable[str]) -> Tensors:
    """Read these parameters, buffers and constants, from only the shards that hold them."""
    wanted = set(names)
    selected: Tensors = {}
    for shard in (*manifest.shards, *manifest.constants):
        if wanted.intersection(shard.names):
            tensors = _read_shard(store, shard, manifest.step)
            selected |= {name: tensor for name, tensor in tensors.items() if name in wanted}
    if missing := wanted - selected.keys():
        raise CheckpointError(
            f"the checkpoint of step {manifest.step} in {store.url} lacks {sorted(missing)}; "
            f"{how_to_do_without(manifest.step)}"
        )
    return selected


def read_optimizer_tensors(store: ObjectStore, manifest: CheckpointManifest, parameters: Iterable[str]) -> Tensors:
    """Read the optimizer's state of these parameters, for `load_optimizer_tensors`; a parameter may have none."""
    wanted = set(parameters)
    selected: Tensors = {}
    for shard in manifest.optimizer:
        if wanted.intersection(shard.names):
            tensors = _read_shard(store, shard, manifest.step, is_optimizer=True)
            selected |= {entry: tensor for entry, tensor in tensors.items() if parameter_of(entry) in wanted}
    return selected


def division_of(
    layered: LayeredModel, plan: Plan, roster: int = 0, change: int = 0, *, num_replicas: int | None = None
) -> Division:
    """How members divide the writing of checkpoints under this plan; `num_replicas` replaces the plan's.

    A tensor belongs to the first stage that uses it, and an unused tensor to stage 0.
    """
    stages: list[dict[str, int]] = []
    assigned: set[str] = set()
    for stage in plan.stages:
        sizes = layered.state_bytes(stage.first_layer, stage.end_layer)
        names = layered.persistent_names - assigned
        stages.append({name: size for name, size in sizes.items() if name in names})
        assigned.update(stages[-1])
    stages[0] |= dict.fromkeys(sorted(layered.unused_names), 0)
    return Division(
        stages=tuple(stages),
        parameters=layered.parameter_names - layered.unused_names,
        num_replicas=plan.num_replicas if num_replicas is None else num_replicas,
        roster=roster,
        change=change,
    )


def write_initial(store: ObjectStore, checked: CheckedJob, layered: LayeredModel, plan: Plan) -> None:
    """Write checkpoint 0 with the model's initial weights, cut by stage, so that each member reads only its own."""
    state: Tensors = dict(checked.model.state_dict(keep_vars=True))
    constants = {name: buffer for name, buffer in checked.model.named_buffers() if name not in state}
    parts = division_of(layered, plan, num_replicas=1).parts(0)
    shards = [shard for part in parts for shard in part.model]
    for shard in shards:
        _write(store, shard, state)
    optimizer = whole_optimizer(checked)
    constant = Shard(key=keys.CONSTANTS, names=tuple(sorted(constants)))
    if constants:
        _write(store, constant, constants)
    manifest = CheckpointManifest(
        step=0,
        model_fingerprint=layered.fingerprint,
        samples=sample_facts(checked.job, checked.data, plan.grain_size),
        data_shards=digest_of_shards(checked.data),
        optimizer_class=type(optimizer).__name__,
        optimizer_settings=optimizer_settings(optimizer),
        shards=tuple(shards),
        constants=(constant,) if constants else (),
        aliases=layered.aliases,
        loss_form=checked.loss_form,
    )
    store.create(keys.checkpoint_manifest(0), encode_record(manifest))


def sample_facts(job: Job, data: Any, grain_size: int) -> SampleFacts:
    return SampleFacts(
        num_samples=len(data),
        batch_size=job.batch_size,
        grain_size=grain_size,
        epochs=job.epochs,
        seed=job.seed,
        is_in_order=is_in_order(data),
    )


def digest_of_shards(data: object) -> str:
    """Digest of the sizes of a data set's shards; empty if it has none."""
    sizes = tuple(getattr(data, "shard_sizes", ()))
    return hashlib.blake2b(repr(sizes).encode(), digest_size=8).hexdigest() if sizes else ""


def whole_optimizer(checked: CheckedJob) -> torch.optim.Optimizer:
    """The job's optimizer for all parameters, while that of a member has those of one stage."""
    optimizer: torch.optim.Optimizer = checked.job.optimizer(list(checked.model.named_parameters()))
    return optimizer


def open_checkpoint(url: str, *, best: bool = False) -> tuple[ObjectStore, CheckpointManifest]:
    """Open the store of a run and read a manifest, given the folder of a checkpoint or of the run."""
    folder = url.rstrip("/")
    head, separator, name = folder.rpartition(f"/{keys.CHECKPOINTS}/")
    store = open_store(head if separator else folder)
    if separator and best:
        raise CheckpointError(f"{url} is the folder of one checkpoint; give the run's folder, {head}, to read its best")
    manifest = read_manifest(store, _step_in(name, url, head) if separator else last_step(store))
    if not best:
        return store, manifest
    if manifest.ledger.best_step is None:
        raise CheckpointError(
            f"the run in {store.url} has no best checkpoint; give its job a zooid.Monitor, or let job.on_event "
            "return zooid.Wish.KEEP_BEST"
        )
    return store, read_manifest(store, manifest.ledger.best_step)


def _step_in(name: str, url: str, head: str) -> int:
    """The step in the name of a checkpoint's folder; `head` is the folder of its run."""
    steps = keys.checkpoint_steps([f"{keys.CHECKPOINTS}/{name}/any"])
    if not steps:
        raise CheckpointError(
            f"{quoted(url)} is not the folder of a checkpoint; give the run's folder, or one such as "
            f"{head}/{keys.checkpoint(7)}"
        )
    return next(iter(steps))


def _write(store: ObjectStore, shard: Shard, tensors: Tensors) -> None:
    store.put(shard.key, pack({name: tensors[name] for name in shard.names}))


def _read_shard(store: ObjectStore, shard: Shard, step: int, *, is_optimizer: bool = False) -> Tensors:
    """Read a shard, which holds all its tensors, or optimizer state of some of its parameters."""
    try:
        tensors = load(bytes(store.get(shard.key)))
    except ObjectNotFound as error:
        raise CheckpointError(
            f"{store.url}/{shard.key} is missing, although its manifest is there; {how_to_do_without(step)}"
        ) from error
    except _DAMAGED as error:
        raise CheckpointError(
            f"{store.url}/{shard.key} was cut short or altered ({quoted(str(error))}); {how_to_do_without(step)}"
        ) from error
    names = set(shard.names)
    is_as_named = {parameter_of(entry) for entry in tensors} <= names if is_optimizer else set(tensors) == names
    if not is_as_named:
        raise CheckpointError(
            f"{store.url}/{shard.key} does not hold the tensors that its manifest names; {how_to_do_without(step)}"
        )
    return tensors

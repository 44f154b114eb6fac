"""Writes a checkpoint as a folder that transformers' `from_pretrained` reads.

Shards of a checkpoint are copied piece by piece, so that a model of any size needs little memory.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from zooid.core.errors import CheckpointError, InputError
from zooid.core.jobs.job import Job, load_job
from zooid.core.runs.checkpoint import CheckpointManifest, Shard
from zooid.layers.jobs.model_builder import NeedsWeights, build_model, build_model_on_meta
from zooid.store import ObjectStore
from zooid.store.checkpoint_index import how_to_do_without, reject_missing_shards
from zooid.store.claims import last_claim, remembered_job_file
from zooid.worker.checkpoints.contents import open_checkpoint, read_tensors
from zooid.worker.checkpoints.safetensors_file import pack

_INDEX = "model.safetensors.index.json"


def save_pretrained(url: str, folder: str | Path, *, job_file: str | Path | None = None) -> None:
    """Write the weights of a run and the configuration of its model, as `model.save_pretrained(folder)` would.

    The URL is that of a run or of one checkpoint, as in `load_checkpoint`. The run remembers its job file; give
    `job_file` if it has moved.
    """
    store, manifest = open_checkpoint(url)
    reject_missing_shards(store, manifest)
    job = load_job(job_file or remembered_job_file(store, last_claim(store)[1]))
    model = _model_of_transformers(job)
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in model.state_dict().items()}
    _check_names(sizes, manifest, store)
    target = Path(folder)
    _check_folder(target)
    untied = _aliases_to_write(model, manifest)
    num_files = len(manifest.shards) + bool(untied)
    files: dict[str, str] = {}
    for number, shard in enumerate(manifest.shards):
        file = target / _file_name(number, num_files)
        _copy(store, shard, manifest.step, file)
        files |= dict.fromkeys(shard.names, file.name)
    if untied:
        tensors = read_tensors(store, manifest, untied.values())
        file = target / _file_name(num_files - 1, num_files)
        file.write_bytes(pack({alias: tensors[name] for alias, name in untied.items()}))
        files |= dict.fromkeys(untied, file.name)
    if num_files > 1:
        total_bytes = sum(sizes[name] for name in files)
        index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(files.items()))}
        (target / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    _write_configuration(model, target)


def _model_of_transformers(job: Job) -> Any:
    """The job's model, without weights."""
    try:
        model = build_model_on_meta(job)
    except NeedsWeights:
        model = build_model(job)
    if not (hasattr(model, "can_generate") and hasattr(getattr(model, "config", None), "save_pretrained")):
        raise InputError(
            f"job.model() returns a {type(model).__name__}, which is not a model of transformers: `from_pretrained` "
            "could not read it; zooid.load_checkpoint gives its state dict"
        )
    return model


def _check_names(sizes: Mapping[str, int], manifest: CheckpointManifest, store: ObjectStore) -> None:
    saved = {name for shard in manifest.shards for name in shard.names} | set(manifest.aliases)
    if different := saved ^ set(sizes):
        raise InputError(
            f"the checkpoint in {store.url} is of another model than job.model() builds: only one of them has "
            f"{', '.join(sorted(different)[:3])}; give the run's own job file with --job (in Python, job_file=)"
        )


def _check_folder(folder: Path) -> None:
    """Make the folder, and reject one that holds a model, which would be mixed with the new one."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder to write the model to")
    folder.mkdir(parents=True, exist_ok=True)
    if present := sorted(path.name for path in folder.glob("model*.safetensors*")):
        raise InputError(f"{folder} holds a model already ({present[0]}); give another folder, or delete it")


def _aliases_to_write(model: Any, manifest: CheckpointManifest) -> dict[str, str]:
    """Tied names that `from_pretrained` does not tie by itself, with the names that hold their tensors."""
    source_of: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    return {
        alias: name
        for alias, name in manifest.aliases.items()
        if source_of.get(alias, alias) != source_of.get(name, name)
    }


def _file_name(number: int, num_files: int) -> str:
    """The name that transformers gives to a file of weights."""
    return "model.safetensors" if num_files == 1 else f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"


def _copy(store: ObjectStore, shard: Shard, step: int, file: Path) -> None:
    with file.open("wb") as output:
        for piece in store.stream(shard.key):
            output.write(piece)
    try:
        with safe_open(file, framework="pt") as opened:
            is_as_named = set(opened.keys()) == set(shard.names)
    except (SafetensorError, ValueError, LookupError):
        is_as_named = False
    if not is_as_named:
        raise CheckpointError(f"{store.url}/{shard.key} was cut short or altered; {how_to_do_without(step)}")


def _write_configuration(model: Any, folder: Path) -> None:
    """Write the configuration. It comes last, since without it a folder is no model."""
    model.config.architectures = [type(model).__name__]
    model.config.dtype = str(model.dtype).removeprefix("torch.")
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    model.config.save_pretrained(folder)

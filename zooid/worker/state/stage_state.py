"""A member's stage with everything that training changes, as a checkpoint left it."""

import time
from dataclasses import dataclass

from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.layers import Stage, build_stage
from zooid.schedule.step_state import StepState
from zooid.store import ObjectStore
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.contents import Tensors
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors
from zooid.worker.member.early_stop import Standing
from zooid.worker.member.role import Role
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.training_state import Trainee, TrainingState
from zooid.worker.step.transactions import Place


@dataclass
class Body:
    """What a member has trained. It outlives rosters, until all go back to a checkpoint."""

    stage: Stage
    kept: Tensors
    """What the member keeps without training on it: for the checkpoint, or for evaluation only."""
    manifest: CheckpointManifest
    """The checkpoint that it was read from."""
    state: TrainingState
    standing: Standing
    place: Place
    saved: tuple[int, float]
    """The step of the last complete checkpoint that is known, and when that was."""

    def model_tensors(self) -> Tensors:
        """The part of the model's state dict that this member has."""
        persistent = self.stage.model.persistent_names
        own = self.stage.module.state_dict().items()
        return {name: tensor for name, tensor in own if name in persistent} | self.kept


def load_body(store: ObjectStore, role: Role, manifest: CheckpointManifest, number: int) -> Body:
    """The stage of this number, as the checkpoint left it."""
    stage, kept = _load_stage(store, role, manifest, number)
    completed = tuple(role.layered.trained_bytes(stage.first_layer, stage.end_layer))
    state = TrainingState(
        Trainee(stage.module, completed, role.layered.persistent_names, stage.is_last, role.layered.hooks), role.job
    )
    standing = Standing(role.job, manifest.ledger)
    scale = _restore(store, role, manifest, state, standing)
    place = Place(
        StepState.resumed(manifest.step), scale, is_between_steps=manifest.step == 0 and role.job.evaluate_first
    )
    return Body(stage, kept, manifest, state, standing, place, (manifest.step, time.monotonic()))


def _load_stage(store: ObjectStore, role: Role, manifest: CheckpointManifest, number: int) -> tuple[Stage, Tensors]:
    """The member's own stage with its weights, and what it keeps without training on it: for the checkpoint, or because
    the model uses it in evaluation only."""
    first, end = role.spans[number]
    names = role.layered.state_of(first, end)
    unused = role.layered.unused_names if number == 0 else frozenset()
    tensors = contents.read_tensors(store, manifest, {*names, *unused})
    placed = {name: tensors[name].to(role.device) for name in names}
    stage = build_stage(role.layered, first, end, placed, role.device)
    trained_on = {name for name, _ in (*stage.module.named_parameters(), *stage.module.named_buffers())}
    kept = {name: tensor for name, tensor in placed.items() if name not in trained_on}
    return stage, kept | {name: tensors[name] for name in unused}


def _restore(
    store: ObjectStore, role: Role, manifest: CheckpointManifest, state: TrainingState, standing: Standing
) -> LossScale:
    """Bring optimizer, learning rate and loss scale to where the checkpoint left them."""
    if state.optimizer is not None:
        named = state.named_parameters
        tensors = contents.read_optimizer_tensors(store, manifest, [name for name, _ in named])
        load_optimizer_tensors(state.optimizer, named, tensors)
    state.resume(manifest.step, standing.values)
    if manifest.step == 0 or manifest.loss_scale == 1.0:  # nothing was scaled before
        return LossScale.for_job(role.job.autocast)
    return LossScale(manifest.loss_scale, manifest.num_good_steps)

"""A member's stage with everything that training changes, as a checkpoint left it."""

import time
from dataclasses import dataclass

from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.layers import Stage, build_stage
from zooid.schedule.step_state import StepState
from zooid.store import ObjectStore
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors
from zooid.worker.checkpoints.safetensors_file import Tensors
from zooid.worker.member.evaluation_history import EvaluationHistory
from zooid.worker.member.role import Role
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.training_state import TrainedStage, TrainingState
from zooid.worker.step.member_progress import MemberProgress


@dataclass
class StageState:
    """Everything that a member has trained. It outlives rosters, until all members roll back to a checkpoint."""

    stage: Stage
    untrained: Tensors
    """Tensors that training does not use: for the checkpoint, or for evaluation only."""
    manifest: CheckpointManifest
    """The checkpoint that the state was read from."""
    training: TrainingState
    history: EvaluationHistory
    progress: MemberProgress
    saved: tuple[int, float]
    """Step of the last complete checkpoint that is known, and when it was complete."""
    checkpoint_s: float | None = None
    """Time that the last checkpoint took; None before the first."""

    def model_tensors(self) -> Tensors:
        """The part of the model's state dict that this member has."""
        persistent = self.stage.model.persistent_names
        tensors = self.stage.module.state_dict().items()
        return {name: tensor for name, tensor in tensors if name in persistent} | self.untrained


def load_stage_state(store: ObjectStore, role: Role, manifest: CheckpointManifest, number: int) -> StageState:
    """Read the stage of this number from a checkpoint."""
    stage, untrained = _load_stage(store, role, manifest, number)
    completed = tuple(role.layered.trained_bytes(stage.first_layer, stage.end_layer))
    trained = TrainedStage(stage.module, completed, role.layered.persistent_names, stage.is_last, role.layered.hooks)
    training = TrainingState(trained, role.job)
    history = EvaluationHistory(role.job, manifest.ledger)
    scale = _restore(store, role, manifest, training, history)
    begins_with_evaluation = manifest.step == 0 and role.job.evaluate_first
    progress = MemberProgress(StepState.resumed(manifest.step), scale, is_between_steps=begins_with_evaluation)
    return StageState(stage, untrained, manifest, training, history, progress, (manifest.step, time.monotonic()))


def _load_stage(store: ObjectStore, role: Role, manifest: CheckpointManifest, number: int) -> tuple[Stage, Tensors]:
    """The stage with its weights, and the tensors that training does not use."""
    first, end = role.spans[number]
    names = role.layered.state_of(first, end)
    unused = role.layered.unused_names if number == 0 else frozenset()
    tensors = contents.read_tensors(store, manifest, {*names, *unused})
    on_device = {name: tensors[name].to(role.device) for name in names}
    stage = build_stage(role.layered, first, end, on_device, role.device)
    trained_on = {name for name, _ in (*stage.module.named_parameters(), *stage.module.named_buffers())}
    untrained = {name: tensor for name, tensor in on_device.items() if name not in trained_on}
    return stage, untrained | {name: tensors[name] for name in unused}


def _restore(
    store: ObjectStore, role: Role, manifest: CheckpointManifest, training: TrainingState, history: EvaluationHistory
) -> LossScale:
    """Restore the optimizer, the learning rate and the loss scale of a checkpoint."""
    if training.optimizer is not None:
        named = training.named_parameters
        tensors = contents.read_optimizer_tensors(store, manifest, [name for name, _ in named])
        load_optimizer_tensors(training.optimizer, named, tensors)
    training.resume(manifest.step, history.values)
    if manifest.step == 0 or manifest.loss_scale == 1.0:  # nothing was scaled before
        return LossScale.for_job(role.job.autocast)
    return LossScale(manifest.loss_scale, manifest.num_good_steps)

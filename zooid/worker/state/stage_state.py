"""A member's stage with everything that training changes, as a checkpoint left it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from zooid.core.runs.checkpoint import CheckpointManifest
from zooid.core.runs.state_header import StateHeader
from zooid.layers import Stage, build_stage
from zooid.schedule.samples import SamplePlan
from zooid.schedule.step_state import StepState
from zooid.store import ObjectStore
from zooid.worker.checkpoints import contents
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors
from zooid.worker.checkpoints.safetensors_file import Tensors
from zooid.worker.member.evaluation_history import EvaluationHistory
from zooid.worker.member.role import Role
from zooid.worker.member.step_log import StepLog
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.training_state import TrainedStage, TrainingState
from zooid.worker.step.member_progress import MemberProgress
from zooid.worker.step.step_protocols import TrainedState

Received = Sequence[tuple[StateHeader, Tensors]]
"""A header and the optimizer's state from every member that has sent its state."""


@dataclass
class StageState:
    """Everything that a member has trained. It outlives rosters, until all members roll back to a checkpoint."""

    stage: Stage
    untrained: Tensors
    """Tensors that training does not use: for the checkpoint, or for evaluation only."""
    manifest: CheckpointManifest
    """The checkpoint that the state was read from."""
    training: TrainedState
    history: EvaluationHistory
    progress: MemberProgress
    saved: tuple[int, float]
    """Step of the last complete checkpoint that is known, and when it was complete."""
    samples: SamplePlan
    """The samples of each step, with the batch sizes so far."""
    log: StepLog
    """The steps since the state was read, for the job's scaling policy."""
    pause_s: float | None = None
    """Time for which a checkpoint stops this member, as measured; None before the first."""
    checkpoint_s: float | None = None
    """Time that the last checkpoint took; None before the first."""

    def model_tensors(self) -> Tensors:
        """The part of the model's state dict that this member has."""
        persistent = self.stage.model.persistent_names
        tensors = self.stage.module.state_dict().items()
        return {name: tensor for name, tensor in tensors if name in persistent} | self.untrained


def load_stage_state(store: ObjectStore, role: Role, manifest: CheckpointManifest, number: int) -> StageState:
    """Read the stage of this number from a checkpoint."""
    loaded = load_stage(store, role, manifest, number)

    def read_optimizer(names: Sequence[str]) -> Tensors:
        return contents.read_optimizer_tensors(store, manifest, names)

    return _stage_state(role, manifest, loaded, replace(role.samples), read_optimizer, manifest.step)


def received_stage_state(
    role: Role, manifest: CheckpointManifest, loaded: "Loaded", samples: SamplePlan, received: Received
) -> StageState:
    """The state of a stage whose tensors other members have sent, after it was read from an earlier checkpoint.

    `samples` take the batch sizes that the others have had so far.
    """
    headers = [header for header, _ in received]
    optimizer = {entry: tensor for _, tensors in received for entry, tensor in tensors.items()}
    current = structs.replace(
        manifest,
        step=headers[0].step,
        loss_scale=headers[0].loss_scale,
        num_good_steps=headers[0].num_good_steps,
        ledger=headers[0].ledger,
    )
    state = _stage_state(role, current, loaded, samples, lambda names: optimizer, manifest.step)
    state.manifest = manifest
    state.progress.scale = LossScale(current.loss_scale, current.num_good_steps)  # exactly that of the other members
    return state


def _stage_state(
    role: Role,
    manifest: CheckpointManifest,
    loaded: "Loaded",
    samples: SamplePlan,
    read_optimizer: Callable[[Sequence[str]], Tensors],
    saved_step: int,
) -> StageState:
    """`samples` take the batch sizes of the checkpoint. `read_optimizer` returns the optimizer's state of parameters.

    `saved_step` is that of a checkpoint.
    """
    stage, untrained = loaded
    completed = tuple(role.layered.trained_bytes(stage.first_layer, stage.end_layer))
    trained = TrainedStage(stage.module, completed, role.layered.persistent_names, stage.is_last, role.layered.hooks)
    training = TrainingState(trained, role.job)
    history = EvaluationHistory(role.job, manifest.ledger)
    if training.optimizer is not None:
        named = training.named_parameters
        load_optimizer_tensors(training.optimizer, named, read_optimizer([name for name, _ in named]))
    training.resume(manifest.step, history.values)
    scale = LossScale(manifest.loss_scale, manifest.num_good_steps)
    if manifest.step == 0 or manifest.loss_scale == 1.0:  # nothing was scaled before
        scale = LossScale.for_job(role.job.autocast)
    begins_with_evaluation = manifest.step == 0 and role.job.evaluate_first
    progress = MemberProgress(StepState.resumed(manifest.step), scale, is_between_steps=begins_with_evaluation)
    saved = (saved_step, time.monotonic())
    samples.follow(manifest.ledger.batches)
    if samples.batches:
        training.rate_factor = samples.batches[-1].rate_factor
    return StageState(stage, untrained, manifest, training, history, progress, saved, samples, StepLog())


Loaded = tuple[Stage, Tensors]
"""A stage with its weights, and the tensors that training does not use."""


def load_stage(store: ObjectStore, role: Role, manifest: CheckpointManifest, number: int) -> Loaded:
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

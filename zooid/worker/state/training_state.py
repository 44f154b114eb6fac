"""The parameters, buffers and optimizer of a stage, changed only by applying a prepared step."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from zooid.core.jobs.job import Job
from zooid.layers import ParameterHooks, apply_hooks, build_scheduler
from zooid.schedule.grain_tree import Deal
from zooid.worker.gradients import loss_sums
from zooid.worker.gradients.bucket_gradients import BucketGradients, ReplicaReduction
from zooid.worker.gradients.noise_probe import NoiseProbe
from zooid.worker.gradients.tied_gradients import TiedParameters, TiedSum
from zooid.worker.gradients.tree_gradients import GrainSums, TreeGradients
from zooid.worker.state.rate_factors import scaled_rates
from zooid.worker.state.running_statistics import RunningStatistics


@dataclass(frozen=True)
class TrainedStage:
    """The module of a stage, and what training needs to know about it."""

    module: nn.Module
    completed: tuple[str, ...]
    """Names of the parameters in the order in which a backward completes their gradients."""
    persistent_names: frozenset[str]
    """Names in the state dict; all other buffers are constants."""
    has_loss: bool = False
    """Whether this is the last stage, which computes the losses."""
    hooks: ParameterHooks = field(default_factory=ParameterHooks)
    """Hooks that the model's own code has put on its parameters."""


class TrainingState:
    """The state that training changes. During a step only gradients and buffers change, and `drop` restores these."""

    def __init__(
        self,
        stage: TrainedStage,
        job: Job,
        ties: dict[int, TiedParameters] | None = None,
        reduction: ReplicaReduction | None = None,
    ) -> None:
        self.module = stage.module
        self.named_parameters = list(stage.module.named_parameters())
        trained = {name: parameter for name, parameter in self.named_parameters if parameter.requires_grad}
        self._names = [name for name in stage.completed if name in trained]
        assert len(self._names) == len(trained), "every parameter belongs to a layer of the stage"
        self._parameters = [trained[name] for name in self._names]
        self._hooks = stage.hooks
        self._measures_noise = job.policy is not None and job.policy.measures_noise
        self._has_loss = stage.has_loss
        number_type = self._parameters[0].dtype if self._parameters else torch.float32
        count_type = torch.promote_types(number_type, torch.float32)
        self._statistics = RunningStatistics(stage.module, stage.persistent_names, count_type)
        self._held: dict[str, torch.Tensor | None] = {}
        """Reduced gradients, from when they are complete until the next step begins."""
        self._held_changes: list[torch.Tensor] | None = None
        """Changes of the statistics, summed over the replicas; None if there is only one replica."""
        self._grain_sums: GrainSums | None = None
        """Sums of this member's own grains along the tree over grains; None if sums follow no tree."""
        self._gradients = self._new_gradients(reduction or ReplicaReduction(), ties)
        self.rate_factor = 1.0
        """Factor on the learning rate of the optimizer and its scheduler, which do not know of it."""
        self.optimizer: torch.optim.Optimizer | None = job.optimizer(self.named_parameters) if trained else None
        """None where nothing is trained, since a job may fail to build an optimizer without parameters."""
        self._scheduler = build_scheduler(job, self.optimizer) if self.optimizer is not None else None

    def regroup(self, reduction: ReplicaReduction, ties: dict[int, TiedParameters] | None = None) -> None:
        """Reduce gradients with other replicas from now on. Held gradients stay as they are."""
        self._gradients.close()
        self._gradients = self._new_gradients(reduction, ties)

    def make_room(self, num_grains: int) -> None:
        """Prepare for steps of at most so many grains. May only be called between two steps."""
        if num_grains > self._reduction.num_grains:
            self.regroup(replace(self._reduction, num_grains=num_grains), self._ties)

    def _new_gradients(self, reduction: ReplicaReduction, ties: dict[int, TiedParameters] | None) -> BucketGradients:
        self._ties = ties or {}
        tied = {name for each in self._ties.values() for name in each.names}
        self._probe = NoiseProbe(
            {
                name: parameter
                for name, parameter in zip(self._names, self._parameters, strict=True)
                if self._measures_noise and name not in tied and name not in self._hooks.of_gradients
            }
        )
        """Leaves out tied parameters and those with hooks, whose gradients are complete only after the reduce."""
        self._reduction = reduction
        self._is_reduced = reduction.group is not None
        like = self._parameters[0].detach() if self._parameters else torch.zeros(0)
        self._loss_slots = [loss_sums.slots_for(reduction.num_grains, like)] if self._has_loss else []
        """The losses of all grains, which travel with the gradients of the last stage."""
        statistics = [*self._statistics.like_changes(), *self._loss_slots]
        if not reduction.is_reproducible:
            return BucketGradients(self._parameters, statistics, reduction)
        self._grain_sums = self._grain_sums or GrainSums()
        return TreeGradients(self._parameters, statistics, reduction, self._grain_sums)

    @property
    def num_buckets(self) -> int:
        return self._gradients.num_buckets

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the first parameter group; None where the stage trains no parameters."""
        return None if self.optimizer is None else float(self.optimizer.param_groups[0]["lr"] * self.rate_factor)

    def resume(self, num_steps: int, evaluated: Sequence[float] = ()) -> None:
        """Bring the learning rate to its value after so many steps and these evaluation results."""
        for value in evaluated:
            self.follow(value)
        for _ in range(num_steps):
            self._step_scheduler()

    def follow(self, evaluated: float) -> None:
        """Step a scheduler that follows evaluation results."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(evaluated)

    def _step_scheduler(self) -> None:
        if self._scheduler is not None and not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()

    def begin(self, grains: Sequence[Sequence[int]]) -> None:
        """Begin a step, given the grains of every replica."""
        self._probe.begin()
        self._statistics.begin(sum(map(len, grains)))
        self._gradients.begin()
        if self._grain_sums is not None:
            self._grain_sums.begin(sum(map(len, grains)))
        self.continue_step(grains)

    def continue_step(self, grains: Sequence[Sequence[int]]) -> None:
        """Continue a step after `regroup`, with the sums of the grains that this member has finished.

        `grains` are those that every replica has now.
        """
        self._forget_held()
        if isinstance(self._gradients, TreeGradients):
            self._gradients.begin_deal(Deal(tuple(map(tuple, grains))))

    def begin_grain(self) -> None:
        """Prepare for the forward of a grain."""
        self._statistics.begin_grain()

    def end_grain(self, grain: int) -> None:
        """Note what the forward of a grain has changed."""
        self._statistics.end_grain()
        if self._grain_sums is not None and not self._statistics.is_single:
            self._grain_sums.put_statistics(grain, self._statistics.take_changes())

    def begin_backward(self, grain: int, *, is_last: bool) -> None:
        """Prepare for the backward of a grain; `is_last` marks the step's last backward on this member."""
        if self._grain_sums is not None:
            self._grain_sums.begin_backward(grain)
        if is_last:
            self._gradients.begin_last_backward()

    def end_backward(self, grain: int) -> None:
        """Take what the backward of a grain has computed, where sums follow the tree over grains."""
        self._probe.take_first()
        if self._grain_sums is not None:
            self._grain_sums.end_backward()
            if self._statistics.is_single:
                self._grain_sums.put_statistics(grain, self._statistics.take_changes())

    def reduce(self, bucket: int, losses: torch.Tensor) -> list[dist.Work]:
        """Begin to sum a bucket of gradients over the replicas. The last bucket also carries the statistics.

        `losses` has the loss and the weight of every grain of the step, and 0 for grains of others. They travel with
        the last bucket of the last stage.
        """
        for slots in self._loss_slots:
            loss_sums.fill(slots, losses)
        return self._gradients.reduce(bucket, lambda: [*self._statistics.changes(), *self._loss_slots])

    def loss_totals(self, own_losses: torch.Tensor) -> torch.Tensor:
        """Sums of losses and weights over all grains, once all buckets are reduced."""
        if not (self._is_reduced and self._loss_slots):
            return loss_sums.total(own_losses)
        return loss_sums.total(loss_sums.read(self._gradients.statistics()[-1], num_grains=len(own_losses)))

    def sum_tied(self, number: int) -> TiedSum:
        """Begin to sum the gradients of tied parameters over the stages that share them."""
        is_tree = self._grain_sums is not None
        return TiedSum(self._ties[number], self._hold(), self.named_parameters, in_order=is_tree)

    def square_sum(self) -> torch.Tensor:
        """Σg² of the held gradients, which is not finite if one of them is not. Tied gradients count at one stage.

        Gradients are complete now, so hooks on parameters run here, once in a step, as in the plain loop.
        """
        held = self._hold()
        hooked = {name: g for name, g in held.items() if g is not None and name in self._hooks.of_gradients}
        self._held = held = {**held, **apply_hooks(self._hooks, hooked)}
        if self._is_reduced or self._grain_sums is not None:
            self._held_changes = self._gradients.statistics()[: self._statistics.num_changes]
        elsewhere = {name for tied in self._ties.values() if not tied.counts_here for name in tied.names}
        counted = [gradient for name, gradient in held.items() if gradient is not None and name not in elsewhere]
        if not counted:
            return torch.zeros((), dtype=torch.float64)
        norms = torch._foreach_norm(counted)
        has_one_type = len({norm.dtype for norm in norms}) == 1
        return torch.stack(norms if has_one_type else [norm.double() for norm in norms]).double().square().sum()

    def noise_squares(self) -> tuple[float, float]:
        """Σg² of this member's first grain and of the held gradients, for the gradient noise scale."""
        return self._probe.squares(self._hold())

    def apply(self, scale: float | torch.Tensor) -> None:
        """Make one optimizer update from the held gradients, multiplied by `scale`."""
        held = self._hold()
        gradients = [gradient for gradient in held.values() if gradient is not None]
        if gradients and (isinstance(scale, torch.Tensor) or scale != 1.0):
            torch._foreach_mul_(gradients, scale)
        for parameter, gradient in zip(self._parameters, held.values(), strict=True):
            parameter.grad = gradient
        for name, hooks in self._hooks.after_accumulation.items():
            for hook in hooks if held.get(name) is not None else ():
                hook(dict(self.named_parameters)[name])
        if self.optimizer is not None:
            with scaled_rates(self.optimizer, self.rate_factor):
                self.optimizer.step()
        self.advance()

    def advance(self) -> None:
        """Change what a step changes besides the parameters: running statistics and the learning rate."""
        self._statistics.apply(self._held_changes)
        self._step_scheduler()

    def drop(self) -> None:
        """Forget the step, as if it had never begun."""
        self._statistics.drop()
        self._forget_held()
        self._gradients.begin()
        if self._grain_sums is not None:
            self._grain_sums.begin(1)

    def held_parts(self) -> list[torch.Tensor]:
        """Everything needed to apply a prepared step: a flag for each gradient, gradients, changes of statistics.

        A member that holds nothing gets tensors of the same shapes, to be filled and given to `take_held`.
        """
        held = dict.fromkeys(self._names) | self._held
        flags = torch.tensor([float(held[name] is not None) for name in self._names], dtype=torch.float64)
        gradients = [
            torch.zeros_like(parameter, requires_grad=False) if (g := held[name]) is None else g.detach().contiguous()
            for name, parameter in zip(self._names, self._parameters, strict=True)
        ]
        return [flags, *gradients, *(self._held_changes or self._statistics.changes())]

    def held_parts_of(self, names: Container[str]) -> list[torch.Tensor]:
        """The part of `held_parts` that belongs to parameters and buffers with these names.

        A member that holds nothing gets tensors of the same shapes, to be filled and given to `take_held_of`.
        """
        flags, *rest = self.held_parts()
        of_name = dict(zip(self._names, zip(flags, rest, strict=False), strict=True))
        wanted = sorted(name for name in self._names if name in names)  # other stages have another order
        return [
            torch.stack([of_name[name][0] for name in wanted]) if wanted else flags[:0],
            *(of_name[name][1] for name in wanted),
            *self._statistics.parts_of(rest[len(self._names) :], names),
        ]

    def take_held_of(self, names: Container[str], parts: Sequence[torch.Tensor]) -> None:
        """Hold the parts for these names that another member has handed over, besides what is held already."""
        own_names = sorted(name for name in self._names if name in names)
        flags, gradients = parts[0].tolist(), parts[1 : 1 + len(own_names)]
        held = self._held | {
            name: gradient if flag else None for name, flag, gradient in zip(own_names, flags, gradients, strict=True)
        }
        self._held = {name: held[name] for name in self._names if name in held}  # in the order of the parameters
        if self._held_changes is None:
            self._held_changes = self._statistics.like_changes()
        own_changes = self._statistics.parts_of(self._held_changes, names)
        for own, received in zip(own_changes, parts[1 + len(own_names) :], strict=True):
            own.copy_(received)

    def take_held(self, parts: Sequence[torch.Tensor]) -> None:
        """Hold the parts that another replica has handed over, as if this member had reduced them."""
        flags, gradients = parts[0].tolist(), parts[1 : 1 + len(self._names)]
        self._held = {
            name: gradient if flag else None for name, flag, gradient in zip(self._names, flags, gradients, strict=True)
        }
        self._held_changes = list(parts[1 + len(self._names) :])

    def _hold(self) -> dict[str, torch.Tensor | None]:
        """The reduced gradients by name, once all buckets have arrived."""
        if not self._held:
            self._held = dict(zip(self._names, self._gradients.held(), strict=True))
        return self._held

    def _forget_held(self) -> None:
        self._held = {}
        self._held_changes = None

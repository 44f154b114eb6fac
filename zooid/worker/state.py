"""What a member trains: parameters, buffers and optimizer, changed only by applying a prepared step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from zooid.core.job import Job
from zooid.layers import ParameterHooks, apply_hooks, build_scheduler
from zooid.worker import loss_sums
from zooid.worker.gradients import Gradients, Reducing
from zooid.worker.running_statistics import RunningStatistics


@dataclass(frozen=True)
class Tie:
    """Parameters that several stages use: each has its own copy, and all are updated alike."""

    names: tuple[str, ...]
    group: dist.ProcessGroup
    """The members of one replica whose stages use them."""
    counts_here: bool
    """Whether this stage is the one at which they count once for the norm of all gradients."""


@dataclass(frozen=True)
class Trainee:
    """A stage's module, as far as training changes it."""

    module: nn.Module
    completed: tuple[str, ...]
    """Names of its parameters in the order in which a backward completes their gradients."""
    persistent_names: frozenset[str]
    """Of the state dict; other buffers are constants."""
    has_loss: bool = False
    """True if this is the last stage, where losses are computed."""
    hooks: ParameterHooks = field(default_factory=ParameterHooks)
    """What the model's own code does to complete gradients."""


class TrainingState:
    """Between the start of a step and its apply only gradients and buffers change; `drop` restores the latter."""

    def __init__(
        self,
        trainee: Trainee,
        job: Job,
        ties: dict[int, Tie] | None = None,
        reducing: Reducing | None = None,
    ) -> None:
        module, reducing = trainee.module, reducing or Reducing()
        self.module = module
        self._named = list(module.named_parameters())
        trained = {name: parameter for name, parameter in self._named if parameter.requires_grad}
        self._names = [name for name in trainee.completed if name in trained]
        assert len(self._names) == len(trained), "every parameter belongs to a layer of the stage"
        self._parameters = [trained[name] for name in self._names]
        self._hooks = trainee.hooks
        self._has_loss = trainee.has_loss
        number_type = self._parameters[0].dtype if self._parameters else torch.float32
        count_type = torch.promote_types(number_type, torch.float32)
        self._statistics = RunningStatistics(module, trainee.persistent_names, count_type)
        self._held: dict[str, torch.Tensor | None] = {}
        """Reduced gradients, from when they are complete until the next step begins."""
        self._held_changes: list[torch.Tensor] | None = None
        """What all replicas did to the statistics; None if this is the only one."""
        self._gradients = self._regrouped(reducing, ties)
        self.optimizer: torch.optim.Optimizer | None = job.optimizer(self._named) if trained else None
        """None where nothing is trained: a job that leaves frozen parameters out would be asked to make one of none."""
        self._scheduler = build_scheduler(job, self.optimizer) if self.optimizer is not None else None

    def regroup(self, reducing: Reducing, ties: dict[int, Tie] | None = None) -> None:
        """Reduce gradients with other replicas from now on. What is held stays as it is."""
        self._gradients.close()
        self._gradients = self._regrouped(reducing, ties)

    def _regrouped(self, reducing: Reducing, ties: dict[int, Tie] | None) -> Gradients:
        self._ties = ties or {}
        self._is_reduced = reducing.group is not None
        self._replica = reducing.replica
        like = self._parameters[0].detach() if self._parameters else torch.zeros(0)
        self._loss_slots = [loss_sums.slots_for(reducing.num_replicas, like)] if self._has_loss else []
        """The sums of losses of all replicas, on their way with the gradients."""
        return Gradients(self._parameters, [*self._statistics.like_changes(), *self._loss_slots], reducing)

    @property
    def num_buckets(self) -> int:
        return self._gradients.num_buckets

    @property
    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return self._named

    @property
    def learning_rate(self) -> float | None:
        """Of the first group of parameters; None where the stage trains none."""
        return None if self.optimizer is None else float(self.optimizer.param_groups[0]["lr"])

    def resume(self, num_steps: int, evaluated: Sequence[float] = ()) -> None:
        """Bring the learning rate to where it is after so many steps, or after these results of evaluations."""
        for value in evaluated:
            self.follow(value)
        for _ in range(num_steps):
            self._step_scheduler()

    def follow(self, evaluated: float) -> None:
        """Step a scheduler that follows the results of evaluations."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(evaluated)

    def _step_scheduler(self) -> None:
        if self._scheduler is not None and not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()

    def begin(self, num_grains: int) -> None:
        """Begin a step of so many grains, those of all replicas together."""
        self._statistics.begin(num_grains)
        self._held = {}
        self._held_changes = None
        self._gradients.begin()

    def begin_grain(self) -> None:
        """Called before the forward of every grain."""
        self._statistics.begin_grain()

    def end_grain(self) -> None:
        """Called after the forward of every grain."""
        self._statistics.end_grain()

    def begin_last_backward(self) -> None:
        self._gradients.begin_last_backward()

    def reduce(self, bucket: int, losses: torch.Tensor) -> list[dist.Work]:
        """Begin to sum a bucket of gradients over the replicas, and with the last bucket the statistics.

        `losses` are this member's sums of losses and weights. They travel with the last bucket of the last stage.
        """
        for slots in self._loss_slots:
            loss_sums.fill(slots, self._replica, losses)
        return self._gradients.reduce(bucket, lambda: [*self._statistics.changes(), *self._loss_slots])

    def losses(self, own: torch.Tensor) -> torch.Tensor:
        """Sums of losses and weights over all replicas, once all buckets are reduced; `own` are this member's."""
        if not (self._is_reduced and self._loss_slots):
            return own
        return loss_sums.total(self._gradients.statistics()[-1])

    def share(self, number: int) -> "Sharing":
        """Begin to add up what every stage that uses the same parameters found for them."""
        return Sharing(self._ties[number], self._hold(), self._named)

    def square_sum(self) -> torch.Tensor:
        """Σg² of the held gradients, tied ones at one of their stages; not finite where any of them is not.

        They are complete now, so that hooks on parameters run here, once in a step, as in the plain loop.
        """
        self._held = {**self._hold(), **apply_hooks(self._hooks, self._complete())}
        if self._is_reduced:
            changes = self._gradients.statistics()
            self._held_changes = changes[: len(changes) - len(self._loss_slots)]
        elsewhere = {name for tie in self._ties.values() if not tie.counts_here for name in tie.names}
        own = [gradient for name, gradient in self._hold().items() if gradient is not None and name not in elsewhere]
        if not own:
            return torch.zeros((), dtype=torch.float64)
        norms = torch._foreach_norm(own)
        has_one_type = len({norm.dtype for norm in norms}) == 1
        return torch.stack(norms if has_one_type else [norm.double() for norm in norms]).double().square().sum()

    def apply(self, scale: float | torch.Tensor) -> None:
        """One optimizer update from the held gradients, multiplied by `scale`."""
        held = self._hold()
        own = [gradient for gradient in held.values() if gradient is not None]
        if own and (isinstance(scale, torch.Tensor) or scale != 1.0):
            torch._foreach_mul_(own, scale)
        for parameter, gradient in zip(self._parameters, held.values(), strict=True):
            parameter.grad = gradient
        for name, hooks in self._hooks.after_accumulation.items():
            for hook in hooks if held.get(name) is not None else ():
                hook(dict(self._named)[name])
        if self.optimizer is not None:
            self.optimizer.step()
        self.advance()

    def advance(self) -> None:
        """What a step changes beside the parameters: running statistics, and the learning rate."""
        self._statistics.apply(self._held_changes)
        self._step_scheduler()

    def drop(self) -> None:
        """Forget the step: nothing of it remains."""
        self._statistics.drop()
        self._held = {}
        self._held_changes = None
        self._gradients.begin()

    def parts_held(self) -> list[torch.Tensor]:
        """What a member needs to apply a prepared step: a flag for each gradient, gradients, changes of statistics.

        A member that holds nothing gets room for all of it, to be filled and given to `take_held`.
        """
        held = self._held or dict.fromkeys(self._names)
        flags = torch.tensor([float(held[name] is not None) for name in self._names], dtype=torch.float64)
        parts = [flags, *(self._part(p, held[n]) for n, p in zip(self._names, self._parameters, strict=True))]
        changes = self._held_changes or [torch.zeros_like(each) for each in self._statistics.like_changes()]
        return [*parts, *changes]

    def take_held(self, parts: Sequence[torch.Tensor]) -> None:
        """Hold what another replica has handed over, as if this member had reduced it."""
        flags, gradients = parts[0].tolist(), parts[1 : 1 + len(self._names)]
        self._held = {
            name: gradient if flag else None for name, flag, gradient in zip(self._names, flags, gradients, strict=True)
        }
        self._held_changes = list(parts[1 + len(self._names) :])

    @staticmethod
    def _part(parameter: nn.Parameter, gradient: torch.Tensor | None) -> torch.Tensor:
        return torch.zeros_like(parameter, requires_grad=False) if gradient is None else gradient.detach().contiguous()

    def _hold(self) -> dict[str, torch.Tensor | None]:
        """Reduced gradients by name; asked for when all buckets are in."""
        if not self._held:
            self._held = dict(zip(self._names, self._gradients.held(), strict=True))
        return self._held

    def _complete(self) -> dict[str, torch.Tensor]:
        """Gradients of the parameters that the loss reached, where hooks ask for them."""
        wanted = self._hooks.of_gradients
        return {name: own for name, own in self._hold().items() if own is not None and name in wanted}


class Sharing:
    """Sums tied gradients between stages: one flat message for each type of number, flags included."""

    def __init__(
        self, tie: Tie, held: dict[str, torch.Tensor | None], named: Sequence[tuple[str, nn.Parameter]]
    ) -> None:
        self._parameters = {name: parameter for name, parameter in named if name in tie.names and name in held}
        self._held = held
        self._flat: dict[torch.dtype, torch.Tensor] = {}
        for dtype in dict.fromkeys(parameter.dtype for parameter in self._parameters.values()):
            parts = [part for name in self._of(dtype) for part in self._parts(name)]
            self._flat[dtype] = torch.cat(parts)
        works = [dist.all_reduce(flat, group=tie.group, async_op=True) for flat in self._flat.values()]
        self.works = [work for work in works if work is not None]

    def finish(self) -> None:
        """Give the sums back to where the gradients are held."""
        for dtype, flat in self._flat.items():
            offset = 0
            for name in self._of(dtype):
                parameter = self._parameters[name]
                total = flat[offset : offset + parameter.numel()].view(parameter.shape)
                is_touched = bool(flat[offset + parameter.numel()])
                offset += parameter.numel() + 1
                own = self._held[name]
                if own is not None:
                    own.copy_(total)
                elif is_touched:
                    self._held[name] = total
        self._flat.clear()

    def _of(self, dtype: torch.dtype) -> list[str]:
        return [name for name in sorted(self._parameters) if self._parameters[name].dtype == dtype]

    def _parts(self, name: str) -> list[torch.Tensor]:
        parameter, gradient = self._parameters[name], self._held[name]
        if gradient is None:
            return [torch.zeros_like(parameter, requires_grad=False).reshape(-1), parameter.detach().new_zeros(1)]
        return [gradient.reshape(-1), gradient.new_ones(1)]

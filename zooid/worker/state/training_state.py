"""What a member trains: parameters, buffers and optimizer, changed only by applying a prepared step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from zooid.core.jobs.job import Job
from zooid.layers import ParameterHooks, apply_hooks, build_scheduler
from zooid.schedule.grain_tree import Deal
from zooid.worker.gradients.bucketed import Gradients, Reducing
from zooid.worker.gradients.grain_sums import OwnSums, TreeGradients
from zooid.worker.state.running_statistics import RunningStatistics
from zooid.worker.step import loss_sums
from zooid.worker.step.pending import adding_up


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
        self._own_sums: OwnSums | None = None
        """The sums of this member's own grains by the tree over grains; None where sums follow no tree."""
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
        like = self._parameters[0].detach() if self._parameters else torch.zeros(0)
        self._loss_slots = [loss_sums.slots_for(reducing.num_grains, like)] if self._has_loss else []
        """The losses of all grains, on their way with the gradients."""
        statistics = [*self._statistics.like_changes(), *self._loss_slots]
        if not reducing.is_reproducible:
            return Gradients(self._parameters, statistics, reducing)
        self._own_sums = self._own_sums or OwnSums()
        return TreeGradients(self._parameters, statistics, reducing, self._own_sums)

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

    def begin(self, grains: Sequence[Sequence[int]]) -> None:
        """Begin a step of which every replica has these grains."""
        deal = Deal(tuple(map(tuple, grains)))
        self._statistics.begin(deal.num_grains)
        self._held = {}
        self._held_changes = None
        self._gradients.begin()
        if isinstance(self._gradients, TreeGradients):
            self._gradients.begin_deal(deal)
        if self._own_sums is not None:
            self._own_sums.begin(deal.num_grains)

    def continue_step(self, grains: Sequence[Sequence[int]]) -> None:
        """Go on with a step after the replicas have changed: the sums of this member's finished grains are kept.

        `grains` are those that every replica has now. `regroup` comes first.
        """
        self._held = {}
        self._held_changes = None
        if isinstance(self._gradients, TreeGradients):
            self._gradients.begin_deal(Deal(tuple(map(tuple, grains))))

    def begin_grain(self) -> None:
        """Called before the forward of every grain."""
        self._statistics.begin_grain()

    def end_grain(self, grain: int) -> None:
        """Called after the forward of every grain."""
        self._statistics.end_grain()
        if self._own_sums is not None and not self._statistics.is_single:
            self._own_sums.put_statistics(grain, self._statistics.take_changes())

    def begin_backward(self, grain: int, *, is_last: bool) -> None:
        """Called before the backward of every grain."""
        if self._own_sums is not None:
            self._own_sums.begin_backward(grain)
        if is_last:
            self._gradients.begin_last_backward()

    def end_backward(self, grain: int) -> None:
        """Called after the backward of every grain."""
        if self._own_sums is not None:
            self._own_sums.end_backward()
            if self._statistics.is_single:
                self._own_sums.put_statistics(grain, self._statistics.take_changes())

    def reduce(self, bucket: int, losses: torch.Tensor) -> list[dist.Work]:
        """Begin to sum a bucket of gradients over the replicas, and with the last bucket the statistics.

        `losses` has the loss and the weight of every grain of the step, or 0 for grains of others. They travel with the
        last bucket of the last stage.
        """
        for slots in self._loss_slots:
            loss_sums.fill(slots, losses)
        return self._gradients.reduce(bucket, lambda: [*self._statistics.changes(), *self._loss_slots])

    def losses(self, own: torch.Tensor) -> torch.Tensor:
        """Sums of losses and weights over all grains, once all buckets are reduced; `own` are those of this member."""
        if not (self._is_reduced and self._loss_slots):
            return loss_sums.total(own)
        return loss_sums.total(loss_sums.read(self._gradients.statistics()[-1], num_grains=len(own)))

    def share(self, number: int) -> "Sharing":
        """Begin to add up what every stage that uses the same parameters found for them."""
        return Sharing(self._ties[number], self._hold(), self._named, in_order=self._own_sums is not None)

    def square_sum(self) -> torch.Tensor:
        """Σg² of the held gradients, tied ones at one of their stages; not finite where any of them is not.

        They are complete now, so that hooks on parameters run here, once in a step, as in the plain loop.
        """
        self._held = {**self._hold(), **apply_hooks(self._hooks, self._complete())}
        if self._is_reduced or self._own_sums is not None:
            self._held_changes = self._gradients.statistics()[: self._statistics.num_changes]
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
        if self._own_sums is not None:
            self._own_sums.forget()

    def parts_held(self) -> list[torch.Tensor]:
        """What a member needs to apply a prepared step: a flag for each gradient, gradients, changes of statistics.

        A member that holds nothing gets room for all of it, to be filled and given to `take_held`.
        """
        held = self._held or dict.fromkeys(self._names)
        flags = torch.tensor([float(held[name] is not None) for name in self._names], dtype=torch.float64)
        parts = [flags, *(self._part(p, held[n]) for n, p in zip(self._names, self._parameters, strict=True))]
        changes = self._held_changes or self._statistics.changes()
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
        self,
        tie: Tie,
        held: dict[str, torch.Tensor | None],
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        in_order: bool = False,
    ) -> None:
        """`in_order` adds up in the order of stages; an all-reduce of three or more has an order of its own."""
        self._parameters = {name: parameter for name, parameter in named if name in tie.names and name in held}
        self._held = held
        self._flat: dict[torch.dtype, torch.Tensor] = {}
        for dtype in dict.fromkeys(parameter.dtype for parameter in self._parameters.values()):
            parts = [part for name in self._of(dtype) for part in self._parts(name)]
            self._flat[dtype] = torch.cat(parts)
        self._gathered: dict[torch.dtype, torch.Tensor] = {}
        num_stages = tie.group.size()
        if in_order and num_stages > 2:
            self._gathered = {dtype: flat.new_empty(num_stages, len(flat)) for dtype, flat in self._flat.items()}
            self.works = [
                tie.group.allgather([list(self._gathered[dtype].unbind(0))], [flat])
                for dtype, flat in self._flat.items()
            ]
        else:
            self.works = [adding_up(flat, tie.group) for flat in self._flat.values()]

    def finish(self) -> None:
        """Let the sums be what is held. The gradients that were added up stay as they are."""
        for dtype, rows in self._gathered.items():
            self._flat[dtype] = rows[0]
            for row in rows[1:]:
                self._flat[dtype] += row
        for dtype, flat in self._flat.items():
            offset = 0
            for name in self._of(dtype):
                parameter = self._parameters[name]
                total = flat[offset : offset + parameter.numel()].view(parameter.shape)
                is_touched = bool(flat[offset + parameter.numel()])
                offset += parameter.numel() + 1
                if is_touched:
                    self._held[name] = total
        self._flat.clear()

    def _of(self, dtype: torch.dtype) -> list[str]:
        return [name for name in sorted(self._parameters) if self._parameters[name].dtype == dtype]

    def _parts(self, name: str) -> list[torch.Tensor]:
        parameter, gradient = self._parameters[name], self._held[name]
        if gradient is None:
            return [torch.zeros_like(parameter, requires_grad=False).reshape(-1), parameter.detach().new_zeros(1)]
        return [gradient.reshape(-1), gradient.new_ones(1)]

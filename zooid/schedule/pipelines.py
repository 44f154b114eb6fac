"""Pipeline schedules: the order in which members compute, and the action lists of a step that follow from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from zooid.core.errors import ScheduleError
from zooid.schedule.actions import Action, Kind, Needs, needs_of

ComputeOrder = Callable[[int, int, Sequence[int], int], list[Action]]
"""A function from (stage, number of stages, grains of the replica, `ahead`) to forwards and backwards in order."""


def gpipe(stage: int, num_stages: int, grains: Sequence[int], ahead: int = 0) -> list[Action]:
    """All forwards, then all backwards."""
    return _alternating(stage, grains, len(grains))


def one_f_one_b(stage: int, num_stages: int, grains: Sequence[int], ahead: int = 0) -> list[Action]:
    """A forward for every backward, as soon as the first backward can run.

    A stage keeps one grain for itself and 1 + `ahead` for each later stage. With 0, a stage waits while a grain is in
    flight; with 1, transfers are hidden as long as they take no longer than computing.
    """
    num_later_stages = num_stages - 1 - stage
    return _alternating(stage, grains, 1 + num_later_stages * (1 + ahead))


def _alternating(stage: int, grains: Sequence[int], max_kept: int) -> list[Action]:
    """Forwards until `max_kept` grains are kept, then backwards and forwards in turn, then the remaining backwards."""
    kept = min(max_kept, len(grains))
    order = [Action(stage, Kind.FORWARD, grain) for grain in grains[:kept]]
    for number, grain in enumerate(grains):
        order.append(Action(stage, Kind.BACKWARD, grain))
        if kept + number < len(grains):
            order.append(Action(stage, Kind.FORWARD, grains[kept + number]))
    return order


PIPELINES: dict[str, ComputeOrder] = {"gpipe": gpipe, "1f1b": one_f_one_b}


@dataclass(frozen=True)
class StepSchedule:
    """The action lists of one step, as `lists[replica][stage]`, and the grains of each replica."""

    num_stages: int
    grains: tuple[tuple[int, ...], ...]
    lists: tuple[tuple[tuple[Action, ...], ...], ...]
    ties: tuple[tuple[int, ...], ...] = ()
    """The stages that have each tied parameter, in the order of the SHARE actions."""
    is_training: bool = True
    """Whether the step has backwards, and gradients to reduce."""

    @property
    def num_replicas(self) -> int:
        return len(self.grains)

    @cached_property
    def needs(self) -> tuple[tuple[Needs, ...], ...]:
        """The dependencies of every action within its member, as `needs[replica][stage]`."""
        return tuple(tuple(needs_of(actions) for actions in stages) for stages in self.lists)

    def text(self) -> str:
        """One line for each member, for people and golden files."""
        return "\n".join(
            f"r{replica}s{stage}: " + " ".join(str(action) for action in actions)
            for replica, stages in enumerate(self.lists)
            for stage, actions in enumerate(stages)
        )


@dataclass(frozen=True)
class StepShape:
    """The properties that the lists of all steps of a run have in common."""

    schedule: str
    num_stages: int
    ahead: int = 0
    buckets: tuple[int, ...] = ()
    """Number of messages in which each stage reduces its gradients; empty means 1 for each stage."""
    ties: tuple[tuple[int, ...], ...] = ()
    most_kept: int | None = None
    """The largest number of grains whose activations a stage may keep at once; None means no limit.

    It also holds when a replica takes over the grains of a lost one.
    """

    def __post_init__(self) -> None:
        if self.schedule not in PIPELINES:
            raise ScheduleError(f"the schedule {self.schedule!r} is unknown; choose one of {', '.join(PIPELINES)}")
        if self.buckets and len(self.buckets) != self.num_stages:
            raise ScheduleError(
                f"buckets are given for {len(self.buckets)} of {self.num_stages} stages; give one number for each stage"
            )

    def step(self, grains: Sequence[Sequence[int]]) -> StepSchedule:
        """The action lists of a training step; a replica without grains only reduces and commits."""
        lists = tuple(tuple(self._member(stage, numbers) for stage in range(self.num_stages)) for numbers in grains)
        return StepSchedule(self.num_stages, tuple(map(tuple, grains)), lists, self.ties)

    def evaluation(self, grains: Sequence[Sequence[int]]) -> StepSchedule:
        """The action lists of an evaluation, which has forwards only."""
        lists = tuple(
            tuple(
                tuple(lower([Action(stage, Kind.FORWARD, grain) for grain in numbers], self.num_stages))
                for stage in range(self.num_stages)
            )
            for numbers in grains
        )
        return StepSchedule(self.num_stages, tuple(map(tuple, grains)), lists, (), is_training=False)

    def num_buckets(self, stage: int) -> int:
        return self.buckets[stage] if self.buckets else 1

    def _member(self, stage: int, grains: Sequence[int]) -> tuple[Action, ...]:
        order = PIPELINES[self.schedule](stage, self.num_stages, grains, self.ahead)
        if self.most_kept is not None and most_kept(order) > self.most_kept:
            order = _alternating(stage, grains, self.most_kept)
        return (
            *lower(order, self.num_stages),
            *(Action(stage, Kind.REDUCE, bucket) for bucket in range(self.num_buckets(stage))),
            *(Action(stage, Kind.SHARE, number) for number, stages in enumerate(self.ties) if stage in stages),
            Action(stage, Kind.COMMIT),
        )


def lower(compute: Sequence[Action], num_stages: int) -> list[Action]:
    """Add the receives that computations need and the sends of their results.

    Their positions in the list are for readers only: they begin as soon as their dependencies are done (`needs_of`).
    """
    actions: list[Action] = []
    for action in compute:
        stage, grain = action.stage, action.number
        if action.kind is Kind.FORWARD:
            if stage > 0:
                actions.append(Action(stage, Kind.RECEIVE_FORWARD, grain))
            actions.append(action)
            if stage < num_stages - 1:
                actions.append(Action(stage, Kind.SEND_FORWARD, grain))
        else:
            if stage < num_stages - 1:
                actions.append(Action(stage, Kind.RECEIVE_BACKWARD, grain))
            actions.append(action)
            if stage > 0:
                actions.append(Action(stage, Kind.SEND_BACKWARD, grain))
    return actions


def most_kept(actions: Sequence[Action]) -> int:
    """The largest number of grains between their forward and their backward."""
    kept = max_kept = 0
    for action in actions:
        kept += (action.kind is Kind.FORWARD) - (action.kind is Kind.BACKWARD)
        max_kept = max(max_kept, kept)
    return max_kept

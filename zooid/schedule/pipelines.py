"""Pipeline schedules: in which order a member computes, and the complete action lists of a step that follow from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from zooid.core.errors import ScheduleError
from zooid.schedule.actions import Action, Kind, Needs, needs_of

ComputeOrder = Callable[[int, int, Sequence[int], int], list[Action]]
"""(stage, number of stages, grains of the replica, how far ahead) -> forwards and backwards in order."""


def gpipe(stage: int, num_stages: int, grains: Sequence[int], ahead: int = 0) -> list[Action]:
    """All forwards, then all backwards."""
    return _alternating(stage, grains, len(grains))


def one_f_one_b(stage: int, num_stages: int, grains: Sequence[int], ahead: int = 0) -> list[Action]:
    """A forward for every backward as soon as the first backward can run: a stage keeps one grain for itself and one
    for every stage behind it, and `ahead` more for each of those. Over slow links 0 leaves a stage waiting, since a
    grain is on its way for longer than the stages behind compute on it; 1 hides transfers as long as these take no
    longer than computing does."""
    behind = num_stages - 1 - stage
    return _alternating(stage, grains, 1 + behind * (1 + ahead))


def _alternating(stage: int, grains: Sequence[int], most_kept: int) -> list[Action]:
    """Forwards until so many grains are kept, then a backward for each forward, then the backwards that are left."""
    kept = min(most_kept, len(grains))
    order = [Action(stage, Kind.FORWARD, grain) for grain in grains[:kept]]
    for number, grain in enumerate(grains):
        order.append(Action(stage, Kind.BACKWARD, grain))
        if kept + number < len(grains):
            order.append(Action(stage, Kind.FORWARD, grains[kept + number]))
    return order


PIPELINES: dict[str, ComputeOrder] = {"gpipe": gpipe, "1f1b": one_f_one_b}


@dataclass(frozen=True)
class StepSchedule:
    """The action lists of one step: `lists[replica][stage]`; `grains[replica]` are the replica's grain numbers."""

    num_stages: int
    grains: tuple[tuple[int, ...], ...]
    lists: tuple[tuple[tuple[Action, ...], ...], ...]
    ties: tuple[tuple[int, ...], ...] = ()
    """Stages that share parameters, in the order of their SHARE actions."""
    is_training: bool = True
    """Whether there are backwards, and gradients to reduce."""

    @property
    def num_replicas(self) -> int:
        return len(self.grains)

    @cached_property
    def needs(self) -> tuple[tuple[Needs, ...], ...]:
        """What every action of every member waits for on its own member."""
        return tuple(tuple(needs_of(actions) for actions in stages) for stages in self.lists)

    def text(self) -> str:
        """One line per member, for people and golden files."""
        return "\n".join(
            f"r{replica}s{stage}: " + " ".join(str(action) for action in actions)
            for replica, stages in enumerate(self.lists)
            for stage, actions in enumerate(stages)
        )


@dataclass(frozen=True)
class StepShape:
    """What the lists of all steps of a run have in common."""

    schedule: str
    num_stages: int
    ahead: int = 0
    buckets: tuple[int, ...] = ()
    """Of every stage: how many messages its gradients are reduced in; 1 each where nothing is given."""
    ties: tuple[tuple[int, ...], ...] = ()
    most_kept: int | None = None
    """The most grains whose activations a stage keeps at once. It also holds after a replica has taken over grains of
    others. None sets no limit."""

    def __post_init__(self) -> None:
        if self.schedule not in PIPELINES:
            raise ScheduleError(f"there is no schedule {self.schedule!r}; known: {', '.join(PIPELINES)}")
        if self.buckets and len(self.buckets) != self.num_stages:
            raise ScheduleError(f"buckets are given for {len(self.buckets)} of {self.num_stages} stages")

    def step(self, grains: Sequence[Sequence[int]]) -> StepSchedule:
        """The complete lists of a step; a replica without grains (a short last step) only reduces and commits."""
        lists = tuple(tuple(self._member(stage, own) for stage in range(self.num_stages)) for own in grains)
        return StepSchedule(self.num_stages, tuple(tuple(own) for own in grains), lists, self.ties)

    def evaluation(self, grains: Sequence[Sequence[int]]) -> StepSchedule:
        """Forwards only."""
        lists = tuple(
            tuple(
                tuple(lower([Action(stage, Kind.FORWARD, grain) for grain in own], self.num_stages))
                for stage in range(self.num_stages)
            )
            for own in grains
        )
        return StepSchedule(self.num_stages, tuple(tuple(own) for own in grains), lists, (), is_training=False)

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
    """Add the receives that computing needs and the sends it allows.

    Their places in the list are for readers; they begin as soon as what they need is there (`needs_of`).
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
    """The most grains whose forward a member has done and whose backward it has not."""
    kept = most = 0
    for action in actions:
        kept += (action.kind is Kind.FORWARD) - (action.kind is Kind.BACKWARD)
        most = max(most, kept)
    return most

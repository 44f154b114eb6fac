"""Pipeline schedules: in which order a member computes, and the complete action lists of a step that follow from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zooid.core.errors import ScheduleError
from zooid.core.roster import Roster
from zooid.schedule.actions import Action, Kind
from zooid.schedule.samples import split_grains

ComputeOrder = Callable[[int, int, Sequence[int]], list[Action]]
"""(stage, number of stages, grains of the replica) -> forwards and backwards in order."""


def gpipe(stage: int, num_stages: int, grains: Sequence[int]) -> list[Action]:
    """All forwards, then all backwards."""
    return [Action(stage, Kind.FORWARD, grain) for grain in grains] + [
        Action(stage, Kind.BACKWARD, grain) for grain in grains
    ]


PIPELINES: dict[str, ComputeOrder] = {"gpipe": gpipe}


@dataclass(frozen=True)
class StepSchedule:
    """The action lists of one step: `lists[replica][stage]`; `grains[replica]` are the replica's grain numbers."""

    num_stages: int
    grains: tuple[tuple[int, ...], ...]
    lists: tuple[tuple[tuple[Action, ...], ...], ...]

    @property
    def num_replicas(self) -> int:
        return len(self.grains)

    def text(self) -> str:
        """One line per member, for people and golden files."""
        return "\n".join(
            f"r{replica}s{stage}: " + " ".join(str(action) for action in actions)
            for replica, stages in enumerate(self.lists)
            for stage, actions in enumerate(stages)
        )


def schedule_step(name: str, num_stages: int, grains: Sequence[Sequence[int]]) -> StepSchedule:
    """The complete lists of a step; a replica without grains (a short last step) only reduces and commits."""
    if name not in PIPELINES:
        raise ScheduleError(f"there is no schedule {name!r}; known: {', '.join(PIPELINES)}")
    lists = tuple(
        tuple(
            (
                *lower(PIPELINES[name](stage, num_stages, own), num_stages),
                Action(stage, Kind.REDUCE),
                Action(stage, Kind.COMMIT),
            )
            for stage in range(num_stages)
        )
        for own in grains
    )
    return StepSchedule(num_stages=num_stages, grains=tuple(tuple(own) for own in grains), lists=lists)


def schedule_for(name: str, roster: Roster, num_grains: int) -> StepSchedule:
    """The lists of a step of `num_grains` grains under a roster."""
    return schedule_step(name, roster.num_stages, split_grains(num_grains, roster.shares))


def lower(compute: Sequence[Action], num_stages: int) -> list[Action]:
    """Add the receives that computing needs and the sends it allows.

    Lanes run side by side, so that a receive's place in the list is only its turn among receives: it is posted as soon
    as the one before it is in, however long the compute lane still works on earlier grains.
    """
    actions: list[Action] = []
    for action in compute:
        stage, grain = action.stage, action.grain
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

"""The schedules of steps, made and checked once for all rosters, and ahead of a roster that is planned."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from zooid.schedule.checks import check_schedule
from zooid.schedule.pipelines import StepSchedule, StepShape

_MAX_KEPT = 16
"""Number of schedules that are kept; members need one or two, until shares or replicas change."""


@dataclass
class StepSchedules:
    """The schedules of one shape, by the grains of every replica."""

    shape: StepShape
    _kept: dict[tuple[tuple[int, ...], ...], StepSchedule] = field(default_factory=dict)

    def of(self, grains: Sequence[Sequence[int]]) -> StepSchedule:
        """The schedule of a step in which each replica computes these grains."""
        key = tuple(map(tuple, grains))
        if (kept := self._kept.get(key)) is not None:
            return kept
        schedule = self.shape.step(key)
        check_schedule(schedule)
        if len(self._kept) >= _MAX_KEPT:
            self._kept = {}
        self._kept[key] = schedule
        return schedule

"""Losses and times of the steps since a member read its state, for the job's scaling policy."""

from dataclasses import dataclass, field

from zooid.core.jobs.scaling import Wanted
from zooid.core.runs.events import Evaluated, StepCommitted


@dataclass
class StepLog:
    """The steps that a member has committed, in order. It starts anew when the member rolls back to a checkpoint."""

    last_step: int = -1
    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    answer: tuple[int, Wanted] | None = None
    """The last answer of the policy, and the step from which it applies, so that it is asked once for each step."""

    def add(self, event: StepCommitted | Evaluated) -> None:
        """Note a step, unless it is known: a step that stands is told again."""
        if isinstance(event, StepCommitted) and event.step > self.last_step:
            self.last_step = event.step
            self.losses.append(event.loss)
            self.step_s.append(event.step_s)

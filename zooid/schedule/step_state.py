"""A step is a transaction: reduce → prepared → apply, as a state machine without I/O or clock.

When its gradients are reduced, a member is *prepared*: it holds them and has applied nothing. One small all-reduce of
votes over the whole roster tells everyone that all are prepared; then each applies. So if anyone applied step k,
everyone was prepared for k, and a member that lost its peers in between can still roll forward from what it holds.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from enum import Enum

from zooid.core.errors import ScheduleError
from zooid.core.runs.roster import Roster


class Phase(Enum):
    """Where a member stands in its step."""

    RUNNING = "running"
    PREPARED = "prepared"
    APPLIED = "applied"


class Decision(Enum):
    """What a member has to do with a step."""

    APPLY = "apply"
    SKIP = "skip"
    """The step counts, but changes no parameter: its scaled gradients overflowed."""
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Vote:
    """What each member contributes to the commit; contributions are summed over the roster."""

    num_prepared: float = 0.0
    num_finite: float = 0.0
    loss_sum: float = 0.0
    """Sum of the step's losses. Only the last stage of the first replica contributes it."""
    weight: float = 0.0
    """What `loss_sum` is divided by to give the mean loss. The same member contributes it."""
    num_saved: float = 0.0
    """1 where this member has written its part of the checkpoint that is under way."""
    num_due: float = 0.0
    """1 where this member finds that a checkpoint is due; one such wish is enough."""
    wishes: float = 0.0
    """The flags of `Wish` that the job asks for; only the first member's are not 0."""
    square_sums: tuple[float, ...] = ()
    """Σg² of each stage, in stage order. A member of the first replica contributes its own stage's, and 0 for others,
    so that no rounding depends on who votes."""

    def values(self) -> list[float]:
        *numbers, square_sums = astuple(self)
        return [*numbers, *square_sums]

    @staticmethod
    def of(values: Sequence[float]) -> "Vote":
        numbers, square_sums = values[:_NUM_SCALARS], values[_NUM_SCALARS:]
        return replace(Vote(*numbers), square_sums=tuple(square_sums))  # type: ignore[arg-type]

    @property
    def square_sum(self) -> float:
        """Σg² of the whole model, added up in stage order."""
        return sum(self.square_sums)


_NUM_SCALARS = len(Vote().values())
VOTE_ELEMENT_BYTES = 8
"""A commit's all-reduce carries a Vote in float64."""


def vote_elements(num_stages: int) -> int:
    """The number of values in a Vote of a roster with this many stages."""
    return _NUM_SCALARS + num_stages


@dataclass(frozen=True, slots=True)
class StepState:
    """A member's place in the history; every transition returns the next state or refuses."""

    step: int
    phase: Phase
    is_bound: bool = True
    """False from the answer to a survey until the next roster."""

    @staticmethod
    def resumed(step: int) -> "StepState":
        """The state of exactly `step` steps, from a checkpoint or a live replica."""
        return StepState(step - 1, Phase.APPLIED)

    @property
    def num_applied(self) -> int:
        """How many steps this member's parameters contain."""
        return self.step + 1 if self.phase is Phase.APPLIED else self.step

    @property
    def held_steps(self) -> tuple[int, ...]:
        """Steps whose reduced gradients must be kept: k until k+1 is prepared, so that others can roll forward."""
        match self.phase:
            case Phase.RUNNING:
                return (self.step - 1,) if self.step > 0 else ()
            case Phase.PREPARED | Phase.APPLIED:
                return (self.step,) if self.step >= 0 else ()

    def begin(self) -> "StepState":
        """Start the next step."""
        self._expect(Phase.APPLIED, "begin a step")
        return StepState(self.step + 1, Phase.RUNNING)

    def prepare(self) -> "StepState":
        """All gradients of the step are reduced and held."""
        self._expect(Phase.RUNNING, "be prepared")
        self._expect_bound("be prepared")
        return replace(self, phase=Phase.PREPARED)

    def decide(self, total: Vote, num_members: int, *, may_skip: bool = False) -> Decision:
        """The verdict of the whole roster; the same on every member, since all see the same sums.

        What is not finite, or weighs nothing, cannot be applied; where losses are scaled, that may be the scale's doing
        and the step is skipped.
        """
        self._expect(Phase.PREPARED, "decide")
        self._expect_bound("decide")
        if total.num_prepared != num_members:
            raise ScheduleError(
                f"step {self.step} was voted on with {total.num_prepared:g} of {num_members} members prepared"
            )
        if not total.weight > 0:
            return Decision.DROP
        if total.num_finite == num_members:
            return Decision.APPLY
        return Decision.SKIP if may_skip else Decision.DROP

    def apply(self) -> "StepState":
        self._expect(Phase.PREPARED, "apply")
        self._expect_bound("apply")
        return replace(self, phase=Phase.APPLIED)

    def drop(self) -> "StepState":
        """Forget the step as if it had not begun; it will be run again."""
        if self.phase is Phase.APPLIED:
            raise ScheduleError(f"step {self.step} is applied and cannot be dropped")
        return StepState(self.step - 1, Phase.APPLIED)

    def release(self) -> "StepState":
        """Answer a survey: this member neither is prepared, votes nor applies under the present roster any more."""
        return replace(self, is_bound=False)

    def obey(self, roster: Roster) -> "StepState":
        """The state with which a member begins under a new roster.

        A member that lacks a step that stands is running it; it is prepared when it has received the gradients.
        """
        step, ruling = roster.resume_step, roster.ruling
        if ruling is None or ruling.kind == "rolled_back":
            return StepState.resumed(step)
        if ruling.kind == "stands" and self.num_applied == step:
            return StepState(step, Phase.PREPARED if self.phase is Phase.PREPARED else Phase.RUNNING)
        if self.num_applied != roster.first_computed:
            raise ScheduleError(
                f"this member has applied {self.num_applied} steps, but roster {roster.label} begins with step "
                f"{roster.first_computed}"
            )
        return StepState.resumed(roster.first_computed)

    def _expect(self, phase: Phase, what: str) -> None:
        if self.phase is not phase:
            raise ScheduleError(f"a member that is {self.phase.value} at step {self.step} cannot {what}")

    def _expect_bound(self, what: str) -> None:
        if not self.is_bound:
            raise ScheduleError(f"a member that has answered a survey at step {self.step} cannot {what}")

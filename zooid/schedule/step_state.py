"""A step as a transaction: reduce → prepared → apply, a state machine without I/O or a clock.

When its gradients are reduced, a member is *prepared*: it holds them and has applied nothing. A small all-reduce of
votes over the whole roster shows that all members are prepared; then each applies the step. So if any member applied
step k, all were prepared for k, and a member that lost its peers in between can still apply it.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from enum import Enum

from zooid.core.errors import ScheduleError
from zooid.core.runs.roster import Roster


class Phase(Enum):
    """The phase of a member within a step."""

    RUNNING = "running"
    PREPARED = "prepared"
    APPLIED = "applied"


class Decision(Enum):
    """The verdict of a roster on a step."""

    APPLY = "apply"
    SKIP = "skip"
    """The step counts, but changes no parameter, since its scaled gradients overflowed."""
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Vote:
    """The contribution of a member to the commit; contributions are summed over the roster."""

    num_prepared: float = 0.0
    num_finite: float = 0.0
    loss_sum: float = 0.0
    """Sum of the losses of the step; only the last stage of the first replica contributes it."""
    weight: float = 0.0
    """Divisor of `loss_sum` for the mean loss; the same member contributes it."""
    num_saved: float = 0.0
    """1 if this member has written its part of the pending checkpoint."""
    num_due: float = 0.0
    """1 if this member finds that a checkpoint is due; one such member is enough."""
    newest_change: float = 0.0
    """The newest planned change of the roster, by its attempt; only the first member contributes it."""
    ready_change: float = 0.0
    """The planned change that this member is ready for, by its attempt; 0 if there is none."""
    wishes: float = 0.0
    """The flags of `Wish` that the job asks for; only the first member contributes them."""
    num_stops: float = 0.0
    """1 if this member has found a request of a person to stop the run; only the first member looks for it."""
    batch_size: float = 0.0
    """Batch size from the next step on; 0 if it stays, and from all but the first member."""
    rate_factor: float = 0.0
    """Factor on the learning rate from the next step on; 0 where `batch_size` is."""
    first_square_sum: float = 0.0
    """Σg² of the mean gradient of this member's first grain, for the gradient noise scale; 0 if it is not measured."""
    noise_square_sum: float = 0.0
    """Σg² of the step's gradient over the same parameters; each member of the first replica contributes its stage."""
    square_sums: tuple[float, ...] = ()
    """Σg² of each stage, in stage order.

    Each member of the first replica contributes that of its stage and 0 for others, so rounding does not depend on who
    votes.
    """

    paces: tuple[float, ...] = ()
    """Seconds in which each replica computed a grain of the step before; 0 if that is not known.

    The member of a replica's first stage contributes that of its replica.
    """

    def values(self) -> list[float]:
        *numbers, square_sums, paces = astuple(self)
        return [*numbers, *square_sums, *paces]

    @staticmethod
    def of(values: Sequence[float], num_stages: int) -> "Vote":
        numbers, rest = values[:_NUM_SCALARS], values[_NUM_SCALARS:]
        square_sums, paces = tuple(rest[:num_stages]), tuple(rest[num_stages:])
        return replace(Vote(*numbers), square_sums=square_sums, paces=paces)  # type: ignore[arg-type]

    @property
    def square_sum(self) -> float:
        """Σg² of the whole model, added up in stage order."""
        return sum(self.square_sums)

    def agrees_on_change(self, num_members: int) -> bool:
        """Whether all members are ready for the newest planned change, given the sum of their votes.

        No member is ready for a newer change than the first member's newest.
        """
        return self.newest_change > 0 and self.ready_change == self.newest_change * num_members


_NUM_SCALARS = len(Vote().values())
VOTE_ELEMENT_BYTES = 8
"""Bytes of each value of a Vote, which is a float64."""


def vote_elements(num_stages: int, num_replicas: int) -> int:
    """Number of values in a Vote of a roster with this layout."""
    return _NUM_SCALARS + num_stages + num_replicas


@dataclass(frozen=True, slots=True)
class StepState:
    """The step and phase of a member; a transition returns the next state, or raises ScheduleError."""

    step: int
    phase: Phase
    is_bound: bool = True
    """Whether the member may vote and apply; False from its answer to a survey until the next roster."""

    @staticmethod
    def resumed(step: int) -> "StepState":
        """The state after exactly `step` steps, from a checkpoint or a live replica."""
        return StepState(step - 1, Phase.APPLIED)

    @property
    def num_applied(self) -> int:
        """Number of steps that the parameters of this member contain."""
        return self.step + 1 if self.phase is Phase.APPLIED else self.step

    def begin(self) -> "StepState":
        """Start the next step."""
        self._expect(Phase.APPLIED, "begin a step")
        return StepState(self.step + 1, Phase.RUNNING)

    def prepare(self) -> "StepState":
        """Record that all gradients of the step are reduced and held."""
        self._expect_bound(Phase.RUNNING, "be prepared")
        return replace(self, phase=Phase.PREPARED)

    def decide(self, total: Vote, num_members: int, *, may_skip: bool = False) -> Decision:
        """The verdict of the whole roster, the same on every member, since all see the same sums.

        A step that is not finite, or has no weight, cannot be applied. With `may_skip`, a step that is not finite is
        skipped, since the loss scale may be the cause.
        """
        self._expect_bound(Phase.PREPARED, "decide")
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
        self._expect_bound(Phase.PREPARED, "apply")
        return replace(self, phase=Phase.APPLIED)

    def drop(self) -> "StepState":
        """Return to the state before the step, which will be run again."""
        if self.phase is Phase.APPLIED:
            raise ScheduleError(f"step {self.step} is applied and cannot be dropped")
        return StepState(self.step - 1, Phase.APPLIED)

    def release(self) -> "StepState":
        """Answer a survey; after that, this member neither votes nor applies under the present roster."""
        return replace(self, is_bound=False)

    def obey(self, roster: Roster) -> "StepState":
        """The state of a member at the start of a new roster.

        A member that lacks a step that stands is running it, and is prepared once it has received the gradients.
        """
        step, ruling = roster.resume_step, roster.ruling
        if ruling is None or ruling.kind == "rolled_back":
            return StepState.resumed(step)
        if ruling.kind == "stands" and self.num_applied == step:
            return StepState(step, Phase.PREPARED if self.phase is Phase.PREPARED else Phase.RUNNING)
        if ruling.kind == "planned" and self.num_applied == step - 1 and self.phase is Phase.PREPARED:
            return replace(self, is_bound=True)  # it has yet to apply the step before the change
        if self.num_applied != roster.first_computed:
            raise ScheduleError(
                f"this member has applied {self.num_applied} steps, but roster {roster.label} begins with step "
                f"{roster.first_computed}"
            )
        return StepState.resumed(roster.first_computed)

    def _expect(self, phase: Phase, what: str) -> None:
        if self.phase is not phase:
            raise ScheduleError(f"a member that is {self.phase.value} at step {self.step} cannot {what}")

    def _expect_bound(self, phase: Phase, what: str) -> None:
        self._expect(phase, what)
        if not self.is_bound:
            raise ScheduleError(f"a member that has answered a survey at step {self.step} cannot {what}")

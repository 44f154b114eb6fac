"""What lost members and limited lifetimes are expected to cost a run."""

import math
from collections.abc import Iterable
from typing import Literal

from msgspec import structs

from zooid.core.records import Record, require_at_least

TimeKind = Literal[
    "start-up", "steps", "checkpoints", "slower steps", "lost members", "hand-overs", "waiting", "redone"
]
"""`steps` are those of a run without losses, with all members. `slower steps` is what they take longer with fewer, and
`redone` what rollbacks make the run compute again. `waiting` is for replacements after rollbacks. `lost members` and
`hand-overs` are pauses."""
UNLOST_KINDS: tuple[TimeKind, ...] = ("start-up", "steps", "checkpoints")
"""Kinds of time that have nothing to do with losses and lifetimes."""
LOSS_KINDS: tuple[TimeKind, ...] = ("slower steps", "lost members", "waiting", "redone")
"""Kinds of time that lost members cost."""


class TimeTerm(Record, frozen=True, kw_only=True):
    """One part of a run's time. The terms of a forecast sum to the predicted run time."""

    kind: TimeKind
    seconds: float


def seconds_of(terms: Iterable[TimeTerm], *kinds: TimeKind) -> float:
    """Sum of the terms of these kinds."""
    return math.fsum(term.seconds for term in terms if term.kind in kinds)


class LossForecast(Record, frozen=True, kw_only=True):
    """Expected losses of members and their effect. Members are assumed to be lost independently, at constant rates."""

    num_losses: float = 0.0
    """Expected number of lost members, including those that are lost while they start."""
    num_losses_p95: int = 0
    """95th percentile of that number."""
    num_rollbacks: float = 0.0
    """Expected number of times that all members go back to the last checkpoint."""
    num_handovers: float = 0.0
    """Expected number of members that hand over to a successor because their lifetime ends."""
    time_terms: tuple[TimeTerm, ...] = ()
    """Parts of the expected run time."""
    checkpoint_interval_s: float | None = None
    """Time between two checkpoints; None if only the first and the last are written."""
    checkpoint_pause_s: float = 0.0
    """Predicted time for which a checkpoint stops a member."""
    between_rollbacks_s: float | None = None
    """Expected time between two rollbacks; None if no rollback is expected."""
    unknown: tuple[str, ...] = ()
    """Names of spot offers whose rate of interruptions is unknown. Their losses are not included."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "num_losses", "num_rollbacks", "num_handovers", "checkpoint_pause_s")

    def in_longer_run(self, factor: float) -> "LossForecast":
        """The forecast of a run with this many times the steps. Its start takes as long as before."""
        return structs.replace(
            self,
            num_losses=factor * self.num_losses,
            num_losses_p95=math.ceil(factor * self.num_losses_p95),
            num_rollbacks=factor * self.num_rollbacks,
            num_handovers=factor * self.num_handovers,
            time_terms=tuple(
                term if term.kind == "start-up" else structs.replace(term, seconds=factor * term.seconds)
                for term in self.time_terms
            ),
        )

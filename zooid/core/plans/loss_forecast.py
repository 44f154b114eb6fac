"""What lost members and limited lifetimes are expected to cost a run."""

import math

from msgspec import structs

from zooid.core.records import Record, require_at_least

START_UP = "start-up"


class TimeTerm(Record, frozen=True, kw_only=True):
    """One part of a run's time. The terms of a forecast sum to the predicted run time."""

    kind: str
    seconds: float


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
                term if term.kind == START_UP else structs.replace(term, seconds=factor * term.seconds)
                for term in self.time_terms
            ),
        )

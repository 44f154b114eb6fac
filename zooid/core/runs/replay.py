"""The replay of a spot trace: how it is replayed, and what it did to the run."""

from zooid.core.records import Record, require_positive
from zooid.core.resources.spot_trace import SpotTrace


class SpotReplay(Record, frozen=True, kw_only=True):
    """How a spot trace is replayed."""

    trace: SpotTrace
    speed: float = 60.0
    """Number of seconds of the trace that pass in one second."""
    seed: int = 0
    """Decides which members are killed when fewer instances are up."""

    def __post_init__(self) -> None:
        require_positive(self, "speed")


class ReplayReport(Record, frozen=True, kw_only=True):
    """What the trace did to the run, and what the run made of it."""

    num_steps: int
    num_redone: int
    """Number of steps that were committed again after all members had gone back to a checkpoint."""
    num_lost: int
    """Number of members that were killed."""
    num_recoveries: int
    """Number of times that survivors went on without lost members."""
    num_resumes: int
    """Number of times that the run was resumed from its last checkpoint, because too few members were left."""
    num_joined: int = 0
    """Number of members that took the seats of killed ones while the others trained."""
    recovery_s: float
    """Time from noticing lost members until the survivors went on, over all recoveries."""
    down_s: float
    """Time in which the run waited until enough instances were up again."""
    wall_s: float
    """Time from the start of the run to its end."""
    usd: float
    """Cost of all members at the plan's prices."""

"""What the stages of a plan take for one grain: the simulator times it, and a rehearsal sleeps it."""

from zooid.core.records import Record, require


class Bucket(Record, frozen=True, kw_only=True):
    """Gradients that are reduced in one message, and with the last of them the statistics."""

    num_bytes: int
    at_share: float
    """When the last backward has completed them, from 0 (its begin) to 1 (its end)."""


class StageTimes(Record, frozen=True, kw_only=True):
    """One stage working on one grain."""

    forward_s: float
    backward_s: float
    out_bytes: float
    """What travels to the next stage, and as gradients back; 0 for the last stage."""
    buckets: tuple[Bucket, ...]
    """In the order in which they are reduced."""
    reduce_s: float
    """Gathering and adding gradients, without the transfers."""
    update_s: float
    """Applying one step."""

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "out_bytes", "reduce_s", "update_s"):
            require(getattr(self, name) >= 0, f"`{name}` is {getattr(self, name)}; it must be at least 0")
        require(len(self.buckets) >= 1, "`buckets` must not be empty")


class Tie(Record, frozen=True, kw_only=True):
    """Parameters that several stages use: their gradients are summed between these stages of each replica."""

    stages: tuple[int, ...]
    num_bytes: int

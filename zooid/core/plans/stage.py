"""The times and message sizes of a plan's stages, which the simulator and a rehearsal use."""

from zooid.core.records import Record, require, require_at_least


class Bucket(Record, frozen=True, kw_only=True):
    """Gradients that are reduced in one message. The last bucket also carries the statistics."""

    num_bytes: int
    at_share: float
    """Moment within the last backward at which the gradients are complete, from 0 (start) to 1 (end)."""


class StageTimes(Record, frozen=True, kw_only=True):
    """Times and message sizes of one stage for one grain."""

    forward_s: float
    backward_s: float
    out_bytes: float
    """Bytes sent to the next stage, and back as gradients; 0 for the last stage."""
    buckets: tuple[Bucket, ...]
    """Buckets in the order in which they are reduced."""
    reduce_s: float
    """Time to gather and add gradients, without the transfers."""
    update_s: float
    """Time to apply one step, and from there to the next."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "forward_s", "backward_s", "out_bytes", "reduce_s", "update_s")
        require(len(self.buckets) >= 1, "`buckets` must not be empty")


class Tie(Record, frozen=True, kw_only=True):
    """Parameters that several stages use. Each replica sums their gradients between these stages."""

    stages: tuple[int, ...]
    num_bytes: int

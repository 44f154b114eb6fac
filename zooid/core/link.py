"""How fast bytes move between two sites, or between a site and the object store."""

from zooid.core.records import Record, require

STORE_SITE = "store"
"""The end of a link that is the object store."""


class Link(Record, frozen=True, kw_only=True):
    """One direction between two ends; a link of a site to itself is between members inside it."""

    from_site: str
    to_site: str
    bandwidth_bytes_per_s: float
    """What one member gets with enough parallel streams."""
    rtt_s: float
    """Round trip of a small message; to the store, of one small request."""
    cpu_s: float = 0.0
    """Processor time that one message takes from the member's computing."""
    cpu_s_per_byte: float = 0.0
    """The same for each byte of it."""
    stream_bytes_per_s: float | None = None
    """What a single stream carries; None where it fills the link."""
    source: str
    date: str

    def __post_init__(self) -> None:
        ends = f"{self.from_site} to {self.to_site}"
        require(self.bandwidth_bytes_per_s > 0, f"`bandwidth_bytes_per_s` of {ends} must be above 0")
        require(self.rtt_s >= 0, f"`rtt_s` of {ends} must be at least 0")
        require(
            self.cpu_s >= 0 and self.cpu_s_per_byte >= 0, f"`cpu_s` and `cpu_s_per_byte` of {ends} must be at least 0"
        )
        require(
            self.stream_bytes_per_s is None or self.stream_bytes_per_s > 0,
            f"`stream_bytes_per_s` of {ends} must be above 0",
        )

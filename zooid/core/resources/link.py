"""Links: bandwidth and round trip between two sites, or between a site and the object store."""

from zooid.core.records import FileRecord, Record, require, require_at_least, require_positive

STORE_SITE = "store"
"""Site name of the object store."""


class Link(Record, frozen=True, kw_only=True):
    """A link from one site to another. A link from a site to itself connects the members inside it."""

    from_site: str
    to_site: str
    bandwidth_bytes_per_s: float
    """Bandwidth of one member with enough parallel streams; if probed, with `num_streams` of them."""
    rtt_s: float
    """Round trip of a small message, or of a small request to the store."""
    cpu_s: float = 0.0
    """CPU time that one message costs the member."""
    cpu_s_per_byte: float = 0.0
    """Additional CPU time for each byte of a message."""
    stream_bytes_per_s: float | None = None
    """Throughput of a single stream; None if it fills the link."""
    num_members: int = 1
    """Number of members that used the link at once; the bandwidth of each falls with their number."""
    num_streams: int = 1
    """Number of parallel connections, or of objects in flight to or from the store, during the measurement."""
    spread: float = 0.0
    """Range of the measured bandwidths over their median; 0 if there was one measurement."""
    source: str
    date: str

    def __post_init__(self) -> None:
        ends = f"{self.from_site} to {self.to_site}"
        require_positive(self, "bandwidth_bytes_per_s", "stream_bytes_per_s", of=ends)
        require_at_least(0, self, "rtt_s", "cpu_s", "cpu_s_per_byte", "spread", of=ends)
        require_at_least(1, self, "num_members", "num_streams", of=ends)


class MissingLink(Record, frozen=True, kw_only=True):
    """A link over which no byte could be sent."""

    from_site: str
    to_site: str
    reason: str


class Links(FileRecord, frozen=True, kw_only=True, tag="links"):
    """The links that members have probed together."""

    zooid_version: str
    date: str
    links: tuple[Link, ...]
    missing: tuple[MissingLink, ...] = ()

    def __post_init__(self) -> None:
        seen: set[tuple[str, str, int, int]] = set()
        for link in self.links:
            key = (link.from_site, link.to_site, link.num_members, link.num_streams)
            require(
                key not in seen,
                f"`links` has {link.from_site} to {link.to_site} with {link.num_members} member(s) and "
                f"{link.num_streams} stream(s) twice; give it once",
            )
            seen.add(key)

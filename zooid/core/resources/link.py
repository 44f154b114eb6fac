"""How fast bytes move between two sites, or between a site and the object store."""

from zooid.core.records import FileRecord, Record, require

STORE_SITE = "store"
"""The end of a link that is the object store."""


class Link(Record, frozen=True, kw_only=True):
    """One direction between two ends; a link of a site to itself is between members inside it."""

    from_site: str
    to_site: str
    bandwidth_bytes_per_s: float
    """What one member gets with enough parallel streams; where it was probed, with `num_streams` of them."""
    rtt_s: float
    """Round trip of a small message; to the store, of one small request."""
    cpu_s: float = 0.0
    """Processor time that one message takes from the member's computing."""
    cpu_s_per_byte: float = 0.0
    """The same for each byte of it."""
    stream_bytes_per_s: float | None = None
    """What a single stream carries; None where it fills the link."""
    num_members: int = 1
    """How many members moved bytes at once, each its own: what one of them gets falls with their number."""
    num_streams: int = 1
    """Connections between two members, or objects on their way to or from the store, that carried the bandwidth."""
    spread: float = 0.0
    """Of the bandwidth, between the repeats and the members that measured it: largest less smallest, over the median;
    0 where it was measured once."""
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
        require(
            self.num_members >= 1 and self.num_streams >= 1,
            f"`num_members` and `num_streams` of {ends} must be at least 1",
        )
        require(self.spread >= 0, f"`spread` of {ends} must be at least 0")


class MissingLink(Record, frozen=True, kw_only=True):
    """One direction in which no byte could be moved."""

    from_site: str
    to_site: str
    reason: str


class Links(FileRecord, frozen=True, kw_only=True, tag="links"):
    """What members that probed together have measured."""

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
                f"{link.num_streams} stream(s) twice",
            )
            seen.add(key)

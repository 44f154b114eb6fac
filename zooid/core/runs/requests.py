"""What people and machines tell a run while it trains, as objects in its store."""

from zooid.core.records import FileRecord, require_at_least, require_name, require_positive


class LayoutRequest(FileRecord, frozen=True, kw_only=True, tag="layout_request"):
    """The layout in which a run is asked to go on."""

    num_replicas: int
    num_stages: int

    def __post_init__(self) -> None:
        require_at_least(1, self, "num_replicas", "num_stages")


class Notice(FileRecord, frozen=True, kw_only=True, tag="notice"):
    """The notice that a member will soon be ended, such as that of a spot machine."""

    member: str
    source: str
    """Where the notice came from, in words."""
    left_s: float | None = None
    """Seconds from the notice to the end of the member; None if they are unknown."""

    def __post_init__(self) -> None:
        require_name("member", self.member)
        require_positive(self, "left_s")

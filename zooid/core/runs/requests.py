"""What people ask of a run while it trains, as objects in its store."""

from zooid.core.records import FileRecord, require_at_least


class LayoutRequest(FileRecord, frozen=True, kw_only=True, tag="layout_request"):
    """The layout in which a run is asked to go on."""

    num_replicas: int
    num_stages: int

    def __post_init__(self) -> None:
        require_at_least(1, self, "num_replicas", "num_stages")

"""The limits of a member."""

from zooid.core.records import Record, require_positive


class Size(Record, frozen=True):
    """Limits of a member: processor time, in cores, and memory."""

    vcpus: float
    memory_bytes: int

    def __post_init__(self) -> None:
        require_positive(self, "vcpus", "memory_bytes")

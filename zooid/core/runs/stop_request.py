"""The request of a person to end a run, which its first member finds in the store."""

from zooid.core.records import FileRecord, require_name

STOPPED_BY_REQUEST = "zooid stop asked for it"
"""Why such a run ended before its last step, in words."""


class StopRequest(FileRecord, frozen=True, kw_only=True, tag="stop_request"):
    """A request to write a checkpoint at the next step boundary and to end the run, which can then be resumed.

    It is written create-only, so that a second request finds the first.
    """

    run: str
    asked_at_s: float
    """Unix time on the clock of whoever asked."""
    asked_from: str
    """Name of the machine on which somebody asked."""

    def __post_init__(self) -> None:
        require_name("run", self.run)

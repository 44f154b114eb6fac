"""A spot trace: how many of the wanted instances were up, sampled at equal intervals."""

from typing import Annotated

from msgspec import Meta

from zooid.core.records import Record, decode_json, require, require_positive

_MAX_GAP_S = 1e9
"""No trace has a sample in a generation; with larger numbers, times would not be finite."""


class TraceMetadata(Record, frozen=True, kw_only=True):
    """How a trace was sampled."""

    gap_seconds: float
    """Time between two samples."""

    def __post_init__(self) -> None:
        require_positive(self, "gap_seconds")
        require(
            self.gap_seconds <= _MAX_GAP_S, f"`gap_seconds` is {self.gap_seconds}; it must be at most {_MAX_GAP_S:g}"
        )


class SpotTrace(Record, frozen=True, kw_only=True):
    """The number of instances that were up at each sample, in the format of `skypilot-org/spot-traces`."""

    metadata: TraceMetadata
    data: tuple[Annotated[int, Meta(ge=0)], ...]

    def __post_init__(self) -> None:
        require(len(self.data) >= 1, "`data` is empty; give one number or more")

    @property
    def duration_s(self) -> float:
        return len(self.data) * self.metadata.gap_seconds

    def num_up(self, at_s: float) -> int:
        """The number of instances that are up at this time. After the end of the trace, nothing changes any more.

        >>> trace = SpotTrace(metadata=TraceMetadata(gap_seconds=10.0), data=(4, 1))
        >>> [trace.num_up(at_s) for at_s in (0.0, 9.9, 10.0, 99.0)]
        [4, 4, 1, 1]
        """
        return self.data[min(len(self.data) - 1, max(0, int(at_s // self.metadata.gap_seconds)))]

    def next_s(self, num_instances: int, from_s: float = 0.0) -> float | None:
        """The first time from `from_s` on at which so many instances are up; None if the trace has no such time.

        >>> trace = SpotTrace(metadata=TraceMetadata(gap_seconds=10.0), data=(0, 1, 4))
        >>> [trace.next_s(2), trace.next_s(2, from_s=25.0), trace.next_s(5)]
        [20.0, 25.0, None]
        """
        if self.num_up(from_s) >= num_instances:
            return from_s
        first = int(from_s // self.metadata.gap_seconds) + 1
        for number in range(first, len(self.data)):
            if self.data[number] >= num_instances:
                return number * self.metadata.gap_seconds
        return None


def decode_spot_trace(data: bytes, source: str) -> SpotTrace:
    """Decode a trace; `source` names the file in messages."""
    trace: SpotTrace = decode_json(
        data, SpotTrace, source, 'a spot trace such as {"metadata": {"gap_seconds": 300}, "data": [4, 4, 3]}'
    )
    return trace

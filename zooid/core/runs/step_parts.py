"""The parts of a step: how long a member computed, communicated and waited.

Reports, benchmarks and predictions use the same arithmetic, so that their figures are comparable.
"""

from collections import defaultdict
from collections.abc import Iterable

from zooid.core.records import Record
from zooid.core.runs.timeline import Timeline, without_waiting

_Span = tuple[float, float]


class StepParts(Record, frozen=True, kw_only=True):
    """The parts of a step on one member, or summed over several; the first four sum to the step."""

    member: str
    compute_s: float
    transfer_s: float
    """Time in which messages were in flight and nothing was computed."""
    reduce_s: float
    """Time in which only gradients were in flight."""
    bubble_s: float
    """Time in which the member waited for others."""
    moving_s: float
    """Time in which anything was in flight, hidden behind compute or not."""

    @property
    def step_s(self) -> float:
        return self.compute_s + self.transfer_s + self.reduce_s + self.bubble_s

    @property
    def hidden_s(self) -> float:
        """Time in which something was in flight while the member computed."""
        return max(0.0, self.moving_s - self.transfer_s - self.reduce_s)

    @property
    def compute_fraction(self) -> float:
        return self.compute_s / self.step_s if self.step_s else 0.0

    @property
    def bubble_fraction(self) -> float:
        return self.bubble_s / self.step_s if self.step_s else 0.0

    @property
    def hidden_fraction(self) -> float | None:
        """Fraction of the communication that compute hides; None if nothing is communicated."""
        return self.hidden_s / self.moving_s if self.moving_s else None

    @property
    def granularity(self) -> float | None:
        """Time of compute over time of communication; None if nothing is communicated."""
        return self.compute_s / self.moving_s if self.moving_s else None


def parts_by_member(timeline: Timeline) -> dict[str, StepParts]:
    """Return the parts of every member, in the order of the timeline."""
    return {member: _parts(member, spans, timeline.step_s) for member, spans in _spans_by_kind(timeline).items()}


def parts_of_step(timeline: Timeline) -> StepParts:
    """Return the parts of the member that computes longest, the first of several."""
    spans = _spans_by_kind(timeline)
    member = max(timeline.members, key=lambda name: _covered_s(spans[name]["compute"]))
    return _parts(member, spans[member], timeline.step_s)


def total_parts(parts: Iterable[StepParts]) -> StepParts:
    """Sum the parts of several members."""
    members = list(parts)
    return StepParts(
        member="all",
        compute_s=sum(member.compute_s for member in members),
        transfer_s=sum(member.transfer_s for member in members),
        reduce_s=sum(member.reduce_s for member in members),
        bubble_s=sum(member.bubble_s for member in members),
        moving_s=sum(member.moving_s for member in members),
    )


def _spans_by_kind(timeline: Timeline) -> dict[str, dict[str, list[_Span]]]:
    spans: dict[str, dict[str, list[_Span]]] = {member: defaultdict(list) for member in timeline.members}
    for interval in without_waiting(timeline).intervals:
        kind = interval.lane if interval.lane in ("compute", "reduce") else "transfer"
        spans[interval.member][kind].append((interval.start_s, interval.end_s))
    return spans


def _parts(member: str, spans: dict[str, list[_Span]], step_s: float) -> StepParts:
    compute_s = _covered_s(spans["compute"])
    with_transfers_s = _covered_s(spans["compute"] + spans["transfer"])
    busy_s = _covered_s(spans["compute"] + spans["transfer"] + spans["reduce"])
    return StepParts(
        member=member,
        compute_s=compute_s,
        transfer_s=max(0.0, with_transfers_s - compute_s),
        reduce_s=max(0.0, busy_s - with_transfers_s),
        bubble_s=max(0.0, step_s - busy_s),
        moving_s=_covered_s(spans["transfer"] + spans["reduce"]),
    )


def _covered_s(spans: list[_Span]) -> float:
    """Return the length of the union of the spans."""
    total_s = 0.0
    reached_s = float("-inf")
    for start_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(start_s, reached_s))
        reached_s = max(reached_s, end_s)
    return total_s

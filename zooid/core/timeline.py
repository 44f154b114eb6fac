"""When each action of a step ran, or is expected to: the same record for simulated, rehearsed and measured steps."""

from zooid.core.records import FileRecord, Record


class Interval(Record, frozen=True, kw_only=True):
    """One action; seconds count from the start of the step."""

    member: str
    lane: str
    action: str
    """Its text form, `2F5`."""
    start_s: float
    end_s: float


class Timeline(FileRecord, frozen=True, kw_only=True, tag="timeline"):
    """One step of some or all members."""

    intervals: tuple[Interval, ...]

    @property
    def step_s(self) -> float:
        return max((interval.end_s for interval in self.intervals), default=0.0)

    def busy_s(self, member: str, lane: str) -> float:
        """Time that a lane of a member spent in actions; waiting for peers inside a reduce or commit counts."""
        return sum(i.end_s - i.start_s for i in self.intervals if i.member == member and i.lane == lane)

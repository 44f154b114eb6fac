"""What tables and pages say about a forecast, in the same words and numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from zooid.core.plans.forecast import Forecast, Gain
from zooid.core.runs.step_parts import StepParts, parts_by_member
from zooid.core.units import format_duration, format_usd
from zooid.report.profile.rows import NOTHING

PARTS = {
    "compute": "computing",
    "transfer": "messages, not hidden",
    "reduce": "all-reduce, not hidden",
    "bubble": "waiting for others",
}
"""Parts of a step by the names of their fields in StepParts; they sum to the step."""

KINDS = {
    "compute": "members' time, training",
    "start-up": "members' time, starting",
    "starts": "members' starts",
    "requests": "requests to the store",
    "storage": "what lies in the store",
    "egress": "traffic between places",
    "data": "loading the data set",
}
"""Kinds of cost in words."""


def part_seconds(parts: StepParts) -> dict[str, float]:
    """By the names of PARTS."""
    return {name: getattr(parts, f"{name}_s") for name in PARTS}


def change_in_words(gain: Gain) -> str:
    return (
        f"one more replica, {gain.num_members} members"
        if gain.change == "replica"
        else (f"twice the batch, {gain.batch_size} samples")
    )


def signed_percent(part: float | None) -> str:
    return NOTHING if part is None else f"{part * 100:+.1f} %"


def small_percent(part: float) -> str:
    """
    >>> small_percent(0.2584), small_percent(1e-6)
    ('25.8 %', '< 0.1 %')
    """
    return "< 0.1 %" if 0 < part < 0.001 else f"{part * 100:.1f} %"


def difference(predicted: float, measured: float) -> float | None:
    """How far the prediction was off, as a part of what was measured."""
    return predicted / measured - 1 if measured else None


@dataclass(frozen=True)
class Compared:
    """One quantity, as it was predicted and as it was measured."""

    name: str
    predicted: float
    measured: float | None
    show: Callable[[float], str]

    @property
    def cells(self) -> tuple[str, str, str, str]:
        if self.measured is None:
            return self.name, self.show(self.predicted), NOTHING, NOTHING
        off = difference(self.predicted, self.measured)
        return self.name, self.show(self.predicted), self.show(self.measured), signed_percent(off)


def compared_rows(forecast: Forecast) -> list[Compared]:
    """Steps, the parts of one of them on the same member, and the whole run; nothing where no run was measured."""
    measured, prediction = forecast.measured, forecast.prediction
    if measured is None:
        return []
    rows = [
        Compared("step, mean", prediction.step_s, measured.step_s, format_duration),
        Compared("step, p50", forecast.step_p50_s, measured.step_p50_s, format_duration),
    ]
    if prediction.step_p95_s is not None:
        rows.append(Compared("step, p95", prediction.step_p95_s, measured.step_p95_s, format_duration))
    known = parts_by_member(measured.timeline).get(forecast.parts.member) if measured.timeline is not None else None
    for name, predicted_s in part_seconds(forecast.parts).items():
        measured_s = None if known is None else part_seconds(known)[name]
        rows.append(Compared(f"{PARTS[name]} of {forecast.parts.member}", predicted_s, measured_s, format_duration))
    rows.append(Compared("run", prediction.run_s, measured.run_s, format_duration))
    rows.append(Compared("members' bill", forecast.members_usd, measured.members_usd, format_usd))
    return rows

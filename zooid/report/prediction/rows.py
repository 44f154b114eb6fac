"""What tables and pages say about a forecast, in the same words."""

from collections.abc import Callable
from dataclasses import dataclass

from zooid.core.plans.forecast import Forecast, Gain
from zooid.core.plans.loss_forecast import TimeKind
from zooid.core.runs.step_parts import StepParts, parts_by_member
from zooid.core.units import SECONDS_PER_YEAR, format_duration, format_usd
from zooid.report.phrases import NOTHING, or_nothing, signed_percent

PARTS = {
    "compute": "computing",
    "transfer": "messages, not hidden",
    "reduce": "all-reduce, not hidden",
    "bubble": "waiting for others",
}
"""The parts that sum to a step, in words; their names are those of fields of StepParts."""

COST_KINDS = {
    "compute": "members' time, training",
    "start-up": "members' time, starting",
    "starts": "members' starts",
    "requests": "requests to the store",
    "storage": "storage in the store",
    "egress": "traffic between sites",
    "data": "loading the data set",
    "losses": "lost members",
    "hand-overs": "hand-overs to successors",
}
"""The kinds of cost, in words."""

TIME_KINDS: dict[TimeKind, str] = {
    "start-up": "start-up",
    "steps": "steps with all members",
    "checkpoints": "checkpoints",
    "slower steps": "slower steps with fewer members",
    "lost members": "pauses after lost members",
    "hand-overs": "pauses of hand-overs",
    "waiting": "waiting for replacements",
    "redone": "steps once more",
}
"""The kinds of time of a run with losses, in words."""


def loss_facts(forecast: Forecast) -> list[tuple[str, str]]:
    """Name and text of everything that is expected to happen to members; empty where nothing is."""
    losses = forecast.prediction.losses
    if losses is None or not losses.time_terms:
        return []
    facts = []
    if losses.num_losses:
        facts.append(("lost members", f"{losses.num_losses:.3g}, p95 {losses.num_losses_p95}"))
        between_s = losses.between_rollbacks_s
        is_rare = between_s is None or between_s > SECONDS_PER_YEAR
        apart = "less than one a year" if is_rare else f"{format_duration(between_s or 0.0)} apart"
        facts.append(("rollbacks", f"{losses.num_rollbacks:.3g}, {apart}"))
    if losses.num_handovers:
        facts.append(("hand-overs to successors", f"{losses.num_handovers:.3g}"))
    if losses.checkpoint_interval_s is not None:
        pause = format_duration(losses.checkpoint_pause_s)
        facts.append(("a checkpoint every", f"{format_duration(losses.checkpoint_interval_s)}, {pause} each"))
    return facts


def part_seconds(parts: StepParts) -> dict[str, float]:
    """Seconds of each part, by the names of PARTS."""
    return {name: getattr(parts, f"{name}_s") for name in PARTS}


def change_in_words(gain: Gain) -> str:
    if gain.change == "replica":
        return f"one more replica, {gain.num_members} members"
    return f"twice the batch, {gain.batch_size} samples"


@dataclass(frozen=True)
class Comparison:
    """A predicted quantity beside the measured one."""

    name: str
    predicted: float | None
    measured: float | None
    show: Callable[[float], str]

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Name, prediction, measurement, and the error of the prediction relative to the measurement."""
        predicted, measured = or_nothing(self.predicted, self.show), or_nothing(self.measured, self.show)
        error = NOTHING
        if self.predicted is not None and self.measured:
            error = signed_percent(self.predicted / self.measured - 1)
        return self.name, predicted, measured, error


def comparisons(forecast: Forecast) -> list[Comparison]:
    """Compare steps, the parts of a step on one member, and the run; empty where no run was measured."""
    measured, prediction = forecast.measured, forecast.prediction
    if measured is None:
        return []
    rows = [
        Comparison("step, mean", prediction.step_s, measured.step_s, format_duration),
        Comparison("step, p50", forecast.step_p50_s, measured.step_p50_s, format_duration),
    ]
    if prediction.step_p95_s is not None:
        rows.append(Comparison("step, p95", prediction.step_p95_s, measured.step_p95_s, format_duration))
    measured_parts = (
        parts_by_member(measured.timeline).get(forecast.parts.member) if measured.timeline is not None else None
    )
    for name, predicted_s in part_seconds(forecast.parts).items():
        measured_s = None if measured_parts is None else part_seconds(measured_parts)[name]
        rows.append(Comparison(f"{PARTS[name]} of {forecast.parts.member}", predicted_s, measured_s, format_duration))
    rows.append(Comparison("run", prediction.run_s, measured.run_s, format_duration))
    rows.append(Comparison("members' bill", forecast.members_usd, measured.members_usd, format_usd))
    return rows

"""Tables of a run: what its plan expects, and what was measured at its end."""

from collections.abc import Iterable

from rich.table import Table

from zooid.core.plans.plan import CostTerm, Plan
from zooid.core.plans.profile import Profile
from zooid.core.runs.events import RunFinished, RunStarted
from zooid.core.runs.replay import ReplayReport
from zooid.core.units import format_bytes, format_duration, format_usd
from zooid.report.phrases import ESTIMATE, NOTHING, span_in_words
from zooid.report.prediction.rows import Comparison
from zooid.report.terminal_text import cell, numbers_table


def plan_table(plan: Plan, profile: Profile | None = None) -> Table:
    """A row for each stage, and the expected time and cost of the run."""
    table = Table(
        title=cell(
            f"{plan.job}: {plan.num_replicas} replica(s) × {len(plan.stages)} stage(s), "
            f"batch {plan.batch_size} in grains of {plan.grain_size}{', reproducible' if plan.reproducible else ''}"
            f"{', insured with a copy of each stage' if plan.num_copies else ''}"
        )
    )
    for name in ("stage", "layers", "offer", "memory"):
        table.add_column(name, justify="right" if name in ("stage", "memory") else "left")
    for number, stage in enumerate(plan.stages):
        names = [layer.name for layer in profile.layers[stage.first_layer : stage.end_layer]] if profile else []
        span = span_in_words(stage.first_layer, stage.end_layer) + (f" ({names[0]} … {names[-1]})" if names else "")
        table.add_row(str(number), cell(span), cell(stage.offer), _memory(plan, number) if plan.predicted else NOTHING)
    table.caption = cell(_expected(plan))
    return table


def _memory(plan: Plan, stage: int) -> str:
    """The memory that a stage needs, and what its members have where each is rented with memory of its own."""
    needed = format_bytes(plan.stages[stage].memory_bytes)
    offers = [row[stage] for row in plan.offer_rows]
    if any(offer.kind == "owned" for offer in offers):
        return needed
    return f"{needed} of {format_bytes(min(offer.memory_bytes for offer in offers))}"


def _expected(plan: Plan) -> str:
    prediction = plan.predicted
    if prediction is None:
        return f"{plan.num_steps} steps; made without a profile, so time, money and memory are unknown"
    source = prediction.estimated_from
    mark = f"{ESTIMATE}, from times measured on {source}" if source else "predicted"
    return (
        f"{mark}: {format_duration(prediction.step_s)} a step, {prediction.num_steps} steps, "
        f"{format_duration(prediction.run_s)} in all, {format_usd(prediction.run_usd)} for members' time and starts"
    )


def cost_in_words(terms: Iterable[CostTerm]) -> str:
    """Say what a cost consists of, largest term first; terms without a cost are left out.

    >>> cost_in_words([CostTerm(kind="starts", usd=0.0), CostTerm(kind="data", usd=1), CostTerm(kind="egress", usd=2)])
    'egress $2.00, data $1.00'
    """
    charged = sorted((term for term in terms if term.usd > 0), key=lambda term: -term.usd)
    return ", ".join(f"{term.kind} {format_usd(term.usd)}" for term in charged)


def summary_table(started: RunStarted, finished: RunFinished) -> Table:
    """Predicted beside measured time and cost of a run. The cost is explained below, if it has several terms."""
    heads = ("", "predicted", "measured", "difference")
    table = numbers_table(f"run {started.run}, {started.layout}", heads, f"cost {started.prices}")
    for row in (
        Comparison("step time", started.predicted_step_s, finished.step_s, format_duration),
        Comparison("run time", started.predicted_run_s, finished.wall_s, format_duration),
        Comparison("cost", started.predicted_usd, finished.usd, format_usd),
    ):
        table.add_row(*row.cells)
    if consists_of := cost_in_words(finished.terms):
        table.caption = cell(f"cost {started.prices}: {consists_of}")
    return table


def replay_table(report: ReplayReport) -> Table:
    """What a spot trace did to a run, and what that cost."""
    table = numbers_table("the run under the spot trace", ("", ""))
    redone = f" ({report.num_redone / report.num_steps:.1%} of all)" if report.num_steps else ""
    for name, value in (
        ("steps", str(report.num_steps)),
        ("members lost", str(report.num_lost)),
        ("recoveries by survivors", f"{report.num_recoveries}, {format_duration(report.recovery_s)} together"),
        ("members that joined", str(report.num_joined)),
        ("resumes from a checkpoint", str(report.num_resumes)),
        ("waiting for instances", format_duration(report.down_s)),
        ("steps redone", f"{report.num_redone}{redone}"),
        ("time", format_duration(report.wall_s)),
        ("cost", format_usd(report.usd)),
    ):
        table.add_row(name, cell(value))
    return table

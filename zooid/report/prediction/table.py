"""A forecast on a terminal: time, money, the effect of changes, and predicted beside measured."""

from rich.table import Table

from zooid.core.plans.forecast import Forecast
from zooid.core.units import format_duration, format_usd
from zooid.report.phrases import (
    ESTIMATE,
    NOTHING,
    count_in_words,
    or_nothing,
    percent,
    signed_percent,
    whole_percent,
)
from zooid.report.prediction.rows import (
    COST_KINDS,
    PARTS,
    TIME_KINDS,
    change_in_words,
    comparisons,
    loss_facts,
    part_seconds,
)
from zooid.report.terminal_text import cell, numbers_table


def prediction_tables(forecast: Forecast) -> list[Table]:
    """Tables in reading order; the comparison is last, where a run was measured."""
    tables = [_time(forecast), *_losses(forecast), _money(forecast), _gains(forecast)]
    return [*tables, _compared(forecast)] if forecast.measured is not None else tables


def facts_in_words(forecast: Forecast) -> list[str]:
    """The lines below the tables."""
    rate = forecast.rate
    samples = or_nothing(rate.samples_per_usd, "{:,.0f}".format)
    granularity = or_nothing(forecast.granularity, "{:.3g}".format)
    return [
        f"bottleneck: {forecast.bottleneck.sentence}",
        f"rate: {rate.samples_per_s:,.4g} samples/s, {format_usd(rate.usd_per_million_samples)} for a million samples, "
        f"{samples} samples for a dollar",
        f"granularity: {granularity} (compute time over communication time, hidden or not)",
        *(f"note: {note}" for note in forecast.notes),
    ]


def _time(forecast: Forecast) -> Table:
    """The parts that sum to the median step, its mean and p95, and the run."""
    prediction, parts = forecast.prediction, forecast.parts
    source = prediction.estimated_from
    mark = f"{ESTIMATE}, from times measured on {source}: " if source else ""
    title = f"{mark}{forecast.job}, {forecast.layout}: a step of {parts.member}"
    table = numbers_table(title, ("", "time", "of the step"))
    for name, seconds in part_seconds(parts).items():
        table.add_row(PARTS[name], format_duration(seconds), whole_percent(seconds / parts.step_s))
    table.add_section()
    table.add_row("step, p50", format_duration(forecast.step_p50_s), "100 %")
    table.add_row("step, mean", format_duration(prediction.step_s), "")
    table.add_row("step, p95", or_nothing(prediction.step_p95_s, format_duration), "")
    table.add_section()
    table.add_row("start-up", format_duration(prediction.startup_s), "")
    table.add_row(f"run of {count_in_words(prediction.num_steps, 'step')}", format_duration(prediction.run_s), "")
    table.add_row("run, p95", or_nothing(prediction.run_p95_s, format_duration), "")
    return table


def _losses(forecast: Forecast) -> list[Table]:
    """The parts of a run with losses or hand-overs, which sum to its time, and what is expected to happen."""
    prediction = forecast.prediction
    facts = loss_facts(forecast)
    if prediction.losses is None or not facts:
        return []
    table = numbers_table("the run with lost members and hand-overs", ("", "expected", "of the run"))
    for term in prediction.losses.time_terms:
        if term.seconds:
            name = TIME_KINDS[term.kind]
            table.add_row(name, format_duration(term.seconds), percent(term.seconds / prediction.run_s))
    table.add_section()
    table.add_row("run", format_duration(prediction.run_s), "100 %")
    table.add_section()
    for name, text in facts:
        table.add_row(name, text, "")
    return [table]


def _money(forecast: Forecast) -> Table:
    prediction = forecast.prediction
    table = numbers_table("what the run costs", ("", "dollars", "of the total"), forecast.prices)
    for term in prediction.cost_terms:
        fraction = percent(term.usd / prediction.run_usd) if term.usd else NOTHING
        table.add_row(
            cell(COST_KINDS.get(term.kind, term.kind)), format_usd(term.usd) if term.usd else NOTHING, fraction
        )
    table.add_section()
    table.add_row("total", format_usd(prediction.run_usd), "100 %" if prediction.run_usd else NOTHING)
    table.add_row("total, p95", or_nothing(prediction.run_p95_usd, format_usd), "")
    return table


def _gains(forecast: Forecast) -> Table:
    heads = ("", "samples/s", "dollars for a\nmillion samples", "samples/s by\ngranularity")
    table = numbers_table("the effect of changes", heads)
    rate = forecast.rate
    table.add_row("as planned", f"{rate.samples_per_s:,.4g}", format_usd(rate.usd_per_million_samples), NOTHING)
    for gain in forecast.gains:
        if gain.rate is None:
            table.add_row(
                f"{cell(change_in_words(gain))}\n[dim]not possible: {cell(gain.problem)}[/dim]", *[NOTHING] * 3
            )
            continue
        dollars = f"{format_usd(gain.rate.usd_per_million_samples)}\n{signed_percent(gain.usd_change)}"
        table.add_row(
            change_in_words(gain),
            f"{gain.rate.samples_per_s:,.4g}\n{signed_percent(gain.speedup)}",
            dollars if gain.usd_change is not None else NOTHING,
            signed_percent(gain.by_granularity),
        )
    return table


def _compared(forecast: Forecast) -> Table:
    measured = forecast.measured
    assert measured is not None, "only a measured run is compared"
    heads = ("", "predicted", "measured", "difference")
    table = numbers_table("predicted and measured", heads, f"{measured.num_steps} steps of {measured.run}")
    for row in comparisons(forecast):
        table.add_row(*map(cell, row.cells))
    return table

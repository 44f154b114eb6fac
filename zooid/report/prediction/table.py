"""A forecast on a terminal: time, money, what changes would bring, and predicted beside measured."""

from rich.table import Table

from zooid.core.plans.forecast import Forecast
from zooid.core.units import format_duration, format_usd
from zooid.report.prediction.rows import (
    KINDS,
    PARTS,
    change_in_words,
    compared_rows,
    part_seconds,
    signed_percent,
    small_percent,
)
from zooid.report.profile.rows import ESTIMATE, NOTHING, count_in_words
from zooid.report.terminal_text import cell


def prediction_tables(forecast: Forecast) -> list[Table]:
    """In the order in which they are read; the last only where a run was measured."""
    tables = [_time(forecast), _money(forecast), _gains(forecast)]
    return [*tables, _compared(forecast)] if forecast.measured is not None else tables


def facts_in_words(forecast: Forecast) -> list[str]:
    """Lines below the tables."""
    rate = forecast.rate
    samples = NOTHING if rate.samples_per_usd is None else f"{rate.samples_per_usd:,.0f}"
    granularity = NOTHING if forecast.granularity is None else f"{forecast.granularity:.3g}"
    return [
        f"bottleneck: {forecast.bottleneck.sentence}",
        f"rate: {rate.samples_per_s:,.4g} samples/s, {format_usd(rate.usd_per_million_samples)} for a million samples, "
        f"{samples} samples for a dollar",
        f"granularity: {granularity} (time of computing over time of communicating, hidden or not)",
        *(f"note: {note}" for note in forecast.notes),
    ]


def _time(forecast: Forecast) -> Table:
    """Parts of the step in the middle, which sum to it; then how sure that is, and the run."""
    prediction, parts = forecast.prediction, forecast.parts
    table = Table(title=cell(_title(forecast, f"a step of {parts.member}")))
    for name, justify in (("", "left"), ("time", "right"), ("share", "right")):
        table.add_column(name, justify="left" if justify == "left" else "right")
    for name, seconds in part_seconds(parts).items():
        table.add_row(PARTS[name], format_duration(seconds), f"{seconds / parts.step_s * 100:.0f} %")
    table.add_section()
    table.add_row("step, p50", format_duration(forecast.step_p50_s), "100 %")
    table.add_row("step, mean", format_duration(prediction.step_s), "")
    table.add_row("step, p95", _duration(prediction.step_p95_s), "")
    table.add_section()
    table.add_row("start-up", format_duration(prediction.startup_s), "")
    table.add_row(f"run of {count_in_words(prediction.num_steps, 'step')}", format_duration(prediction.run_s), "")
    table.add_row("run, p95", _duration(prediction.run_p95_s), "")
    return table


def _money(forecast: Forecast) -> Table:
    prediction = forecast.prediction
    table = Table(title="what the run costs", caption=cell(forecast.prices))
    for name in ("", "dollars", "share"):
        table.add_column(name, justify="right" if name else "left")
    for term in prediction.cost_terms:
        share = small_percent(term.usd / prediction.run_usd) if term.usd else NOTHING
        table.add_row(cell(KINDS.get(term.kind, term.kind)), format_usd(term.usd) if term.usd else NOTHING, share)
    table.add_section()
    table.add_row("total", format_usd(prediction.run_usd), "100 %" if prediction.run_usd else NOTHING)
    late = NOTHING if prediction.run_p95_usd is None else format_usd(prediction.run_p95_usd)
    table.add_row("total, p95", late, "")
    return table


def _gains(forecast: Forecast) -> Table:
    table = Table(title="what changes would bring")
    for name in ("", "samples/s", "dollars for a\nmillion samples", "samples/s by\ngranularity"):
        table.add_column(name, justify="right" if name else "left")
    rate = forecast.rate
    table.add_row("as planned", f"{rate.samples_per_s:,.4g}", format_usd(rate.usd_per_million_samples), NOTHING)
    for gain in forecast.gains:
        if gain.rate is None:
            table.add_row(f"{cell(change_in_words(gain))}\n[dim]cannot be: {cell(gain.problem)}[/dim]", *[NOTHING] * 3)
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
    table = Table(title="predicted and measured", caption=cell(f"{measured.num_steps} steps of {measured.run}"))
    for name in ("", "predicted", "measured", "difference"):
        table.add_column(name, justify="right" if name else "left")
    for row in compared_rows(forecast):
        table.add_row(*map(cell, row.cells))
    return table


def _title(forecast: Forecast, text: str) -> str:
    source = forecast.prediction.estimated_from
    mark = f"{ESTIMATE}, from times measured on {source}: " if source else ""
    return f"{mark}{forecast.job}, {forecast.layout}: {text}"


def _duration(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_duration(seconds)

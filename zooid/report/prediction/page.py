"""The page of a forecast: numbers, three pictures, predicted beside measured, and the timeline of a simulated step."""

import html

from zooid.core.plans.forecast import Forecast
from zooid.core.units import format_duration, format_usd
from zooid.report.frame import badge, fact_list, framed, paragraphs, table, table_row
from zooid.report.phrases import ESTIMATE, count_in_words, or_nothing
from zooid.report.prediction.picture import GAIN_COLORS, PART_COLORS, gains_plot, money_plot, time_plot
from zooid.report.prediction.rows import PARTS, TIME_KINDS, change_in_words, comparisons, loss_facts
from zooid.report.timeline.page import timeline_main


def prediction_page(forecast: Forecast, *, origin: str = "") -> str:
    """One file that needs no network; `origin` says where the plan comes from."""
    timelines = {"predicted": forecast.timeline}
    if forecast.measured is not None and forecast.measured.timeline is not None:
        timelines["measured"] = forecast.measured.timeline
    main, data = timeline_main(timelines)
    is_estimate = bool(forecast.prediction.estimated_from)
    title = f"{forecast.job}, {forecast.layout}: prediction"
    plots = {"time": time_plot(forecast), "money": money_plot(forecast), "gains": gains_plot(forecast)}
    return framed(
        "prediction",
        also=("timeline",),
        title=f"{ESTIMATE}: {title}" if is_estimate else title,
        data=data | {"plots": plots},
        heading=html.escape(f"{forecast.job}, {forecast.layout}"),
        badge=badge(ESTIMATE if is_estimate else ""),
        origin=html.escape(origin),
        facts=_facts(forecast),
        bottleneck=html.escape(forecast.bottleneck.sentence),
        notes=paragraphs(forecast.notes),
        time_keys=_keys({PARTS[name]: color for name, color in PART_COLORS.items()}),
        prices=html.escape(forecast.prices),
        money='<div class="plot" data-plot="money"></div>' if plots["money"] else "<p>Nothing is charged.</p>",
        gain_keys=_keys(GAIN_COLORS) + '<span><i class="key mark"></i>samples/s by granularity alone</span>',
        gains='<div class="plot" data-plot="gains"></div>' if plots["gains"] else "",
        problems=paragraphs(
            f"{change_in_words(gain)}: not possible, {gain.problem}" for gain in forecast.gains if gain.problem
        ),
        losses=_losses(forecast),
        compared=_compared(forecast),
        main=main,
    )


def _facts(forecast: Forecast) -> str:
    prediction, rate = forecast.prediction, forecast.rate
    step_p95 = or_nothing(prediction.step_p95_s, format_duration)
    run_p95 = or_nothing(prediction.run_p95_s, format_duration)
    samples_per_usd = or_nothing(rate.samples_per_usd, "{:,.0f}".format)
    facts = [
        ("step", format_duration(forecast.step_p50_s), f"mean {format_duration(prediction.step_s)}, p95 {step_p95}"),
        ("run", format_duration(prediction.run_s), f"{count_in_words(prediction.num_steps, 'step')}, p95 {run_p95}"),
        ("cost", format_usd(prediction.run_usd), f"p95 {or_nothing(prediction.run_p95_usd, format_usd)}"),
        ("rate", f"{rate.samples_per_s:,.4g} samples/s", "of full steps"),
        ("a million samples", format_usd(rate.usd_per_million_samples), f"{samples_per_usd} samples for a dollar"),
        ("granularity", or_nothing(forecast.granularity, "{:.3g}".format), "compute over communication time"),
    ]
    return fact_list(facts)


def _keys(colors: dict[str, str]) -> str:
    return "\n".join(f'<span><i class="key {color}"></i>{html.escape(name)}</span>' for name, color in colors.items())


def _losses(forecast: Forecast) -> str:
    """The parts of a run with losses or hand-overs, where there are any."""
    losses, facts = forecast.prediction.losses, loss_facts(forecast)
    if losses is None or not facts:
        return ""
    rows = [
        table_row((html.escape(TIME_KINDS[term.kind]), format_duration(term.seconds)))
        for term in losses.time_terms
        if term.seconds
    ]
    said = "; ".join(f"{name}: {text}" for name, text in facts)
    return (
        f'<div class="panel"><h2>Lost members and hand-overs</h2><p>{html.escape(said)}</p>\n'
        f"{table('compared', ('', 'expected'), rows)}</div>"
    )


def _compared(forecast: Forecast) -> str:
    """Predicted beside measured, where a run was measured."""
    measured = forecast.measured
    if measured is None:
        return ""
    rows = [table_row(map(html.escape, row.cells)) for row in comparisons(forecast)]
    return (
        f'<div class="panel"><h2>Predicted and measured</h2><p>{measured.num_steps} steps of '
        f"{html.escape(measured.run)}; the difference is in percent of the measured value</p>\n"
        f"{table('compared', ('', 'predicted', 'measured', 'difference'), rows)}</div>"
    )

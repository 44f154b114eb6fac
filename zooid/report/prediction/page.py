"""The page of a forecast: numbers, three pictures, predicted beside measured, and the timeline of a simulated step."""

import html

from zooid.core.plans.forecast import Forecast
from zooid.core.units import format_duration, format_usd
from zooid.core.version import VERSION
from zooid.report.frame import framed
from zooid.report.prediction.picture import GAIN_COLORS, PART_COLORS, gains_plot, money_plot, time_plot
from zooid.report.prediction.rows import PARTS, change_in_words, compared_rows
from zooid.report.profile.rows import ESTIMATE, NOTHING, count_in_words
from zooid.report.timeline.page import timeline_main


def prediction_page(forecast: Forecast, *, origin: str = "") -> str:
    """One file that needs no network; `origin` says where the plan comes from."""
    from plotly.offline import get_plotlyjs

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
        versions=f"zooid {VERSION}",
        data=data | {"plots": plots},
        library=get_plotlyjs(),
        heading=html.escape(f"{forecast.job}, {forecast.layout}"),
        badge=f'<span class="badge">{ESTIMATE}</span>' if is_estimate else "",
        origin=html.escape(origin),
        facts=_facts(forecast),
        bottleneck=html.escape(forecast.bottleneck.sentence),
        notes="".join(f"<p>{html.escape(note)}</p>" for note in forecast.notes),
        time_keys=_keys({PARTS[name]: color for name, color in PART_COLORS.items()}),
        prices=html.escape(forecast.prices),
        money='<div class="plot" data-plot="money"></div>' if plots["money"] else "<p>Nothing is charged.</p>",
        gain_keys=_keys(GAIN_COLORS) + '<span><i class="key mark"></i>samples/s by granularity alone</span>',
        gains='<div class="plot" data-plot="gains"></div>' if plots["gains"] else "",
        problems="".join(
            f"<p>{html.escape(change_in_words(gain))}: cannot be, {html.escape(gain.problem)}</p>"
            for gain in forecast.gains
            if gain.problem
        ),
        compared=_compared(forecast),
        main=main,
    )


def _facts(forecast: Forecast) -> str:
    prediction, rate = forecast.prediction, forecast.rate
    late_step = NOTHING if prediction.step_p95_s is None else format_duration(prediction.step_p95_s)
    late_run = NOTHING if prediction.run_p95_s is None else format_duration(prediction.run_p95_s)
    late_usd = NOTHING if prediction.run_p95_usd is None else format_usd(prediction.run_p95_usd)
    per_usd = NOTHING if rate.samples_per_usd is None else f"{rate.samples_per_usd:,.0f}"
    facts = [
        ("step", format_duration(forecast.step_p50_s), f"mean {format_duration(prediction.step_s)}, p95 {late_step}"),
        ("run", format_duration(prediction.run_s), f"{count_in_words(prediction.num_steps, 'step')}, p95 {late_run}"),
        ("cost", format_usd(prediction.run_usd), f"p95 {late_usd}"),
        ("rate", f"{rate.samples_per_s:,.4g} samples/s", "of full steps"),
        ("a million samples", format_usd(rate.usd_per_million_samples), f"{per_usd} samples for a dollar"),
        (
            "granularity",
            NOTHING if forecast.granularity is None else f"{forecast.granularity:.3g}",
            "computing over communicating",
        ),
    ]
    return "\n".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}<small>{html.escape(note)}</small></dd></div>"
        for name, value, note in facts
    )


def _keys(colors: dict[str, str]) -> str:
    return "\n".join(f'<span><i class="key {color}"></i>{html.escape(name)}</span>' for name, color in colors.items())


def _compared(forecast: Forecast) -> str:
    """A table, where there is a run to compare with."""
    measured = forecast.measured
    if measured is None:
        return ""
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells) + "</tr>"
        for row in compared_rows(forecast)
    )
    heads = "".join(f"<th>{head}</th>" for head in ("", "predicted", "measured", "difference"))
    return (
        f'<div class="panel"><h2>Predicted and measured</h2><p>{measured.num_steps} steps of '
        f"{html.escape(measured.run)}; the difference is in percent of what was measured</p>\n"
        f'<table class="compared"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )

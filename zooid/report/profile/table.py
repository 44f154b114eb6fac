"""Profiles, plans and results as tables."""

from collections.abc import Mapping

from rich.table import Table

from zooid.core.plans.plan import Plan, Prediction
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import Link, Links
from zooid.core.runs.events import RunFinished, RunStarted
from zooid.core.units import format_bytes, format_bytes_per_s, format_duration, format_usd
from zooid.predictor import stage_memory_bytes
from zooid.report.profile.layer_groups import Group, grouped
from zooid.report.profile.rows import (
    NOTHING,
    copies_in_words,
    count_in_words,
    layers_in_words,
    link_in_words,
    marked,
    origin_in_words,
    percent,
)
from zooid.report.terminal_text import cell

_MOST_TIES = 3
"""More than this would make the caption longer than the table."""


def profile_table(profile: Profile) -> Table:
    """One row per layer, or per group of layers where they are many, at the largest grain that was measured."""
    size = profile.layers[0].points[-1].num_samples
    groups = grouped([layer.name for layer in profile.layers])
    is_grouped = len(groups) < len(profile.layers)
    title = f"{profile.job} on {profile.device.name}, grains of {count_in_words(size, 'sample')}"
    table = Table(title=cell(marked(profile, title)), caption=cell(_caption(profile, is_grouped)))
    table.add_column("layers of" if is_grouped else "layer", overflow="fold")
    numbers = ("numbers",) if is_grouped else ()
    for name in (*numbers, "forward", "backward", "parameters", "kept\nactivations", "to the\nnext layer"):
        table.add_column(name, justify="right")
    for group in groups:
        _add_row(table, profile, group, size, is_grouped)
    table.add_section()
    _add_row(table, profile, Group("all", 0, len(profile.layers)), size, is_grouped)
    return table


def _add_row(table: Table, profile: Profile, group: Group, size: int, is_grouped: bool) -> None:
    """Of neighbouring layers together: what the last of them sends on, and the sums of all else."""
    first, end = group.first_layer, group.end_layer
    layers = profile.layers[first:end]
    table.add_row(
        cell(group.name),
        *((_span(first, end),) if is_grouped else ()),
        format_duration(sum(layer.forward_s(size) for layer in layers)),
        format_duration(sum(layer.backward_s(size) for layer in layers)),
        format_bytes(profile.parameter_bytes(first, end)),
        format_bytes(sum(layer.activations.at(size) for layer in layers)),
        NOTHING if end == len(profile.layers) else format_bytes(layers[-1].boundary.at(size)),
    )


def _caption(profile: Profile, is_grouped: bool) -> str:
    spread = profile.spread
    copies = profile.device.copies
    lines = [
        origin_in_words(profile),
        f"batch {profile.batch_size}, largest grain {profile.largest_grain}, knee {profile.knee}",
        f"spread {percent(spread.of_steps)} between steps, {percent(spread.of_runs)} between runs",
        *(link_in_words(link) for link in profile.links),
        *([] if copies is None else [f"pinned copies {', '.join(copies_in_words(copies))}"]),
        *(
            f"{tie.name} ({format_bytes(tie.num_bytes)}) is tied: {layers_in_words(tie.layers)}"
            for tie in profile.tied[:_MOST_TIES]
        ),
    ]
    if len(profile.tied) > _MOST_TIES:
        lines.append(f"and {len(profile.tied) - _MOST_TIES} more tied parameters")
    if is_grouped:
        lines.append(f"{len(profile.layers)} layers, put together by the beginnings of their names")
    return "\n".join(lines)


def offers_table(profiles: Mapping[str, Profile]) -> Table:
    """The whole model on several offers, side by side: a row for each."""
    job = next(iter(profiles.values())).job
    table = Table(title=cell(f"{job} on {count_in_words(len(profiles), 'offer')}"))
    table.add_column("offer", no_wrap=True)
    for name in ("one\nsample", "knee", "grain at\nthe knee", "memory\nfor it", "largest\ngrain", "score in\nGFLOP/s"):
        table.add_column(name, justify="right")
    for name, profile in profiles.items():
        end = len(profile.layers)
        table.add_row(
            cell(marked(profile, name)),
            format_duration(_grain_s(profile, 1)),
            str(profile.knee),
            format_duration(_grain_s(profile, profile.knee)),
            format_bytes(stage_memory_bytes(profile, 0, end, profile.knee, grains_kept=1)),
            str(profile.largest_grain),
            f"{profile.device.score / 1e9:.4g}",
        )
    table.caption = "forward and backward of the whole model; the score is that of a matrix product"
    return table


def _grain_s(profile: Profile, size: int) -> float:
    return sum(layer.forward_s(size) + layer.backward_s(size) for layer in profile.layers)


def plan_table(plan: Plan, profile: Profile | None = None) -> Table:
    """One row per stage, and what the whole is expected to take and cost."""
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
        span = _span(stage.first_layer, stage.end_layer) + (f" ({names[0]} … {names[-1]})" if names else "")
        memory = format_bytes(stage.memory_bytes) if plan.predicted else NOTHING
        table.add_row(str(number), cell(span), cell(stage.offer), memory)
    table.caption = cell(_expected(plan))
    return table


def _expected(plan: Plan) -> str:
    prediction = plan.predicted
    if prediction is None:
        return f"{plan.num_steps} steps; made without a profile, so that time, money and memory are not known"
    return (
        f"{_how(prediction)}: {format_duration(prediction.step_s)} a step, {prediction.num_steps} steps, "
        f"{format_duration(prediction.run_s)} in all, {format_usd(prediction.run_usd)} for the members' time and starts"
    )


def links_table(links: Links) -> Table:
    """One row for each link and number of members that used it at once, one column for each number of streams."""
    rows: dict[tuple[str, str, int], dict[int, Link]] = {}
    for link in links.links:
        rows.setdefault((link.from_site, link.to_site, link.num_members), {})[link.num_streams] = link
    columns = sorted({link.num_streams for link in links.links})
    table = Table(title=cell(f"links on {links.date}: what each member gets, and its spread"))
    for name in ("from", "to", "members", "round trip", *(count_in_words(number, "stream") for number in columns)):
        table.add_column(name, justify="left" if name in ("from", "to") else "right")
    for (from_site, to_site, num_members), by_streams in rows.items():
        rtt_s = next(iter(by_streams.values())).rtt_s
        cells = [_bandwidth(by_streams.get(number)) for number in columns]
        table.add_row(cell(from_site), cell(to_site), str(num_members), format_duration(rtt_s), *cells)
    gaps = (f"no link from {gap.from_site} to {gap.to_site}: {gap.reason}" for gap in links.missing)
    table.caption = cell("\n".join(gaps))
    return table


def _how(prediction: Prediction) -> str:
    """An estimate is never shown as if it had been measured."""
    source = prediction.estimated_from
    return f"ESTIMATE, from times measured on {source}" if source else "predicted"


def summary_table(started: RunStarted, finished: RunFinished) -> Table:
    """Predicted against measured."""
    table = Table(title=cell(f"run {started.run}, {started.layout}"))
    for name in ("", "predicted", "measured", "difference"):
        table.add_column(name, justify="left" if name == "" else "right")
    rows = (
        ("step time", started.predicted_step_s, finished.step_s, format_duration),
        ("run time", started.predicted_run_s, finished.wall_s, format_duration),
        ("cost", started.predicted_usd, finished.usd, format_usd),
    )
    for name, predicted, measured, show in rows:
        expected = NOTHING if predicted is None else show(predicted)
        table.add_row(name, expected, show(measured), _difference(predicted, measured))
    table.caption = cell(f"cost {started.prices}")
    return table


def _bandwidth(link: Link | None) -> str:
    if link is None:
        return NOTHING
    return f"{format_bytes_per_s(link.bandwidth_bytes_per_s)}\n{link.spread * 100:.1f} %"


def _difference(predicted: float | None, measured: float) -> str:
    """How far the prediction was off, in percent of what was measured."""
    return f"{(predicted / measured - 1) * 100:+.1f} %" if measured and predicted is not None else NOTHING


def _span(first: int, end: int) -> str:
    return str(first) if end - first == 1 else f"{first} to {end - 1}"

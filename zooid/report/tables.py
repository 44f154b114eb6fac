"""Profiles, plans and results as tables."""

from rich.table import Table

from zooid.core.events import RunFinished, RunStarted
from zooid.core.plan import Plan
from zooid.core.profile import Profile
from zooid.core.units import format_bytes, format_bytes_per_s, format_duration, format_usd


def profile_table(profile: Profile) -> Table:
    """One row per layer, at the largest grain that was measured."""
    size = profile.layers[0].points[-1].num_samples
    table = Table(title=f"{profile.job} on {profile.device.name}, grains of {size} samples")
    for name in ("layer", "forward", "backward", "parameters", "to the next layer"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for layer in profile.layers:
        table.add_row(
            layer.name,
            format_duration(layer.forward_s(size)),
            format_duration(layer.backward_s(size)),
            format_bytes(layer.parameter_bytes),
            format_bytes(layer.boundary_bytes_per_sample * size),
        )
    links = "; ".join(
        f"{link.from_site} → {link.to_site} {format_bytes_per_s(link.bandwidth_bytes_per_s)}, "
        f"{format_duration(link.rtt_s)} a request"
        for link in profile.links
    )
    table.caption = links
    return table


def plan_table(plan: Plan, profile: Profile | None = None) -> Table:
    """One row per stage, and what the whole is expected to take and cost."""
    prediction = plan.prediction
    table = Table(
        title=f"{plan.job}: {plan.num_replicas} replica(s) × {len(plan.stages)} stage(s), "
        f"batch {plan.batch_size} in grains of {plan.grain_size}"
    )
    for name in ("stage", "layers", "offer", "memory"):
        table.add_column(name, justify="right" if name in ("stage", "memory") else "left")
    for number, stage in enumerate(plan.stages):
        names = [layer.name for layer in profile.layers[stage.first_layer : stage.end_layer]] if profile else []
        span = f"{stage.first_layer} to {stage.end_layer - 1}" + (f" ({names[0]} … {names[-1]})" if names else "")
        table.add_row(str(number), span, stage.offer, format_bytes(stage.memory_bytes))
    table.caption = (
        f"predicted: {format_duration(prediction.step_s)} a step, {prediction.num_steps} steps, "
        f"{format_duration(prediction.run_s)} in all, {format_usd(prediction.run_usd)} for the members' time and starts"
    )
    return table


def summary_table(started: RunStarted, finished: RunFinished) -> Table:
    """Predicted against measured."""
    table = Table(title=f"run {started.run}, {started.layout}")
    for name in ("", "predicted", "measured", "difference"):
        table.add_column(name, justify="left" if name == "" else "right")
    rows = (
        ("step time", started.predicted_step_s, finished.step_s, format_duration),
        ("run time", started.predicted_run_s, finished.wall_s, format_duration),
        ("cost", started.predicted_usd, finished.usd, format_usd),
    )
    for name, predicted, measured, show in rows:
        table.add_row(name, show(predicted), show(measured), _difference(predicted, measured))
    table.caption = f"cost {started.prices}"
    return table


def _difference(predicted: float, measured: float) -> str:
    """How far the prediction was off, in percent of what was measured."""
    return f"{(predicted / measured - 1) * 100:+.1f} %" if measured else "–"

"""Profiles on a terminal: the layers of one, or the whole model on several offers."""

from collections.abc import Mapping

from rich.table import Table

from zooid.core.plans.profile import Profile
from zooid.core.units import format_bytes, format_duration
from zooid.predictor import stage_memory_bytes
from zooid.report.phrases import NOTHING, count_in_words, span_in_words
from zooid.report.profile.rows import (
    LayerGroup,
    copies_in_words,
    grouped,
    layers_in_words,
    link_in_words,
    marked,
    origin_in_words,
    spread_in_words,
)
from zooid.report.terminal_text import cell

_MAX_TIES = 3
"""More tied parameters than this would make the caption longer than the table."""


def profile_table(profile: Profile) -> Table:
    """A row for each layer, or group of layers where there are many, at the largest measured grain."""
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
    _add_row(table, profile, LayerGroup("all", 0, len(profile.layers)), size, is_grouped)
    return table


def _add_row(table: Table, profile: Profile, group: LayerGroup, size: int, is_grouped: bool) -> None:
    """Add the row of neighbouring layers: the bytes that the last one sends on, and sums for the rest."""
    first, end = group.first_layer, group.end_layer
    layers = profile.layers[first:end]
    table.add_row(
        cell(group.name),
        *((span_in_words(first, end),) if is_grouped else ()),
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
        f"spread {spread_in_words(spread.of_steps)} between steps, {spread_in_words(spread.of_runs)} between runs",
        *(link_in_words(link) for link in profile.links),
        *([] if copies is None else [f"pinned copies {', '.join(copies_in_words(copies))}"]),
        *(
            f"{tie.name} ({format_bytes(tie.num_bytes)}) is tied: {layers_in_words(tie.layers)}"
            for tie in profile.tied[:_MAX_TIES]
        ),
    ]
    if len(profile.tied) > _MAX_TIES:
        lines.append(f"and {len(profile.tied) - _MAX_TIES} more tied parameters")
    if is_grouped:
        lines.append(f"{len(profile.layers)} layers, grouped by the beginnings of their names")
    return "\n".join(lines)


def offers_table(profiles: Mapping[str, Profile]) -> Table:
    """The whole model on several offers, a row for each."""
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
    table.caption = "forward and backward of the whole model; the score is measured with a matrix product"
    return table


def _grain_s(profile: Profile, size: int) -> float:
    return sum(layer.forward_s(size) + layer.backward_s(size) for layer in profile.layers)

"""The page of a profile. Plotly, whose script is part of it, loads when one is made."""

import html

from zooid.core.plans.profile import Profile
from zooid.core.resources.link import Link
from zooid.core.units import format_bytes, format_bytes_per_s, format_duration
from zooid.report.frame import framed
from zooid.report.profile.picture import names_px, panel_domains, picture, probed_sizes
from zooid.report.profile.rows import (
    ESTIMATE,
    copies_in_words,
    count_in_words,
    exact_bytes,
    layers_in_words,
    marked,
    origin_in_words,
    percent,
)

_MANY_TIES = 6
"""More tied parameters than this are folded away until somebody asks."""


def profile_page(profile: Profile) -> str:
    """Header, tied parameters, and the picture of the layers at a grain size that the reader picks."""
    from plotly.offline import get_plotlyjs

    return framed(
        "profile",
        title=marked(profile, f"profile of {profile.job}"),
        versions=f"zooid {profile.zooid_version}, torch {profile.torch_version}, model {profile.model_fingerprint}",
        data=picture(profile),
        library=get_plotlyjs(),
        job=html.escape(profile.job),
        badge=f'<span class="badge">{ESTIMATE}</span>' if profile.is_estimate else "",
        origin=html.escape(origin_in_words(profile)),
        facts=_facts(profile),
        ties=_ties(profile),
        names_px=names_px(profile),
        sizes=_size_buttons(probed_sizes(profile)),
        heads=_heads(profile),
    )


def _facts(profile: Profile) -> str:
    num_layers, spread = len(profile.layers), profile.spread
    parameters = format_bytes(profile.parameter_bytes(0, num_layers))
    facts = [
        ("model", count_in_words(num_layers, "layer"), f"{parameters} of parameters"),
        ("batch", count_in_words(profile.batch_size, "sample"), "of one step"),
        ("knee", count_in_words(profile.knee, "sample"), "smaller grains gain little"),
        ("largest grain", count_in_words(profile.largest_grain, "sample"), "that fits into memory"),
        (
            "spread",
            f"{percent(spread.of_steps)} between steps",
            f"{percent(spread.of_runs)} between runs",
        ),
        *(_link_fact(link) for link in profile.links),
    ]
    if profile.device.copies is not None:
        facts.append(("pinned copies", *copies_in_words(profile.device.copies)))
    return "\n".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}<small>{html.escape(note)}</small></dd></div>"
        for name, value, note in facts
    )


def _link_fact(link: Link) -> tuple[str, str, str]:
    return (
        f"{link.from_site} → {link.to_site}",
        format_bytes_per_s(link.bandwidth_bytes_per_s),
        f"{format_duration(link.rtt_s)} a request, {link.source}",
    )


def _ties(profile: Profile) -> str:
    if not profile.tied:
        return ""
    items = "\n".join(
        f"<li><code>{html.escape(tie.name)}</code> {html.escape(exact_bytes(tie.num_bytes))}, "
        f"{layers_in_words(tie.layers)}</li>"
        for tie in profile.tied
    )
    is_open = "" if len(profile.tied) > _MANY_TIES else " open"
    return (
        f"<details{is_open}><summary><b>Tied parameters</b> several layers use them; a stage keeps them once, "
        f"and stages that share them sum their gradients</summary><ul>{items}</ul></details>"
    )


def _size_buttons(sizes: list[int]) -> str:
    """One for each probed grain size; the largest is shown first, as in the table."""
    return "\n".join(
        f'<label><input type="radio" name="grain" value="{number}"{" checked" if size == sizes[-1] else ""}>'
        f"<span>{size}</span></label>"
        for number, size in enumerate(sizes)
    )


def _heads(profile: Profile) -> str:
    """Headings of the panels; the script fills in the sums."""
    mark = f"<em>{ESTIMATE}</em> " if profile.is_estimate else ""
    tied = f" {_key('tied')}tied" if profile.tied else ""
    lines = {
        "Time of a grain": f"{_key('forward')}forward {_sum('forward')} {_key('backward')}backward {_sum('backward')}",
        "Parameters": f"{_sum('parameters')} in all{tied}",
        "Activations kept": f"{_sum('kept')} in all",
        "To the next layer": _sum("cut"),
    }
    return "\n".join(
        f'<div style="left:{begin:.3%};width:{end - begin:.3%}"><h2>{mark}{title}</h2><p>{line}</p></div>'
        for (title, line), (begin, end) in zip(lines.items(), panel_domains(), strict=True)
    )


def _key(color: str) -> str:
    return f'<i class="key {color}"></i>'


def _sum(name: str) -> str:
    return f'<b data-sum="{name}"></b>'

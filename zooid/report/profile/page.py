"""The page of a profile: facts, tied parameters, and bars for the layers."""

import html

from zooid.core.plans.profile import Profile
from zooid.core.units import format_bytes, format_bytes_per_s, format_duration
from zooid.report.frame import badge, fact_list, framed, radio_buttons
from zooid.report.phrases import ESTIMATE, count_in_words
from zooid.report.profile.picture import names_px, panel_domains, picture, probed_sizes
from zooid.report.profile.rows import (
    copies_in_words,
    exact_bytes,
    layers_in_words,
    marked,
    origin_in_words,
    spread_in_words,
)

_MANY_TIES = 6
"""More tied parameters than this are folded away until the reader opens them."""


def profile_page(profile: Profile) -> str:
    """One file that needs no network; the reader chooses the grain size that it shows."""
    sizes = probed_sizes(profile)
    return framed(
        "profile",
        title=marked(profile, f"profile of {profile.job}"),
        versions=f"zooid {profile.zooid_version}, torch {profile.torch_version}, model {profile.model_fingerprint}",
        data=picture(profile),
        job=html.escape(profile.job),
        badge=badge(ESTIMATE if profile.is_estimate else ""),
        origin=html.escape(origin_in_words(profile)),
        facts=_facts(profile),
        ties=_ties(profile),
        names_px=names_px(profile),
        sizes=radio_buttons("grain", [str(size) for size in sizes], checked=len(sizes) - 1),
        heads=_heads(profile),
    )


def _facts(profile: Profile) -> str:
    num_layers = len(profile.layers)
    of_steps, of_runs = spread_in_words(profile.spread.of_steps), spread_in_words(profile.spread.of_runs)
    parameters = format_bytes(profile.parameter_bytes(0, num_layers))
    facts = [
        ("model", count_in_words(num_layers, "layer"), f"{parameters} of parameters"),
        ("batch", count_in_words(profile.batch_size, "sample"), "of one step"),
        ("knee", count_in_words(profile.knee, "sample"), "smaller grains gain little"),
        ("largest grain", count_in_words(profile.largest_grain, "sample"), "that fits into memory"),
        ("spread", f"{of_steps} between steps", f"{of_runs} between runs"),
        *(
            (
                f"{link.from_site} → {link.to_site}",
                format_bytes_per_s(link.bandwidth_bytes_per_s),
                f"{format_duration(link.rtt_s)} a request, {link.source}",
            )
            for link in profile.links
        ),
    ]
    if profile.device.copies is not None:
        facts.append(("pinned copies", *copies_in_words(profile.device.copies)))
    return fact_list(facts)


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
        f"<details{is_open}><summary><b>Tied parameters</b> several layers use them; a stage keeps one copy, "
        f"and stages that have a copy sum their gradients</summary><ul>{items}</ul></details>"
    )


def _heads(profile: Profile) -> str:
    """Headings of the panels, in which the script fills in the sums."""
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

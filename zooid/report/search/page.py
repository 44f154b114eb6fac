"""The page of a search: the pick, all candidates by time and cost, the stages of the pick, and the Pareto front."""

import html
import re
from collections import Counter
from collections.abc import Sequence

from zooid.core.plans.plan import Plan
from zooid.core.plans.search_result import Search
from zooid.core.units import format_bytes, format_duration, format_usd
from zooid.report.frame import badge, fact_list, framed, paragraphs, radio_buttons, table, table_row
from zooid.report.phrases import NOTHING, count_in_words, or_nothing, percent, span_in_words
from zooid.report.search.picture import DOT_KINDS, candidates_plot, drawn, is_free, kind_of
from zooid.report.search.rows import (
    PICK,
    RUNNER_UP,
    PlanRow,
    counted,
    effort_in_words,
    estimate_mark,
    goal_in_words,
    plan_rows,
    proof_in_words,
    schedule_in_words,
)

_LOCAL = "local"
"""The site whose members run on one machine, in the same memory."""
_TIGHT = 0.9
"""A stage that needs more than this fraction of its offer's memory is marked."""


def search_page(search: Search, *, origin: str = "") -> str:
    """One file that needs no network; `origin` says what was planned."""
    pick, mark = search.pick, estimate_mark(search)
    plot = candidates_plot(search)
    heading = f"{pick.job}: {pick.layout} on {', '.join(counted([offer.name for offer in pick.member_offers]))}"
    return framed(
        "search",
        title=f"{mark}: {heading}" if mark else heading,
        data=plot,
        heading=html.escape(heading),
        badge=badge(mark),
        origin=html.escape(origin),
        facts=_facts(search),
        picture_title="Candidates by time and members" if is_free(search) else "Candidates by time and cost",
        picture_notes=paragraphs(_picture_notes(search)),
        keys=_keys(search),
        views=_views([view["name"] for view in plot["views"]]),
        stages=_stages(pick),
        reasons=_reasons(search.reasons),
        front=_front(plan_rows(search)),
    )


def _facts(search: Search) -> str:
    pick, prediction = search.pick, search.pick.prediction
    run_p95 = or_nothing(prediction.run_p95_s, format_duration)
    stage_bytes = [stage.memory_bytes for stage in pick.stages]
    is_optimal = search.proof.status == "optimal"
    proof = "optimal" if is_optimal else f"within {percent(search.proof.gap)}"
    facts = [
        ("run time", format_duration(prediction.run_s), f"p95 {run_p95}"),
        ("cost", format_usd(prediction.run_usd), f"p95 {or_nothing(prediction.run_p95_usd, format_usd)}"),
        (
            "members",
            str(pick.num_members),
            f"{count_in_words(pick.num_replicas, 'replica')} × {count_in_words(len(pick.stages), 'stage')}",
        ),
        (
            "memory asked for",
            format_bytes(pick.num_replicas * sum(stage_bytes)),
            f"at most {format_bytes(max(stage_bytes))} each",
        ),
        ("grains", count_in_words(pick.grain_size, "sample"), f"of a batch of {pick.batch_size}"),
        ("schedule", schedule_in_words(pick.schedule, pick.ahead), f"over {pick.transport}"),
        (
            "step",
            format_duration(prediction.step_s),
            f"{count_in_words(prediction.num_steps, 'step')}, start-up {format_duration(prediction.startup_s)}",
        ),
        ("goal", goal_in_words(search), f"proven {proof}"),
    ]
    return fact_list(facts)


def _picture_notes(search: Search) -> list[str]:
    notes = [f"{effort_in_words(search)}; {proof_in_words(search)}."]
    if is_free(search):
        notes.append("Nothing is charged, so the candidates differ in time only.")
    num_drawn, num_all = len(drawn(search.candidates)), len(search.candidates)
    if num_drawn < num_all:
        notes.append(f"{num_drawn:,} of {num_all:,} are drawn; candidates that were not simulated are left out first.")
    return notes


def _keys(search: Search) -> str:
    """The legend: each kind of dot with its number, the pick first."""
    counts, free = Counter(map(kind_of, search.candidates)), is_free(search)
    if counts["front"]:
        counts["front"] += counts["pick"]  # the pick is on the front
    keys = [
        f'<span><i class="dot {kind.name}"></i>{html.escape(kind.in_words(free=free))}'
        + ("" if kind.name == "pick" else f" <small>{counts[kind.name]:,}</small>")
        + "</span>"
        for kind in reversed(DOT_KINDS)
        if counts[kind.name]
    ]
    if search.runner_up is not None:
        keys.insert(1, f'<span><i class="dot ring"></i>{RUNNER_UP}</span>')
    return "\n".join(keys)


def _views(names: Sequence[str]) -> str:
    if len(names) == 1:
        return ""
    return f'<div class="sizes">{radio_buttons("view", names, checked=0)}</div>'


def _stages(pick: Plan) -> str:
    """A row for each stage, with the memory that it needs and that its offer has.

    Where replicas have different offers, the one with the least memory is shown.
    """
    parts = pick.prediction.parts
    heads = ["stage", "layers", "offer", "memory needed", "of what its offer has", ""]
    if parts is not None:
        heads[-1] = "computing in a step"
    busiest = _stage_of(parts.member) if parts is not None else None
    rows = []
    for number, stage in enumerate(pick.stages):
        offers = [pick.offer_of(number, replica) for replica in range(pick.num_replicas)]
        tightest = min(offers, key=lambda offer: offer.memory_bytes)
        needed_bytes = stage.memory_bytes * (pick.num_replicas if tightest.site == _LOCAL else 1)
        computing = NOTHING if parts is not None else ""
        if parts is not None and number == busiest:
            computing = f"{format_duration(parts.compute_s)}, {percent(parts.compute_s / parts.step_s)}"
        cells = [
            str(number),
            span_in_words(stage.first_layer, stage.end_layer),
            html.escape(", ".join(counted([offer.name for offer in offers]))),
            html.escape(f"{format_bytes(needed_bytes)} of {format_bytes(tightest.memory_bytes)}"),
            _bar(needed_bytes / tightest.memory_bytes),
            html.escape(computing),
        ]
        rows.append(table_row(cells))
    return paragraphs(_stage_notes(pick, busiest)) + table("stages", heads, rows)


def _stage_notes(pick: Plan, busiest: int | None) -> list[str]:
    notes = []
    offer = pick.offer_of(0)
    if offer.site == _LOCAL and pick.num_members > 1:
        total_bytes = pick.num_replicas * sum(stage.memory_bytes for stage in pick.stages)
        notes.append(
            f"Members share the memory of one machine: {format_bytes(total_bytes)} of "
            f"{format_bytes(offer.memory_bytes)} in all; the bar of a stage covers all its replicas."
        )
    elif pick.num_replicas > 1:
        notes.append(f"Each stage has {pick.num_replicas} members; its bar shows one of them.")
    if busiest is not None and len(pick.stages) > 1:
        notes.append("Compute time is known for the stage that computes longest.")
    return notes


def _stage_of(member: str) -> int | None:
    """The stage of a member of a simulated step, such as 1 of `r0s1`."""
    match = re.fullmatch(r"r\d+s(\d+)", member)
    return None if match is None else int(match[1])


def _bar(fraction: float) -> str:
    tight = " tight" if fraction > _TIGHT else ""
    return (
        f'<div class="bar"><i class="filled{tight}" style="width:{min(fraction, 1.0) * 100:.1f}%"></i></div>'
        f"<b>{percent(fraction)}</b>"
    )


def _reasons(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="panel"><h2>Why this plan</h2><ul class="reasons">{items}</ul></div>'


def _front(rows: Sequence[PlanRow]) -> str:
    heads = ("", "run time", "p95", "cost", "p95", "layout", "offers", "grain", "schedule", "transport", "members")
    body = []
    for row in rows:
        mark = row.mark if row.is_on_front else f"{row.mark}, not on the front"
        cells = [mark, row.run, row.run_p95, row.usd, row.usd_p95, row.layout, ", ".join(row.offers)]
        cells += [row.grain_size, row.schedule, row.transport, row.members]
        body.append(table_row(map(html.escape, cells), "picked" if row.mark == PICK else ""))
    return table("plans", heads, body)

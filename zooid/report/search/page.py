"""The page of a search: the pick, all candidates by time and cost, the pick's stages, why, and what else there is."""

import html
import re
from collections import Counter
from collections.abc import Sequence

from zooid.core.plans.plan import Plan
from zooid.core.plans.search_result import Search
from zooid.core.units import format_bytes, format_duration, format_usd
from zooid.core.version import VERSION
from zooid.report.frame import framed
from zooid.report.prediction.rows import small_percent
from zooid.report.profile.rows import NOTHING, count_in_words
from zooid.report.search.picture import KINDS, candidates_plot, drawn, is_free, kind_of
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
"""Members of this site share the memory of one machine."""
_TIGHT = 0.9
"""Above this part of what an offer has, a stage is marked."""


def search_page(found: Search, *, origin: str = "") -> str:
    """One file that needs no network; `origin` says what was planned."""
    from plotly.offline import get_plotlyjs

    pick, mark = found.pick, estimate_mark(found)
    plot = candidates_plot(found)
    heading = f"{pick.job}: {pick.layout} on {', '.join(_offers(pick))}"
    return framed(
        "search",
        title=f"{mark}: {heading}" if mark else heading,
        versions=f"zooid {VERSION}",
        data=plot,
        library=get_plotlyjs(),
        heading=html.escape(heading),
        badge=f'<span class="badge">{html.escape(mark)}</span>' if mark else "",
        origin=html.escape(origin),
        facts=_facts(found),
        picture_title="Candidates by time and members" if is_free(found) else "Candidates by time and cost",
        picture_notes="".join(f"<p>{html.escape(note)}</p>" for note in _picture_notes(found)),
        keys=_keys(found),
        views=_views([view["name"] for view in plot["views"]]),
        stages=_stages(pick),
        reasons=_reasons(found.reasons),
        front=_front(plan_rows(found)),
    )


def _offers(plan: Plan) -> tuple[str, ...]:
    return counted([offer.name for offer in plan.member_offers])


def _facts(found: Search) -> str:
    pick, prediction = found.pick, found.pick.prediction
    late = NOTHING if prediction.run_p95_s is None else format_duration(prediction.run_p95_s)
    dear = NOTHING if prediction.run_p95_usd is None else format_usd(prediction.run_p95_usd)
    needed = [stage.memory_bytes for stage in pick.stages]
    is_optimal = found.proof.status == "optimal"
    proof = "optimal" if is_optimal else f"within {small_percent(found.proof.gap)}"
    facts = [
        ("run time", format_duration(prediction.run_s), f"p95 {late}"),
        ("cost", format_usd(prediction.run_usd), f"p95 {dear}"),
        (
            "members",
            str(pick.num_members),
            f"{count_in_words(pick.num_replicas, 'replica')} × {count_in_words(len(pick.stages), 'stage')}",
        ),
        (
            "memory asked for",
            format_bytes(pick.num_replicas * sum(needed)),
            f"at most {format_bytes(max(needed))} each",
        ),
        ("grains", count_in_words(pick.grain_size, "sample"), f"of a batch of {pick.batch_size}"),
        ("schedule", schedule_in_words(pick.schedule, pick.ahead), f"over {pick.transport}"),
        (
            "step",
            format_duration(prediction.step_s),
            f"{count_in_words(prediction.num_steps, 'step')}, start-up {format_duration(prediction.startup_s)}",
        ),
        ("goal", goal_in_words(found), f"proven {proof}"),
    ]
    return "\n".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}<small>{html.escape(note)}</small></dd></div>"
        for name, value, note in facts
    )


def _picture_notes(found: Search) -> list[str]:
    notes = [f"{effort_in_words(found)}; {proof_in_words(found)}."]
    if is_free(found):
        notes.append("Nothing is charged: time alone tells the candidates apart.")
    num_drawn, num_all = len(drawn(found.candidates)), len(found.candidates)
    if num_drawn < num_all:
        notes.append(f"{num_drawn:,} of {num_all:,} are drawn; those that were not simulated are thinned out first.")
    return notes


def _keys(found: Search) -> str:
    """Of what there is, with its number, the pick first."""
    counts, free = Counter(map(kind_of, found.candidates)), is_free(found)
    if counts["front"]:
        counts["front"] += counts["pick"]  # which is on it
    keys = [
        f'<span><i class="dot {kind.name}"></i>{html.escape(kind.in_words(free=free))}'
        + ("" if kind.name == "pick" else f" <small>{counts[kind.name]:,}</small>")
        + "</span>"
        for kind in reversed(KINDS)
        if counts[kind.name]
    ]
    if found.runner_up is not None:
        keys.insert(1, f'<span><i class="dot ring"></i>{RUNNER_UP}</span>')
    return "\n".join(keys)


def _views(names: Sequence[str]) -> str:
    if len(names) == 1:
        return ""
    buttons = "".join(
        f'<label><input type="radio" name="view" value="{number}"{" checked" if number == 0 else ""}>'
        f"<span>{html.escape(name)}</span></label>"
        for number, name in enumerate(names)
    )
    return f'<div class="sizes">{buttons}</div>'


def _stages(pick: Plan) -> str:
    """A row for each: a bar of the memory that it needs in what its offer has, the tightest where replicas differ."""
    parts = pick.prediction.parts
    heads = ["stage", "layers", "offer", "memory needed", "of what its offer has", ""]
    if parts is not None:
        heads[-1] = "computing in a step"
    busiest = _stage_of(parts.member) if parts is not None else None
    rows = []
    for number, stage in enumerate(pick.stages):
        own = [pick.offer_of(number, replica) for replica in range(pick.num_replicas)]
        tightest = min(own, key=lambda offer: offer.memory_bytes)
        needed = stage.memory_bytes * (pick.num_replicas if tightest.site == _LOCAL else 1)
        computing = NOTHING if parts is not None else ""
        if parts is not None and number == busiest:
            computing = f"{format_duration(parts.compute_s)}, {small_percent(parts.compute_s / parts.step_s)}"
        words = f"{format_bytes(needed)} of {format_bytes(tightest.memory_bytes)}"
        cells = [
            str(number),
            _span(stage.first_layer, stage.end_layer),
            html.escape(", ".join(counted([offer.name for offer in own]))),
            html.escape(words),
            _bar(needed / tightest.memory_bytes),
            html.escape(computing),
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{head}</th>" for head in heads)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in _stage_notes(pick, busiest))
    return f'{notes}<table class="stages"><thead><tr>{head}</tr></thead>\n<tbody>{"".join(rows)}</tbody></table>'


def _span(first: int, end: int) -> str:
    return str(first) if end - first == 1 else f"{first} to {end - 1}"


def _stage_notes(pick: Plan, busiest: int | None) -> list[str]:
    notes = []
    offer = pick.offer_of(0)
    if offer.site == _LOCAL and pick.num_members > 1:
        together = pick.num_replicas * sum(stage.memory_bytes for stage in pick.stages)
        notes.append(
            f"Members share the memory of one machine: {format_bytes(together)} of {format_bytes(offer.memory_bytes)} "
            "in all; a stage's bar has all its replicas."
        )
    elif pick.num_replicas > 1:
        notes.append(f"Each stage has {pick.num_replicas} members; a bar is that of one of them.")
    if busiest is not None and len(pick.stages) > 1:
        notes.append("Computing is known of the stage that computes longest.")
    return notes


def _stage_of(member: str) -> int | None:
    """Of `r0s1`, as members are named in simulated steps."""
    named = re.fullmatch(r"r\d+s(\d+)", member)
    return None if named is None else int(named[1])


def _bar(part: float) -> str:
    tight = " tight" if part > _TIGHT else ""
    return (
        f'<div class="bar"><i class="filled{tight}" style="width:{min(part, 1.0) * 100:.1f}%"></i></div>'
        f"<b>{small_percent(part)}</b>"
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
        kind = ' class="picked"' if row.mark == PICK else ""
        body.append(f"<tr{kind}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{head}</th>" for head in heads)
    return f'<table class="plans"><thead><tr>{head}</tr></thead>\n<tbody>{"".join(body)}</tbody></table>'

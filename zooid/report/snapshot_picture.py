"""A snapshot of a run, drawn for a terminal."""

import math
import time
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zooid.core.runs.observed_run import RunState
from zooid.core.text import printable
from zooid.core.units import format_duration, format_usd
from zooid.report.phrases import NOTHING, or_nothing, percent, span_in_words
from zooid.report.progress import PHASES
from zooid.report.run_snapshot import CheckpointSnapshot, EvaluationSnapshot, MemberSnapshot, RunSnapshot
from zooid.report.terminal_text import cell

_STATES: dict[RunState, tuple[str, str]] = {
    "not begun": ("not begun", "bold yellow"),
    "preparing": ("preparing", "bold cyan"),
    "listening": ("listening for a heartbeat", "bold yellow"),
    "training": ("training", "bold green"),
    "unattended": ("training without a coordinator", "bold yellow"),
    "interrupted": ("interrupted", "bold red"),
    "stopped": ("stopped", "bold yellow"),
    "complete": ("complete", "bold green"),
}
"""State in words, and its style."""
_MEMBER_STYLES = {"starting": "cyan", "trains": "green", "done": "default", "ended": "dim", "lost": "red"}
_BARS = "▁▂▃▄▅▆▇█"
_MAX_CHANGES = 8
_MAX_EVALUATIONS = 3
_DAY_S = 86400.0


def snapshot_picture(snapshot: RunSnapshot) -> Group:
    """Draw a run: its state, its figures, its members, and what happened."""
    parts: list[RenderableType] = [_title(snapshot)]
    if snapshot.num_steps:
        parts.append(_progress(snapshot, snapshot.num_steps))
    if snapshot.started_at_s is not None:
        parts.append(_figures(snapshot))
    if snapshot.members:
        parts.append(_members(snapshot))
    if snapshot.changes:
        parts.append(_changes(snapshot))
    return Group(*parts)


def state_in_words(snapshot: RunSnapshot) -> str:
    """The state of a run, and what its coordinator prepares."""
    if snapshot.state == "preparing" and snapshot.phase:
        return PHASES.get(snapshot.phase, snapshot.phase)
    return _STATES[snapshot.state][0]


def advice_for(snapshot: RunSnapshot) -> str:
    """What to do about a run in this state; empty if there is nothing to do."""
    match snapshot.state:
        case "interrupted" | "stopped":
            return f"to continue: zooid resume {snapshot.store}"
        case "unattended":
            return f"to supervise its members again: zooid resume {snapshot.store}"
        case "not begun":
            return "no run has begun in this folder yet"
        case _:
            return ""


def clock(at_s: float, now_s: float) -> str:
    """The local time of day, or the date if it is long ago."""
    form = "%H:%M:%S" if abs(now_s - at_s) < _DAY_S else "%d %b %H:%M"
    return time.strftime(form, time.localtime(at_s))


def evaluation_in_words(evaluation: EvaluationSnapshot) -> str:
    """The result of an evaluation."""
    numbers = "  ".join(f"{name} {value:.4f}" for name, value in evaluation.numbers.items())
    return f"{numbers}  after step {evaluation.step}"


def checkpoint_in_words(checkpoint: CheckpointSnapshot) -> str:
    return f"step {checkpoint.step}{' (best)' if checkpoint.is_best else ''}"


def curve(values: Sequence[float]) -> str:
    """Draw values as bars; one that is not finite is a gap.

    >>> curve([3.0, 2.0, math.nan, 1.0])
    '█▅ ▁'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    top = len(_BARS) - 1
    return "".join(
        _BARS[min(top, round((value - low) / span * top))] if math.isfinite(value) else " " for value in values
    )


def _title(snapshot: RunSnapshot) -> Text:
    style = _STATES[snapshot.state][1]
    title = Text(overflow="fold")
    title.append(f"run {printable(snapshot.run)}  " if snapshot.run else "", style="bold")
    title.append(printable(state_in_words(snapshot)), style=style)
    facts = [printable(fact) for fact in (snapshot.layout, f"over {snapshot.transport}") if snapshot.transport and fact]
    title.append("".join(f"  ·  {fact}" for fact in facts))
    title.append(f"\n{printable(snapshot.store)}", style="dim")
    return title


def _progress(snapshot: RunSnapshot, num_steps: int) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    fraction = min(1.0, snapshot.step / num_steps)
    left = "" if snapshot.left_s is None else f"{format_duration(snapshot.left_s)} left"
    grid.add_row(
        f"step {snapshot.step}/{num_steps}",
        ProgressBar(total=num_steps, completed=snapshot.step),
        f"{percent(fraction)}  {left}".rstrip(),
    )
    return grid


def _figures(snapshot: RunSnapshot) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in _figure_rows(snapshot):
        grid.add_row(name, cell(value))
    return grid


def _figure_rows(snapshot: RunSnapshot) -> Iterator[tuple[str, str]]:
    if snapshot.loss is not None:
        yield "loss", f"{snapshot.loss:.4f}  {curve(snapshot.loss_curve)}"
    for evaluation in snapshot.evaluations[-_MAX_EVALUATIONS:]:
        yield "evaluation", evaluation_in_words(evaluation)
    if snapshot.step_s is not None:
        predicted = snapshot.predicted_step_s
        beside = "" if predicted is None else f"  predicted {format_duration(predicted)}"
        yield "step time", f"{format_duration(snapshot.step_s)}{beside}"
        yield "throughput", f"{or_nothing(snapshot.samples_per_s, lambda rate: f'{rate:.4g}')} samples/s"
    usd = snapshot.predicted_usd
    beside = "" if usd is None else f"  predicted {format_usd(usd)} from the last start to the end"
    yield "cost so far", f"{or_nothing(snapshot.usd, format_usd)}{beside}"
    yield "prices", snapshot.prices
    if snapshot.checkpoints:
        last = snapshot.checkpoints[-1]
        when = "" if last.at_s is None else f", {_ago(last.at_s, snapshot.at_s)}"
        yield "checkpoint", f"{checkpoint_in_words(last)}{when}"
    if snapshot.started_at_s is not None:
        yield "began", _ago(snapshot.started_at_s, snapshot.at_s)


def _members(snapshot: RunSnapshot) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for head in ("member", "replica", "stage", "layers", "share"):
        table.add_column(head, no_wrap=True, justify="left" if head == "member" else "right")
    table.add_column("state")
    for member in snapshot.members:
        table.add_row(*_member_cells(member, snapshot))
    return table


def _member_cells(member: MemberSnapshot, snapshot: RunSnapshot) -> tuple[RenderableType, ...]:
    since = "" if member.since_s is None else format_duration(max(0.0, snapshot.at_s - member.since_s))
    words = {
        "starting": "starting",
        "trains": f"trains for {since}",
        "done": f"done {since} ago",
        "ended": "ended",
        "lost": f"lost {since} ago" if since else "lost",
    }[member.state]
    if member.replica is None and member.state == "trains":
        words = "keeps a copy"
    share = NOTHING if member.share is None else f"{member.share} of {snapshot.num_grains}"
    return (
        cell(member.name),
        NOTHING if member.replica is None else str(member.replica),
        NOTHING if member.stage is None else str(member.stage),
        NOTHING if member.layers is None else span_in_words(*member.layers),
        share,
        Text(printable(f"{words}: {member.why}" if member.why else words), style=_MEMBER_STYLES[member.state]),
    )


def _changes(snapshot: RunSnapshot) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("time", no_wrap=True, style="dim")
    table.add_column("step", no_wrap=True, justify="right")
    table.add_column("what happened")
    for change in snapshot.changes[-_MAX_CHANGES:]:
        step = "" if change.step is None else str(change.step)
        table.add_row(clock(change.at_s, snapshot.at_s), step, cell(change.text))
    return table


def _ago(at_s: float, now_s: float) -> str:
    return f"{format_duration(max(0.0, now_s - at_s))} ago"

"""Draws a real recovery: what every member reads, when steps are committed, and what is done again after a loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.recovery.timing import Footprints, commits
from lab.footprints import reads_by_step

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 1000, 70, 45, 64, 46, 26
STEP_COLOURS = ("#7fa8d1", "#a9c6e3")
REDONE, LOST = "#e8833a", "#c0392b"
_BEFORE_STEPS, _AFTER_STEPS = 2, 3


@dataclass(frozen=True)
class Story:
    """One recovery, by the machine's monotonic clock."""

    footprints: Footprints
    batches: Sequence[Sequence[int]]
    lost: str
    lost_s: float
    noticed_s: float
    begun_s: float
    """When the next roster was complete."""
    sample_s: float
    """How long a member takes for a sample."""
    step: int
    """The step that was under way."""


def draw(story: Story) -> str:
    """The picture as SVG."""
    times = commits(story.footprints)
    first_s = times[story.step - _BEFORE_STEPS]
    last_s = times[min(story.step + _AFTER_STEPS, max(times))] + 0.05
    rows = {process: number for number, process in enumerate(sorted(story.footprints))}
    height = TOP + ROW * len(rows) + 76

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at_s - first_s) / (last_s - first_s)

    parts = [_text(LEFT, 20, f"{story.lost} is killed in the middle of a step", size=15, weight="bold")]
    lost_samples = _samples_of(story)
    for process, row in rows.items():
        name = process.rpartition("-")[0]
        parts.append(_text(LEFT - 10, TOP + ROW * row + BAR - 7, name, anchor="end", weight="bold"))
    for step, readers in enumerate(reads_by_step(story.footprints, story.batches)):
        for process, lines in readers.items():
            is_lost = process.startswith(f"{story.lost}-")
            for line in lines:
                end_s = min(line.at_s + story.sample_s, story.lost_s) if is_lost else line.at_s + story.sample_s
                if line.at_s < first_s or end_s > last_s:
                    continue
                is_redone = step == story.step and line.number in lost_samples and not is_lost
                colour = REDONE if is_redone else STEP_COLOURS[step % 2]
                top = TOP + ROW * rows[process]
                parts.append(
                    f'<rect x="{x(line.at_s):.1f}" y="{top}" width="{max(0.5, x(end_s) - x(line.at_s) - 0.6):.1f}" '
                    f'height="{BAR}" fill="{colour}"/>'
                )
    bottom = TOP + ROW * len(rows) - 8
    for number, at_s in sorted(times.items()):
        if first_s <= at_s <= last_s:
            parts.append(_line(x(at_s), TOP - 8, bottom, "#222"))
            parts.append(_text(x(at_s), bottom + 16, f"step {number - 1}", anchor="middle"))
            parts.append(_text(x(at_s), bottom + 30, "committed", anchor="middle"))
    for at_s, text, place in (
        (story.lost_s, "killed", TOP - 26),
        (
            story.begun_s,
            f"noticed after {_ms(story.noticed_s - story.lost_s)}, next roster after "
            f"{_ms(story.begun_s - story.lost_s)}",
            TOP - 12,
        ),
    ):
        parts.append(_line(x(at_s), place + 3, bottom, LOST, dashes="4 3"))
        parts.append(_text(x(at_s) + 4, place, text, colour=LOST))
    parts.append(_legend(height - 14))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


def save(story: Story, file: Path) -> None:
    file.write_text(draw(story))


def _samples_of(story: Story) -> set[int]:
    """Samples of the step under way that nobody but the lost member had read when it was lost, or was to read."""
    readers = reads_by_step(story.footprints, story.batches)[story.step]
    others = {
        line.number
        for process, lines in readers.items()
        for line in lines
        if not process.startswith(f"{story.lost}-") and line.at_s < story.begun_s
    }
    return set(story.batches[story.step]) - others


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    colour: str = "#222",
    size: int = 12,
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _line(x: float, top: float, bottom: float, colour: str, dashes: str = "") -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{colour}" stroke-width="1.2" '
        f'stroke-dasharray="{dashes}"/>'
    )


def _legend(y: float) -> str:
    entries = (
        (LEFT, STEP_COLOURS[0], "a sample that a member computes; the shade changes with the step"),
        (LEFT + 480, REDONE, "a sample of the lost member, computed by another"),
    )
    parts = []
    for x, colour, text in entries:
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 17, y, text))
    return "\n".join(parts)

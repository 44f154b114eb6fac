"""Draws a replayed window: instances that could be had, members by offer, progress and cost, over time."""

from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from lab.market_run import MarketRun
from lab.window_replay import WindowReplay
from zooid.core.runs.events import FleetChosen, MemberExited, Metered, StepCommitted

WIDTH, LEFT, RIGHT, PANEL, GAP, TOP = 1000, 70, 150, 130, 46, 40
AVAILABLE, SPOT, ON_DEMAND, LINE, SIMULATED, LIMIT = "#e3e6ea", "#4f8fc9", "#e8833a", "#222", "#888", "#c0392b"
Point = tuple[float, float]


def draw(replay: WindowReplay, run: MarketRun) -> str:
    """The picture as SVG."""
    world, factor = replay.world, replay.factor
    assert run.opened_at_s is not None
    assert world.deadline_s is not None
    opened_at_s = run.opened_at_s
    end_h = max(world.deadline_s, run.end_s * factor) / 3600 * 1.02
    height = TOP + 3 * (PANEL + GAP) + 10

    def hour(at_s: float) -> float:
        return (at_s - opened_at_s) * factor / 3600

    def x(hours: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(0.0, hours), end_h) / end_h

    def panel(number: int, largest: float) -> Callable[[float], float]:
        bottom = TOP + number * (PANEL + GAP) + PANEL
        return lambda value: bottom - PANEL * value / largest

    parts = [_text(LEFT, 18, f"{replay.window.trace.name}, from hour {replay.window.from_s / 3600:.0f}", size=15)]
    num_wanted = world.trace.num_wanted
    y = panel(0, 1.3 * num_wanted)
    gap_h = world.trace.gap_s / 3600
    for number, available in enumerate(replay.window.available):
        if number * gap_h < end_h:
            parts.append(_box(x(number * gap_h), x((number + 1) * gap_h) + 0.5, y(available), y(0), AVAILABLE))
    bills = [event for event in run.events if isinstance(event, Metered)]
    spot = {offer.name for offer in run.steering.offers if offer.market == "spot"}
    for bill, after in pairwise(bills):
        members = [member for member in bill.running if not member.prepares]
        num_spot = sum(member.offer in spot for member in members)
        left, right = x(hour(bill.at_s)), x(hour(after.at_s))
        parts.append(_box(left, right, y(num_spot), y(0), SPOT))
        parts.append(_box(left, right, y(len(members)), y(num_spot), ON_DEMAND))
    parts += [_axis(y, number, x(0), x(end_h)) for number in range(num_wanted + 1)]
    y = panel(1, world.num_steps)
    commits = [event for event in run.events if isinstance(event, StepCommitted)]
    parts.append(_path([(x(hour(event.at_s)), y(event.step + 1)) for event in commits], LINE))
    parts += [_axis(y, number, x(0), x(end_h)) for number in (0, int(world.num_steps))]
    y = panel(2, world.on_demand_usd * 1.05)
    parts.append(_path([(x(hour(bill.at_s)), y(bill.usd)) for bill in bills], LINE))
    parts.append(_path([(x(0), y(0)), (x(world.on_demand_s / 3600), y(world.on_demand_usd))], SIMULATED, "5 4"))
    parts += [_axis(y, round(value), x(0), x(end_h)) for value in (0.0, world.on_demand_usd)]
    if world.budget_usd is not None:
        parts.append(_path([(x(0), y(world.budget_usd)), (x(end_h), y(world.budget_usd))], LIMIT, "5 4"))
    bottom = TOP + 3 * PANEL + 2 * GAP
    for at_s in sorted({event.at_s for event in run.events if isinstance(event, MemberExited)}):
        parts.append(_path([(x(hour(at_s)), TOP), (x(hour(at_s)), TOP + PANEL)], LIMIT))
    for event in run.events:
        if isinstance(event, FleetChosen):
            parts.append(_path([(x(hour(event.at_s)), TOP), (x(hour(event.at_s)), TOP + PANEL)], "#2a7", "3 3"))
    deadline = x(world.deadline_s / 3600)
    parts.append(_path([(deadline, TOP), (deadline, bottom)], LIMIT, "5 4"))
    parts.append(_text(deadline - 4, TOP - 6, "deadline", colour=LIMIT, anchor="end"))
    for number, title in enumerate(("members", "steps done", "dollars")):
        parts.append(_text(LEFT, TOP + number * (PANEL + GAP) - 6, title))
    step_h = max(1, round(end_h / 8))
    for hours in range(0, int(end_h) + 1, step_h):
        parts.append(_text(x(hours), bottom + 16, f"{hours} h", anchor="middle"))
    parts += _legend(WIDTH - RIGHT + 12)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


def _legend(x: float) -> list[str]:
    parts = []
    for number, (colour, text) in enumerate(
        (
            (AVAILABLE, "spot: available"),
            (SPOT, "spot members"),
            (ON_DEMAND, "on demand"),
            (LIMIT, "lost; limits"),
            ("#2a7", "fleet chosen"),
            (SIMULATED, "all on demand"),
        )
    ):
        y = TOP + 20 * number
        parts.append(_box(x, x + 12, y, y + 12, colour))
        parts.append(_text(x + 18, y + 11, text))
    return parts


def _axis(y: Callable[[float], float], value: float, left: float, right: float) -> str:
    line = _path([(left, y(value)), (right, y(value))], "#ccc")
    return line + _text(left - 6, y(value) + 4, f"{value:g}", anchor="end")


def _box(left: float, right: float, top: float, bottom: float, colour: str) -> str:
    width, height = max(0.0, right - left), max(0.0, bottom - top)
    return f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _path(points: Sequence[Point], colour: str, dashes: str = "") -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.3" stroke-dasharray="{dashes}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = LINE, size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{escape(text)}</text>'
    )

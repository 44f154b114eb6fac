"""The views of `zooid watch`: a live picture on a terminal, plain lines elsewhere, JSON for scripts."""

import math
import time
from typing import Protocol, Self

import msgspec
from rich.console import Console
from rich.live import Live

from zooid.core.runs.observed_run import RunState
from zooid.core.units import format_duration, format_usd
from zooid.report.phrases import or_nothing
from zooid.report.run_snapshot import RunSnapshot
from zooid.report.snapshot_picture import (
    advice_for,
    checkpoint_in_words,
    clock,
    evaluation_in_words,
    snapshot_picture,
    state_in_words,
)
from zooid.report.terminal_text import say

_LINE_INTERVAL_S = 2.0


class SnapshotView(Protocol):
    """Shows snapshots as they come, and restores the terminal at the end."""

    def show(self, snapshot: RunSnapshot) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


def snapshot_view(console: Console, *, as_json: bool) -> SnapshotView:
    """Choose the view for a script, a terminal, or a file."""
    if as_json:
        return SnapshotJson(console)
    return LiveSnapshot(console) if console.is_terminal else SnapshotLines(console)


class SnapshotJson(SnapshotView):
    """Writes a line of JSON for every snapshot that differs from the last one in more than its time."""

    def __init__(self, console: Console) -> None:
        self._file = console.file
        self._last: RunSnapshot | None = None

    def show(self, snapshot: RunSnapshot) -> None:
        is_new = self._last is None or msgspec.structs.replace(snapshot, at_s=self._last.at_s) != self._last
        if is_new:
            self._last = snapshot
            self._file.write(f"{msgspec.json.encode(snapshot).decode()}\n")
            self._file.flush()


class LiveSnapshot(SnapshotView):
    """Draws the run on a terminal, again and again in the same place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._last: RunSnapshot | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        if self._last is not None:
            _say_advice(self._console, self._last)

    def show(self, snapshot: RunSnapshot) -> None:
        self._last = snapshot
        self._live.update(snapshot_picture(snapshot), refresh=True)


def say_snapshot(console: Console, snapshot: RunSnapshot) -> None:
    """Print a run as it is now."""
    console.print(snapshot_picture(snapshot))
    _say_advice(console, snapshot)


def _say_advice(console: Console, snapshot: RunSnapshot) -> None:
    """Print what to do in one piece, so that a command can be copied."""
    if advice := advice_for(snapshot):
        say(console, advice, "bold")


class SnapshotLines(SnapshotView):
    """Prints what is new as lines, for logs and pipes; about steps at most every two seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state: RunState | None = None
        self._told: set[tuple[float, str]] = set()
        self._last_step = -1
        self._last_line_s = -math.inf

    def show(self, snapshot: RunSnapshot) -> None:
        news = [
            *((change.at_s, change.text) for change in snapshot.changes),
            *((known.at_s, f"evaluated: {evaluation_in_words(known)}") for known in snapshot.evaluations),
            *((known.at_s, f"checkpoint of {checkpoint_in_words(known)}") for known in snapshot.checkpoints),
        ]
        for at_s, text in sorted((at_s, text) for at_s, text in news if at_s is not None):
            if (at_s, text) not in self._told:
                self._told.add((at_s, text))
                self._line(snapshot, at_s, text)
        is_late = time.monotonic() - self._last_line_s >= _LINE_INTERVAL_S and snapshot.step != self._last_step
        if snapshot.state != self._state or is_late:
            self._state, self._last_step, self._last_line_s = snapshot.state, snapshot.step, time.monotonic()
            self._line(snapshot, snapshot.at_s, _progress_in_words(snapshot))

    def _line(self, snapshot: RunSnapshot, at_s: float, text: str) -> None:
        say(self._console, f"{clock(at_s, snapshot.at_s)}  {text}")


def _progress_in_words(snapshot: RunSnapshot) -> str:
    facts = [state_in_words(snapshot)]
    if snapshot.num_steps is not None:
        facts.append(f"step {snapshot.step}/{snapshot.num_steps}")
    if snapshot.loss is not None:
        facts.append(f"loss {snapshot.loss:.4f}")
    if snapshot.samples_per_s is not None:
        facts.append(f"{snapshot.samples_per_s:.4g} samples/s")
    if snapshot.started_at_s is not None:
        facts.append(or_nothing(snapshot.usd, format_usd))
    if snapshot.left_s is not None:
        facts.append(f"{format_duration(snapshot.left_s)} left")
    facts.append(advice_for(snapshot))
    return "  ".join(filter(None, facts))

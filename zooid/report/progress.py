"""A run as it goes on: a progress bar on a terminal, plain lines elsewhere, JSON for machines."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from zooid.core.runs.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    MemberPrinted,
    MembersAdopted,
    MemberStarted,
    Metered,
    OptimizerChanged,
    PhaseStarted,
    ProfileProgress,
    RunFinished,
    RunStarted,
    StepCommitted,
    StoppedEarly,
    encode_events,
)
from zooid.core.text import printable
from zooid.core.units import format_duration, format_usd
from zooid.report.profile.table import summary_table
from zooid.report.terminal_text import say

_PHASES = {
    "profile": "measuring the layers and the store",
    "plan": "planning",
    "probe": "measuring the links",
    "sweep": "timing all-reduces",
    "prepare": "writing the initial weights",
    "rehearse": "starting the members",
    "train": "starting the members",
}
_SETTINGS = {"lr": "learning rate", "weight_decay": "weight decay"}
"""What people call entries of an optimizer's groups of parameters."""
_LINE_INTERVAL_S = 2.0


class View(Protocol):
    """Shows events as they come; leaving the context leaves the terminal as it was."""

    def show(self, event: Event) -> None: ...

    def __enter__(self) -> "View": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def view_for(console: Console, *, as_json: bool) -> View:
    """The view that suits whoever reads the output."""
    if as_json:
        return JsonView(console)
    return BarView(console) if console.is_terminal else LineView(console)


class _Quiet:
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


class JsonView(_Quiet):
    """Every event as a line of JSON."""

    def __init__(self, console: Console) -> None:
        self._file = console.file

    def __enter__(self) -> "JsonView":
        return self

    def show(self, event: Event) -> None:
        self._file.write(encode_events([event]).decode())
        self._file.flush()


class Pace:
    """Samples per second and dollars so far, from the events seen."""

    def __init__(self) -> None:
        self.usd = 0.0
        self._recent: list[StepCommitted] = []

    def add(self, event: Event) -> None:
        if isinstance(event, StepCommitted):
            self._recent = [*self._recent[-19:], event]
        elif isinstance(event, Metered):
            self.usd = event.usd

    @property
    def samples_per_s(self) -> float:
        seconds = sum(step.step_s for step in self._recent)
        return sum(step.num_samples for step in self._recent) / seconds if seconds else 0.0

    @property
    def step_s(self) -> float:
        return sum(step.step_s for step in self._recent) / len(self._recent) if self._recent else 0.0


class LineView(_Quiet):
    """For logs and pipes: a line for what happens, steps at most every two seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: RunStarted | None = None
        self._pace = Pace()
        self._last_line_s = 0.0

    def __enter__(self) -> "LineView":
        return self

    def show(self, event: Event) -> None:
        self._pace.add(event)
        match event:
            case PhaseStarted():
                self._line(_PHASES.get(event.phase, event.phase))
            case OptimizerChanged():
                self._line(_optimizer_changed(event))
            case RunStarted():
                self._started = event
                self._line(f"run {event.run}: {event.layout}, {event.num_steps} steps of {event.batch_size} samples")
                self._line(_predicted(event))
                if event.why_whole:
                    self._line(_whole(event))
            case MembersAdopted():
                self._line(_adopted(event))
            case StepCommitted() if self._started and self._is_due(event):
                left_s = (self._started.num_steps - event.step - 1) * self._pace.step_s
                self._line(
                    f"step {event.step + 1}/{self._started.num_steps}  loss {event.loss:.4f}  "
                    f"{self._pace.samples_per_s:.0f} samples/s  {format_usd(self._pace.usd)}  "
                    f"{format_duration(left_s)} left"
                )
            case Evaluated():
                self._line(_evaluated(event))
            case CheckpointSaved():
                self._line(_saved(event))
            case StoppedEarly():
                self._line(_stopped(event))
            case MemberPrinted() if self._started:
                self._line(event.line(len(self._started.members)))
            case RunFinished() if self._started:
                self._console.print(summary_table(self._started, event))

    def _is_due(self, event: StepCommitted) -> bool:
        last = self._started is not None and event.step + 1 == self._started.num_steps
        if last or event.step == 0 or time.monotonic() - self._last_line_s >= _LINE_INTERVAL_S:
            self._last_line_s = time.monotonic()
            return True
        return False

    def _line(self, text: str) -> None:
        say(self._console, text)


class BarView:
    """For terminals: one bar for measuring, one for training."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", markup=False),
            TextColumn("{task.fields[news]}", markup=False),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None
        self._started: RunStarted | None = None
        self._num_members = 0
        self._loss = float("nan")
        self._pace = Pace()

    def __enter__(self) -> "BarView":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        self._pace.add(event)
        match event:
            case PhaseStarted():
                self._next_task(_PHASES.get(event.phase, event.phase), 1)
            case ProfileProgress():
                self._update(completed=event.done, total=event.total)
            case OptimizerChanged():
                self._line(_optimizer_changed(event))
            case RunStarted():
                self._started = event
                self._line(_predicted(event))
                if event.why_whole:
                    self._line(_whole(event))
                self._next_task("starting the members", len(event.members))
            case MembersAdopted() if self._started:
                self._line(_adopted(event))
                self._next_task(f"training {self._started.layout}", self._started.num_steps)
            case MemberStarted() if self._started:
                self._num_members += 1
                self._update(completed=self._num_members)
                if self._num_members == len(self._started.members):
                    self._next_task(f"training {self._started.layout}", self._started.num_steps)
            case StepCommitted():
                self._loss = event.loss
                self._update(completed=event.step + 1, news=self._news())
            case Metered() if self._pace.step_s:
                self._update(news=self._news())
            case Evaluated():
                self._line(_evaluated(event))
            case CheckpointSaved():
                self._line(_saved(event))
            case StoppedEarly():
                self._line(_stopped(event))
            case MemberPrinted() if self._started:
                self._line(event.line(len(self._started.members)))
            case RunFinished() if self._started:
                self._progress.console.print(summary_table(self._started, event))

    def _line(self, text: str) -> None:
        say(self._progress.console, text)

    def _news(self) -> str:
        return f"loss {self._loss:.4f}  {self._pace.samples_per_s:.0f} samples/s  {format_usd(self._pace.usd)}"

    def _next_task(self, description: str, total: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, visible=False)
        self._task = self._progress.add_task(printable(description), total=total, news="")

    def _update(self, **changes: object) -> None:
        if self._task is not None:
            self._progress.update(self._task, **changes)  # type: ignore[arg-type]


def _evaluated(event: Evaluated) -> str:
    metrics = "".join(f"  {name} {value:.4f}" for name, value in event.metrics.items())
    when = f"after step {event.step} (epoch {event.epoch + 1})" if event.step else "before training"
    return f"evaluated {when} on {event.num_samples} samples: loss {event.loss:.4f}{metrics}"


def _saved(event: CheckpointSaved) -> str:
    return f"{'best ' if event.is_best else ''}checkpoint of step {event.step}: {event.url}"


def _stopped(event: StoppedEarly) -> str:
    return f"stopped early after step {event.step}: {event.reason}"


def _adopted(event: MembersAdopted) -> str:
    num_members = len(event.members)
    who = "1 member that trains" if num_members == 1 else f"{num_members} members that train"
    return f"adopting {who} at step {event.step}; nobody starts anew"


def _whole(event: RunStarted) -> str:
    return f"the model is trained as one stage, without a pipeline: {event.why_whole}"


def _optimizer_changed(event: OptimizerChanged) -> str:
    """
    `optimizer: learning rate 0.001 (was 0.01 in the checkpoint)`.
    """
    changes = [
        f"{_SETTINGS.get(key, key)} {_values(event.settings, key)} (was {_values(event.before, key)} in the checkpoint)"
        for key in event.settings | event.before
        if event.settings.get(key) != event.before.get(key)
    ]
    return f"optimizer: {', '.join(changes)}"


def _values(settings: Mapping[str, tuple[str, ...]], key: str) -> str:
    return " and ".join(settings.get(key, ("not given",)))


def _predicted(event: RunStarted) -> str:
    if event.predicted_step_s is None or event.predicted_run_s is None or event.predicted_usd is None:
        return f"time, money and memory are not known, since the job was not profiled ({event.prices})"
    whole = f"{format_duration(event.predicted_run_s)} in all, {format_usd(event.predicted_usd)}"
    return f"predicted: {format_duration(event.predicted_step_s)} a step, {whole} ({event.prices})"

"""The progress of a run: a bar on a terminal, plain lines elsewhere, JSON for machines."""

import time
from collections.abc import Mapping
from typing import Protocol, Self

from msgspec import structs
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from zooid.core.runs.events import (
    BatchChanged,
    CheckpointSaved,
    Evaluated,
    Event,
    FleetChosen,
    LimitsEndangered,
    MemberPrinted,
    MembersAdopted,
    MemberStarted,
    Metered,
    OptimizerChanged,
    PaceMissed,
    PhaseStarted,
    PriceChanged,
    ProfileProgress,
    RunFinished,
    RunStarted,
    ScalingWanted,
    StepCommitted,
    StoppedEarly,
    encode_events,
)
from zooid.core.text import printable
from zooid.core.units import format_duration, format_usd
from zooid.report.run_tables import cost_in_words, summary_table
from zooid.report.terminal_text import say

PHASES = {
    "profile": "measuring the layers and the store",
    "plan": "planning",
    "probe": "measuring the links",
    "sweep": "timing all-reduces",
    "prepare": "writing the initial weights",
    "rehearse": "starting the members",
    "train": "starting the members",
}
"""Phases of a coordinator's work, in words."""
_SETTINGS = {"lr": "learning rate", "weight_decay": "weight decay"}
"""Common names for settings of an optimizer."""
_LINE_INTERVAL_S = 2.0


class View(Protocol):
    """Shows events as they arrive, and restores the terminal at the end."""

    def show(self, event: Event) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


def view_for(console: Console, *, as_json: bool) -> View:
    """Choose the view for a program, a terminal, or a file."""
    if as_json:
        return JsonView(console)
    return BarView(console) if console.is_terminal else LineView(console)


class JsonView(View):
    """Writes every event as a line of JSON."""

    def __init__(self, console: Console) -> None:
        self._file = console.file

    def show(self, event: Event) -> None:
        self._file.write(encode_events([event]).decode())
        self._file.flush()


class Pace:
    """Recent throughput, and dollars so far."""

    def __init__(self) -> None:
        self.metered: Metered | None = None
        self._recent: list[StepCommitted] = []

    def add(self, event: Event) -> None:
        if isinstance(event, StepCommitted):
            self._recent = [*self._recent[-19:], event]
        elif isinstance(event, Metered):
            self.metered = event

    @property
    def cost(self) -> str:
        """The cost so far, and its largest terms."""
        if self.metered is None:
            return format_usd(0.0)
        consists_of = cost_in_words(self.metered.terms)
        return format_usd(self.metered.usd) + (f" ({consists_of})" if consists_of else "")

    @property
    def samples_per_s(self) -> float:
        seconds = sum(step.step_s for step in self._recent)
        return sum(step.num_samples for step in self._recent) / seconds if seconds else 0.0

    @property
    def step_s(self) -> float:
        return sum(step.step_s for step in self._recent) / len(self._recent) if self._recent else 0.0


class LineView(View):
    """Prints lines for logs and pipes, about steps at most every two seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: RunStarted | None = None
        self._pace = Pace()
        self._last_line_s = 0.0

    def show(self, event: Event) -> None:
        self._pace.add(event)
        match event:
            case PhaseStarted():
                self._line(PHASES.get(event.phase, event.phase))
            case RunStarted():
                self._started = event
                self._line(f"run {event.run}: {event.layout}, {event.num_steps} steps of {event.batch_size} samples")
                _say_start(self._console, event)
            case BatchChanged() if self._started:
                self._started = structs.replace(self._started, num_steps=event.num_steps)
                _say_event(self._console, event, self._started)
            case StepCommitted() if self._started and self._is_due(event):
                left_s = (self._started.num_steps - event.step - 1) * self._pace.step_s
                self._line(
                    f"step {event.step + 1}/{self._started.num_steps}  loss {event.loss:.4f}  "
                    f"{self._pace.samples_per_s:.0f} samples/s  {self._pace.cost}  "
                    f"{format_duration(left_s)} left"
                )
            case _:
                _say_event(self._console, event, self._started)

    def _is_due(self, event: StepCommitted) -> bool:
        is_last = self._started is not None and event.step + 1 == self._started.num_steps
        if is_last or event.step == 0 or time.monotonic() - self._last_line_s >= _LINE_INTERVAL_S:
            self._last_line_s = time.monotonic()
            return True
        return False

    def _line(self, text: str) -> None:
        say(self._console, text)


class BarView(View):
    """Draws a bar on a terminal for each phase of a run."""

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

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        self._pace.add(event)
        match event:
            case PhaseStarted():
                self._next_task(PHASES.get(event.phase, event.phase), 1)
            case ProfileProgress():
                self._update(completed=event.done, total=event.total)
            case RunStarted():
                self._started = event
                _say_start(self._progress.console, event)
                self._next_task("starting the members", len(event.members))
            case MemberStarted() if self._started:
                self._num_members += 1
                self._update(completed=self._num_members)
                if self._num_members == len(self._started.members):
                    self._begin_training(self._started)
            case BatchChanged():
                self._update(total=event.num_steps)
                _say_event(self._progress.console, event, self._started)
            case StepCommitted():
                self._loss = event.loss
                self._update(completed=event.step + 1, news=self._news())
            case Metered() if self._pace.step_s:
                self._update(news=self._news())
            case _:
                _say_event(self._progress.console, event, self._started)
                if isinstance(event, MembersAdopted) and self._started:
                    self._begin_training(self._started)

    def _begin_training(self, started: RunStarted) -> None:
        self._next_task(f"training {started.layout}", started.num_steps)

    def _news(self) -> str:
        return f"loss {self._loss:.4f}  {self._pace.samples_per_s:.0f} samples/s  {self._pace.cost}"

    def _next_task(self, description: str, total: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, visible=False)
        self._task = self._progress.add_task(printable(description), total=total, news="")

    def _update(self, **changes: object) -> None:
        if self._task is not None:
            self._progress.update(self._task, **changes)  # type: ignore[arg-type]


def _say_start(console: Console, event: RunStarted) -> None:
    if event.predicted_step_s is None or event.predicted_run_s is None or event.predicted_usd is None:
        say(console, f"time, money and memory are unknown, since the job was not profiled ({event.prices})")
    else:
        whole = f"{format_duration(event.predicted_run_s)} in all, {format_usd(event.predicted_usd)}"
        say(console, f"predicted: {format_duration(event.predicted_step_s)} a step, {whole} ({event.prices})")
    if event.checkpoints:
        say(console, f"checkpoints: {event.checkpoints}")
    if event.why_whole:
        say(console, f"the model is trained as one stage, without a pipeline: {event.why_whole}")


def _say_event(console: Console, event: Event, started: RunStarted | None) -> None:
    """Print the events that every view shows as lines, and the summary of a finished run."""
    match event:
        case OptimizerChanged():
            say(console, _optimizer_changed(event))
        case MembersAdopted():
            members = "1 member that trains" if len(event.members) == 1 else f"{len(event.members)} members that train"
            say(console, f"adopting {members} at step {event.step}; no member is restarted")
        case Evaluated():
            metrics = "".join(f"  {name} {value:.4f}" for name, value in event.metrics.items())
            when = f"after step {event.step} (epoch {event.epoch + 1})" if event.step else "before training"
            say(console, f"evaluated {when} on {event.num_samples} samples: loss {event.loss:.4f}{metrics}")
        case BatchChanged():
            rate = f", learning rate × {event.rate_factor:g}" if event.rate_factor != 1 else ""
            now = f"{event.num_steps} steps in all"
            say(console, f"from step {event.step + 1} on: batches of {event.batch_size} samples{rate}; {now}")
        case ScalingWanted() if event.num_replicas is not None:
            say(console, f"the scaling policy wants {event.num_replicas} replica(s) from step {event.step + 1} on")
        case PriceChanged():
            prices = f"{format_usd(event.usd_per_hour)} an hour instead of {format_usd(event.before_usd_per_hour)}"
            say(console, f"the price of {event.offer} is now {prices}")
        case LimitsEndangered():
            say(console, f"{event.reason}; {event.would_hold}")
        case FleetChosen():
            say(console, f"switching to {event.fleet}, since {event.reason}: {event.because}")
        case CheckpointSaved():
            best = "best " if event.is_best else ""
            say(console, f"{best}checkpoint of step {event.step}: {event.url}{_next_checkpoint(event, started)}")
        case PaceMissed():
            times = f"{format_duration(event.computed_s)} in a step instead of {format_duration(event.planned_s)}"
            say(console, f"{event.member} computes for {times}: this machine is too slow for the rehearsed times")
        case StoppedEarly():
            say(console, _stopped(event, started))
        case MemberPrinted() if started:
            say(console, event.line(len(started.members)))
        case RunFinished() if started:
            console.print(summary_table(started, event))


def _stopped(event: StoppedEarly, started: RunStarted | None) -> str:
    if not event.by_request:
        return f"stopped early after step {event.step}: {event.reason}"
    advice = f"; to continue: zooid resume {started.store}" if started else ""
    return f"stopped after step {event.step}: {event.reason}{advice}"


def _next_checkpoint(event: CheckpointSaved, started: RunStarted | None) -> str:
    """Say when the next checkpoint follows, where one does and the measured pause decides it."""
    is_last = started is not None and event.step == started.num_steps
    if event.next_in_s is None or event.pause_s is None or is_last:
        return ""
    return f" (a pause of {format_duration(event.pause_s)}; the next one in {format_duration(event.next_in_s)})"


def _optimizer_changed(event: OptimizerChanged) -> str:
    """Say the settings that changed: `optimizer: learning rate 0.001 (was 0.01 in the checkpoint)`."""
    changes = [
        f"{_SETTINGS.get(key, key)} {_values(event.settings, key)} (was {_values(event.before, key)} in the checkpoint)"
        for key in event.settings | event.before
        if event.settings.get(key) != event.before.get(key)
    ]
    return f"optimizer: {', '.join(changes)}"


def _values(settings: Mapping[str, tuple[str, ...]], key: str) -> str:
    return " and ".join(settings.get(key, ("not given",)))

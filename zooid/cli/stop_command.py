"""`zooid stop`: end a run at its next step boundary, so that it can be resumed."""

from rich.console import Console
from rich.status import Status

from zooid import coordinator
from zooid.cli import options
from zooid.core.runs.events import StepCommitted
from zooid.core.runs.observed_run import ObservedRun
from zooid.report import say


def stop(url: options.RunFolder) -> None:
    """Let a run write a checkpoint at its next step boundary and end. `zooid resume` continues it.

    Example: zooid stop s3://bucket/run-7
    """
    console = Console()
    status = Status("looking for the run", console=console)
    is_asked = False

    def show(observed: ObservedRun) -> None:
        nonlocal is_asked
        if not is_asked:
            say(console, "asked the run to stop at its next step boundary")
            is_asked = True
        status.update(_waiting_in_words(observed))

    try:
        with status:
            stopped = coordinator.stop(url, on_look=show)
    except KeyboardInterrupt:
        end = "the run still stops: the request is in its folder" if is_asked else "the run was not asked to stop"
        say(Console(stderr=True), end)
        raise
    if stopped.can_resume:
        say(console, f"stopped after step {stopped.step} of {stopped.num_steps}")
        say(console, f"checkpoint: {stopped.checkpoint}")
        say(console, f"to continue: zooid resume {url}")
    else:
        why = f"because {stopped.reason}" if stopped.reason else "since that was its last one"
        say(console, f"the run ended by itself after step {stopped.step} of {stopped.num_steps}, {why}")
        say(console, f"checkpoint: {stopped.checkpoint}")


def _waiting_in_words(observed: ObservedRun) -> str:
    """Say how far the run is."""
    if observed.state == "preparing":
        return "waiting: the run has not begun to train, and stops soon after it has"
    step = next((event.step + 1 for event in reversed(observed.events) if isinstance(event, StepCommitted)), 0)
    return f"waiting: step {step} of {observed.num_steps} is done; members see the request within seconds"

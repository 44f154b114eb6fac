"""The command `zooid`: what it can do, and how errors end."""

import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from zooid.cli.clean import clean
from zooid.cli.plan import plan
from zooid.cli.predict import predict
from zooid.cli.probe import probe
from zooid.cli.profile import profile
from zooid.cli.rehearse import rehearse
from zooid.cli.resume import resume
from zooid.cli.save import save
from zooid.cli.timeline import timeline
from zooid.cli.train import train
from zooid.core.errors import InputError, ZooidError
from zooid.report import say

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
"""What typer makes of Ctrl-C."""
EXIT_SIGNAL = 128
"""Added to the number of a signal that ended the command, as shells have it."""
VERBOSE = "--verbose"

app = typer.Typer(
    help="Train deep neural networks fast and cheaply on resources that come and go.",
    epilog="Start with: zooid train examples/digits.py --layout 2x2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def everywhere(
    verbose: Annotated[
        bool, typer.Option(VERBOSE, help="Show the whole traceback of an error; may stand anywhere in a command.")
    ] = False,
) -> None:
    """Train deep neural networks fast and cheaply on resources that come and go."""


app.command()(profile)
app.command()(plan)
app.command()(predict)
app.command()(rehearse)
app.command()(train)
app.command()(resume)
app.command()(save)
app.command()(timeline)
app.command()(probe)
app.command()(clean)


def main() -> None:
    """Run a command; errors that zooid raises on purpose become one clear line and a status."""
    signals: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        """Being asked to end is treated as Ctrl-C: members are ended first."""
        signals.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, interrupt)
    errors = Console(stderr=True)
    words = [word for word in sys.argv[1:] if word != VERBOSE]
    is_verbose = VERBOSE in sys.argv[1:]
    try:
        app(words)
    except SystemExit as end:
        if end.code != EXIT_INTERRUPTED:
            raise
        say(errors, "interrupted: all members have ended")
        sys.exit(EXIT_SIGNAL + (signals[0] if signals else signal.SIGINT))
    except ZooidError as error:
        details = error.traceback_text or traceback.format_exc() if is_verbose else error.details
        _print_error(errors, details, str(error))
        sys.exit(EXIT_INPUT if isinstance(error, InputError) else EXIT_FAILED)
    except OSError as error:
        _print_error(errors, traceback.format_exc() if is_verbose else "", str(error))
        sys.exit(EXIT_FAILED)


def _print_error(errors: Console, details: str, message: str) -> None:
    if details:
        say(errors, details.rstrip(), "dim")
    say(errors, f"error: {message}", "bold red")


if __name__ == "__main__":
    main()
